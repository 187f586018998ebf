"""The real engine in a process of its own: greedy text of a target, with or without a draft, as one JSON line.

usage: engine_process.py TARGET.gguf DRAFT.gguf|- N_PREDICT PROMPT(JSON)…

A prompt is a list of ids, or an object of the request's fields that are other than usual.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import xllamacpp


def main() -> None:
    target, draft, n_predict, *prompts = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = target
    params.n_ctx = 1024
    params.n_parallel = 1
    params.warmup = False
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # tiny models; threads that wait spin
    if draft != "-":
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH]
        params.speculative.draft.mparams.path = draft
        params.speculative.draft.n_max = 7
        params.speculative.draft.p_min = 0.0
    server = xllamacpp.Server(params)
    answers = []
    for prompt in map(json.loads, prompts):
        request = {
            "prompt": prompt,
            "n_predict": int(n_predict),
            "temperature": 0,
            "cache_prompt": False,
            "ignore_eos": True,
        }
        if isinstance(prompt, dict):
            request |= prompt
        answer: dict[str, Any] = server.handle_completions(request)
        answers.append({"text": answer["choices"][0]["text"], "timings": answer["timings"]})
    sys.stdout.write("ANSWER " + json.dumps(answers) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
