"""The real engine in a process of its own: token ids of texts, as one JSON line.

usage: engine_tokenize.py TARGET.gguf TEXTS.json
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import xllamacpp


def main() -> None:
    target, texts = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = target
    params.n_ctx = 64
    params.n_parallel = 1
    params.warmup = False
    params.n_gpu_layers = 0
    params.port = 0
    server = xllamacpp.Server(params)
    url = f"{server.listening_address}/tokenize"
    answers = [ask(url, text) for text in json.loads(Path(texts).read_text())]
    sys.stdout.write("ANSWER " + json.dumps(answers) + "\n")
    sys.stdout.flush()


def ask(url: str, text: str) -> list[int]:
    body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=600) as answer:  # noqa: S310
        found: dict[str, Any] = json.loads(answer.read())
    ids: list[int] = found["tokens"]
    return ids


if __name__ == "__main__":
    main()
