"""The quick reading of a target's tokens gives what the whole one gives, however tokenizer.json is laid out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.builders import write_target

from dflash_gguf.model.tokenizer import load_tokenizer
from dflash_gguf.model.tokenizer.load import load_texts

LAYOUTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "compact": lambda tokenizer: json.dumps(tokenizer, separators=(",", ":")),
    "indented": lambda tokenizer: json.dumps(tokenizer, indent=4, ensure_ascii=False) + "\n",
    "sorted": lambda tokenizer: json.dumps(tokenizer, sort_keys=True),
    "vocabulary last": lambda tokenizer: json.dumps(
        tokenizer
        | {
            "model": {k: v for k, v in tokenizer["model"].items() if k != "vocab"}
            | {"vocab": tokenizer["model"]["vocab"]}
        }
    ),
    "a list behind the merges": lambda tokenizer: json.dumps(tokenizer | {"model": tokenizer["model"] | {"x": [1]}}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_quick_texts_are_the_whole_ones(tmp_path: Path, name: str) -> None:
    folder = write_target(tmp_path / "Tiny")
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab['"merges": ['] = vocab.pop("!")  # a token that reads like the key
    vocab["merges"] = vocab.pop('"')
    tokenizer["model"]["merges"] = [
        ["t", "h"],
        *(m for m in tokenizer["model"]["merges"] if not {"!", '"'} & set("".join(m))),
    ]
    path.write_text(LAYOUTS[name](tokenizer))
    whole = load_tokenizer(folder, vocab_size=2048, mask_token_id=2030)
    assert load_texts(folder, vocab_size=2048) == (whole.model, whole.pre, list(whole.tokens.strings()))
