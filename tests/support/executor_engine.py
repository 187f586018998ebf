"""The fixture's target as GGUF, and blocks of the real engine read off its counters."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from dflash_gguf.executor.loading import open_target
from dflash_gguf.executor.weights import Budget
from dflash_gguf.formats.gguf.emit import OutTensor, encode_header
from dflash_gguf.formats.gguf.types import GGMLType, ValueType
from dflash_gguf.formats.gguf.values import MetaValue
from dflash_gguf.model.tokenizer import load_tokenizer
from support.executor_fixture import FIXTURES


def target_gguf(path: Path) -> Path:
    """The fixture's Qwen3 target in F32, as llama.cpp reads it."""
    folder = FIXTURES / "target"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = load_tokenizer(folder, vocab_size=config["vocab_size"], mask_token_id=config["vocab_size"] - 1)
    with ExitStack() as files:
        weights = open_target(folder, Budget(1 << 30), files, row_by_row=False).weights
        tensors = {name: weights.vector(name) for name in weights.source.shapes}
    sizes = {
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.value_length": "head_dim",
    }
    metadata = [
        ("general.architecture", MetaValue(ValueType.STRING, "qwen3")),
        *((f"qwen3.{key}", MetaValue(ValueType.UINT32, config[name])) for key, name in sizes.items()),
        ("qwen3.attention.layer_norm_rms_epsilon", MetaValue(ValueType.FLOAT32, config["rms_norm_eps"])),
        ("qwen3.rope.freq_base", MetaValue(ValueType.FLOAT32, config["rope_parameters"]["rope_theta"])),
        *((key, value) for key, value in tokenizer.key_values if not key.endswith("mask_token_id")),
    ]
    header = encode_header(metadata, [OutTensor(n, GGMLType.F32, a.shape[::-1]) for n, a in tensors.items()])
    with path.open("wb") as file:
        file.write(header.data)
        for array, offset in zip(tensors.values(), header.offsets, strict=True):
            file.seek(offset)
            file.write(np.ascontiguousarray(array).tobytes())
        file.truncate(header.file_size)
    return path
