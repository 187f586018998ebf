"""Small checkpoints made on the spot: every test starts from a good one and breaks the one thing it is about."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dflash_gguf.model.config import spec_from_config
from dflash_gguf.model.spec import DraftSpec
from dflash_gguf.model.tensors import draft_tensors

ROOT = Path(__file__).parents[2]
MINI_TOKENIZER = ROOT / "fixtures/tokenizers/mini"
#: the golden conversions: seed, and changes of the config beyond those that all have
GOLDENS = {
    "glm53flash": (["--seed", "11"], []),
    "odd": (["--seed", "18"], ["hidden_size=544", "intermediate_size=1056", "dflash_config.selector_rank=48"]),
}
DTYPES = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}


def v2_config(**changes: Any) -> dict[str, Any]:
    """A DFlash 2 config of z-lab's dialect; keys of `dflash_config` are changed by their own names."""
    config: dict[str, Any] = {
        "architectures": ["DFlash2DraftModel"],
        "attention_bias": False,
        "dflash_config": {
            "block_size": 8,
            "conv_group_size": 16,
            "conv_kernel_size": 2,
            "mask_token_id": 2030,
            "selector_rank": 32,
            "selector_top_k": 4,
            "target_layer_ids": [0, 1, 3],
        },
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "is_causal": False,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 4096,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_target_layers": 6,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": 16,
        "use_sliding_window": True,
        "vocab_size": 2048,
    }
    return changed(config, changes)


def v1_config(**changes: Any) -> dict[str, Any]:
    """A DFlash 1 config."""
    config = v2_config()
    config["architectures"] = ["DFlashDraftModel"]
    for key in ("conv_group_size", "conv_kernel_size", "selector_rank", "selector_top_k"):
        del config["dflash_config"][key]
    return changed(config, changes)


def changed(config: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with values set, or (None) removed, wherever the key stands; `nested__` puts a new key inside."""
    for name, value in changes.items():
        key = name.removeprefix("nested__")
        nested = name != key or key in config["dflash_config"]
        holder = config["dflash_config"] if nested else config
        if value is None:
            holder.pop(key, None)
        else:
            holder[key] = value
    return config


def target_config(**changes: Any) -> dict[str, Any]:
    """The config of a dense Qwen3 target that fits the drafts above."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "bos_token_id": 2000,
        "eos_token_id": 2002,
        "head_dim": 32,
        "hidden_size": 64,
        "intermediate_size": 96,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": 6,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "vocab_size": 2048,
    }
    return {key: value for key, value in {**config, **changes}.items() if value is not None}


def spec_of(config: dict[str, Any]) -> DraftSpec:
    """The spec of a config, without a target."""
    return spec_from_config(config, None, where="config.json").spec


def bf16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """BF16 bits, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def random_tensors(config: dict[str, Any], seed: int = 1, dtype: str = "BF16") -> dict[str, np.ndarray[Any, Any]]:
    """Random weights for every required tensor of `config`, under their checkpoint names."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for tensor in draft_tensors(spec_of(config)):
        if not tensor.optional:
            values = rng.standard_normal(tensor.shape, dtype=np.float32) * np.float32(0.05)
            if tensor.f32:
                values += 1
            tensors[tensor.source_name] = bf16(values) if dtype == "BF16" else values.astype(DTYPES[dtype])
    return tensors


def safetensors_bytes(
    tensors: Mapping[str, np.ndarray[Any, Any]], dtype: str = "BF16", metadata: Any = None, pad: int = 0
) -> bytes:
    """A safetensors file; `pad` spaces behind the header make its length odd."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    offset = 0
    for name, values in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode() + b" " * pad
    return struct.pack("<Q", len(text)) + text + b"".join(values.tobytes() for values in tensors.values())


def write_draft(
    folder: Path, config: dict[str, Any], tensors: Mapping[str, np.ndarray[Any, Any]] | None = None, dtype: str = "BF16"
) -> Path:
    """Write a draft's folder: config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = random_tensors(config, dtype=dtype) if tensors is None else tensors
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors, dtype))
    return folder


def write_target(folder: Path, config: dict[str, Any] | None = None) -> Path:
    """Write a target's folder: config.json and the small tokenizer (2,026 tokens)."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in MINI_TOKENIZER.iterdir():
        if file.suffix == ".json":
            shutil.copy(file, folder / file.name)
    (folder / "config.json").write_text(json.dumps(config or target_config()))
    return folder
