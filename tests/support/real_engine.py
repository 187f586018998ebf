"""Building a small target GGUF and asking the real engine, for tests marked `engine`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dflash_gguf.formats.gguf.emit import OutTensor, encode_header
from dflash_gguf.formats.gguf.types import GGMLType, ValueType
from dflash_gguf.formats.gguf.values import MetaValue
from dflash_gguf.model.tokenizer import load_tokenizer
from support.builders import bf16

SCRIPT = Path(__file__).with_name("engine_process.py")


def write_target_gguf(path: Path, folder: Path, config: dict[str, Any], seed: int = 3) -> Path:
    """A dense Qwen3 target with random weights and the tokenizer of `folder`."""
    hidden, ffn, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv, vocab = config["num_attention_heads"] * head, config["num_key_value_heads"] * head, config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, hidden), "output_norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        block = {
            "attn_norm": (hidden,),
            "attn_q": (q, hidden),
            "attn_k": (kv, hidden),
            "attn_v": (kv, hidden),
            "attn_output": (hidden, q),
            "attn_q_norm": (head,),
            "attn_k_norm": (head,),
            "ffn_norm": (hidden,),
            "ffn_gate": (ffn, hidden),
            "ffn_up": (ffn, hidden),
            "ffn_down": (hidden, ffn),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
    tokenizer = load_tokenizer(folder, vocab_size=vocab, mask_token_id=vocab - 1, pre=None)
    metadata = [
        ("general.architecture", MetaValue(ValueType.STRING, "qwen3")),
        *((f"qwen3.{key}", MetaValue(ValueType.UINT32, value)) for key, value in _sizes(config).items()),
        ("qwen3.attention.layer_norm_rms_epsilon", MetaValue(ValueType.FLOAT32, config["rms_norm_eps"])),
        ("qwen3.rope.freq_base", MetaValue(ValueType.FLOAT32, config["rope_theta"])),
        *((key, value) for key, value in tokenizer.key_values if not key.endswith("mask_token_id")),
    ]
    outs = [
        OutTensor(name, GGMLType.BF16 if len(shape) > 1 else GGMLType.F32, shape[::-1])
        for name, shape in shapes.items()
    ]
    header = encode_header(metadata, outs)
    rng = np.random.default_rng(seed)
    with path.open("wb") as file:
        file.write(header.data)
        for out, offset in zip(outs, header.offsets, strict=True):
            values = rng.standard_normal(out.n_weights, dtype=np.float32) * np.float32(0.15)
            file.seek(offset)
            file.write(bf16(values).tobytes() if out.type is GGMLType.BF16 else (values + 1).tobytes())
        file.truncate(header.file_size)
    return path


def _sizes(config: dict[str, Any]) -> dict[str, int]:
    return {
        "block_count": config["num_hidden_layers"],
        "context_length": 4096,
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
    }


def ask_engine(
    target: Path, draft: Path | None, prompts: Sequence[list[int] | dict[str, Any]], n_predict: int
) -> list[dict[str, Any]]:
    """Greedy text and timings for each prompt."""
    command = [sys.executable, SCRIPT, target, draft or "-", str(n_predict), *map(json.dumps, prompts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert answers, f"engine exited with {done.returncode}:\n{done.stderr[-3000:]}"
    result: list[dict[str, Any]] = json.loads(answers[-1].removeprefix("ANSWER "))
    return result
