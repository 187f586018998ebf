"""MXFP8 drafts for tests, written by hand: every weight's codes and scales are known, whoever decodes them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_gguf.model.tensors import draft_tensors
from support.builders import random_tensors, spec_of

Array = NDArray[Any]
#: name → (dtype, values); FP8 and scale tensors are uint8
Tensors = dict[str, tuple[str, Array]]

FLAT = {
    "quant_method": "modelopt",
    "quant_algo": "MXFP8",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "input_activations": {"dynamic": True, "group_size": 32, "num_bits": 8, "type": "float"},
            "weights": {"dynamic": False, "group_size": 32, "num_bits": 8, "type": "float"},
            "targets": ["Linear"],
        }
    },
    "producer": {"name": "modelopt", "version": "0.47.0"},
}
NESTED = {
    "producer": {"name": "modelopt", "version": "0.47.0"},
    "quantization": {"quant_algo": "MXFP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]},
}
MINIMAX = {"quant_method": "mxfp8", "weight_block_size": [1, 32], "ignored_layers": ["lm_head"]}


def linears(config: dict[str, Any]) -> list[str]:
    return [tensor.source_name for tensor in draft_tensors(spec_of(config)) if tensor.linear]


def mxfp8_tensors(config: dict[str, Any], seed: int = 3) -> Tensors:
    """Random codes (no NaN) and scales near 2⁻⁵ for every linear, BF16 for the rest."""
    rng = np.random.default_rng(seed)
    tensors: Tensors = {name: ("BF16", values) for name, values in random_tensors(config).items()}
    for name in linears(config):
        rows, columns = tensors[name][1].shape
        codes = rng.integers(0, 0x7F, (rows, columns), dtype=np.uint8) | rng.choice([0, 0x80], (rows, columns))
        tensors[name] = ("F8_E4M3", codes.astype(np.uint8))
        tensors[name + "_scale"] = ("U8", rng.integers(110, 125, (rows, columns // 32), dtype=np.uint8))
    return tensors


def exact_values(codes: Array, scales: Array) -> NDArray[np.float32]:
    """q · 2^(s − 127) in float64, then float32: exact for the scales used here."""
    sizes = np.arange(128)
    sizes = np.where(sizes < 8, sizes / 512, (8 + sizes % 8) * np.exp2(sizes // 8 - 10.0))
    values = sizes[codes & 0x7F] * np.where(codes & 0x80, -1.0, 1.0)
    exact: NDArray[np.float32] = (values * np.repeat(np.exp2(scales - 127.0), 32, axis=-1)).astype(np.float32)
    return exact


def mixed_safetensors(tensors: Mapping[str, tuple[str, Array]], metadata: Any = None) -> bytes:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    offset = 0
    for name, (dtype, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(values.tobytes() for _, values in tensors.values())


def write_mxfp8_draft(
    folder: Path,
    config: dict[str, Any],
    tensors: Mapping[str, tuple[str, Array]] | None = None,
    *,
    quantization: Any = FLAT,
    hf_quant: Any = None,
) -> Path:
    """Write the folder of an MXFP8 draft; `quantization` stands in config.json, `hf_quant` in its own file."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**config} if quantization is None else {**config, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    if hf_quant is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(hf_quant))
    (folder / "model.safetensors").write_bytes(mixed_safetensors(tensors or mxfp8_tensors(config)))
    return folder
