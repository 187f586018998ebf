"""Target directories made from the mini tokenizer, one edit away from a good one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.model.tokenizer import Tokenizer, load_tokenizer

ROOT = Path(__file__).parents[2]
MINI = ROOT / "fixtures" / "tokenizers" / "mini"
FAMILIES = ROOT / "tests" / "data" / "tokenizers"
VOCAB_SIZE = 2100


@dataclass
class Target:
    """The three files of a target, as objects to edit; `extra` files by name."""

    tokenizer: dict[str, Any]
    settings: dict[str, Any] | None
    config: dict[str, Any]
    extra: dict[str, str] = field(default_factory=dict)

    def add(self, token_id: int, text: str, *, special: bool = False, normalized: bool = False) -> None:
        """List an added token in both files."""
        entry = {"content": text, "special": special, "normalized": normalized}
        self.tokenizer["added_tokens"].append({"id": token_id, **entry})
        if self.settings is not None:
            self.settings["added_tokens_decoder"][str(token_id)] = entry

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(self.tokenizer))
        if self.settings is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps(self.settings))
        (folder / "config.json").write_text(json.dumps(self.config))
        for name, text in self.extra.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        return folder


Edit = Callable[[Target], object]


def unchanged(target: Target) -> None:
    """The edit that changes nothing."""


def mini() -> Target:
    return Target(
        json.loads((MINI / "tokenizer.json").read_text()),
        json.loads((MINI / "tokenizer_config.json").read_text()),
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    )


def load_edited(folder: Path, edit: Edit, vocab_size: int = VOCAB_SIZE, pre: str | None = None) -> Tokenizer:
    target = mini()
    edit(target)
    return load_tokenizer(target.write(folder), vocab_size=vocab_size, mask_token_id=vocab_size - 1, pre=pre)


def values(tokenizer: Tokenizer) -> dict[str, Any]:
    """Key → value without the `tokenizer.` in front; arrays stay encoded."""
    return {key.removeprefix("tokenizer."): value.value for key, value in tokenizer.key_values}


def row(tokenizer: Tokenizer, token_id: int) -> tuple[str, int]:
    """Text and type of one row."""
    types = values(tokenizer)["ggml.token_type"]
    assert isinstance(types, Array)
    kind = types.items()[token_id]
    assert isinstance(kind, int)
    return list(tokenizer.tokens.strings())[token_id].decode(), kind


def digest(value: MetaValue) -> list[Any]:
    """A value as the golden files write it."""
    if isinstance(value.value, Array):
        array = value.value
        sha = hashlib.sha256(array.raw).hexdigest()
        return [int(value.type), ["arr", int(array.item_type), array.count, sha]]
    return [int(value.type), value.value]
