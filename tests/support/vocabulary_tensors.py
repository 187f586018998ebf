"""Drafts and targets with tensors over the vocabulary: embedding, head, mask embedding, reduced vocabulary."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from support.builders import ROOT, bf16, random_tensors, safetensors_bytes, target_config, v2_config, write_target

MASKS = ROOT / "tests/data/mask_embedding"
Arrays = dict[str, np.ndarray[Any, Any]]


def random_table(rows: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
    return bf16(np.random.default_rng(seed).standard_normal((rows, 64), dtype=np.float32))


EMBED, HEAD = random_table(2048, 5), random_table(2048, 6)


def mixed_safetensors(tensors: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """A safetensors file whose tensors have their arrays' own types; uint16 is BF16."""
    names = {"uint16": "BF16", "int64": "I64", "int32": "I32", "bool": "BOOL", "float32": "F32"}
    header, offset = {}, 0
    for name, values in tensors.items():
        entry = {"dtype": names[values.dtype.name], "shape": list(values.shape)}
        header[name] = entry | {"data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(values.tobytes() for values in tensors.values())


def target_with_weights(folder: Path, *, tied: bool = False, sharded: bool = False, prefix: str = "model.") -> Path:
    """A target whose checkpoint holds its embedding, its head and one tensor more."""
    write_target(folder, target_config(tie_word_embeddings=tied))
    tensors = {prefix + "embed_tokens.weight": EMBED, prefix + "norm.weight": EMBED[0]}
    if not tied:
        tensors["lm_head.weight"] = HEAD
    if not sharded:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
        return folder
    weight_map = {}
    for number, (name, values) in enumerate(tensors.items()):
        shard = f"model-{number:05}.safetensors"
        (folder / shard).write_bytes(safetensors_bytes({name: values}))
        weight_map[name] = shard
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def reduced(folder: Path, offsets: np.ndarray[Any, Any], **more: np.ndarray[Any, Any]) -> Path:
    """A v2 draft that proposes some tokens only."""
    config = v2_config(nested__draft_vocab_size=len(offsets))
    tensors: Arrays = random_tensors(v2_config()) | {"lm_head.weight": HEAD[: len(offsets)], "d2t": offsets, **more}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(mixed_safetensors(tensors))
    return folder


IDS = np.arange(3, 2048, 4)
OFFSETS = IDS - np.arange(len(IDS))
MEMBERS = np.isin(np.arange(2048), IDS)
