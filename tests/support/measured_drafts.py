"""The trained pair's drafts as files, right and with one mistake planted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dflash_gguf.formats.gguf.types import GGMLType, ValueType
from dflash_gguf.model.prompts import Prompt, parse_prompts
from support.builders_gguf import Parts
from support.executor_fixture import FIXTURES

TARGET = FIXTURES / "target"
KINDS = ("bf16", "q8_0", "q4_k_m")


def prompts(*numbers: int) -> tuple[Prompt, ...]:
    """Some of the fixture's prompts."""
    path = FIXTURES / "prompts.json"
    held = parse_prompts(path.read_bytes(), str(path))
    return tuple(held[number] for number in numbers)


def reference(draft: str, number: int) -> dict[str, Any]:
    """What the reference did with one prompt."""
    rows = json.loads((FIXTURES / "sequences.json").read_text(encoding="utf-8"))["prompts"]
    found: dict[str, Any] = rows[number][draft]["first_generated"]
    return found


Fault = Callable[[Parts], object]


def faulty(good: Path, out: Path, fault: Fault) -> Path:
    """A copy of a file with a mistake in it."""
    parts = Parts.of(good)
    fault(parts)
    out.write_bytes(parts.encode())
    return out


def changed_array(parts: Parts, name: str, change: Callable[[Any], Any]) -> None:
    """Rewrite an F32 or BF16 tensor, given in numpy's order as its bits."""
    kind, ne, raw = parts.tensors[name]
    bits = np.frombuffer(raw, {GGMLType.F32: np.uint32, GGMLType.BF16: np.uint16}[kind]).reshape(ne[::-1])
    parts.tensors[name] = (kind, ne, np.ascontiguousarray(change(bits)).tobytes())


def exchange_q_and_k(parts: Parts) -> None:
    """One layer's k, and the rows of its q that are as many, change places."""
    q, k = "blk.1.attn_q.weight", "blk.1.attn_k.weight"
    kind, q_ne, q_raw = parts.tensors[q]
    _, k_ne, k_raw = parts.tensors[k]
    size = len(k_raw)
    parts.tensors[q] = (kind, q_ne, k_raw + q_raw[size:])
    parts.tensors[k] = (kind, k_ne, q_raw[:size])


def transpose_conv_base(parts: Parts) -> None:
    """Sides for taps in one convolution."""
    changed_array(parts, "blk.0.ffn_conv_base", lambda bits: bits.swapaxes(0, 1))


def unshift_target_layers(parts: Parts) -> None:
    """The checkpoint's own ids, not one more."""
    layers = parts.pairs["dflash.target_layers"].value
    assert hasattr(layers, "items")
    parts.set_array("dflash.target_layers", ValueType.INT32, [int(layer) - 1 for layer in layers.items()])


def wrong_mask(parts: Parts) -> None:
    """The id before."""
    key = "tokenizer.ggml.mask_token_id"
    held = parts.pairs[key].value
    assert isinstance(held, int)
    parts.set(key, ValueType.UINT32, held - 1)
