"""Synthetic checkpoints of real dims for the benchmarks: random BF16 weights, the largest tokenizer at hand.

usage: python benchmarks/inputs.py FOLDER        (writes FOLDER/full and FOLDER/small, 2.4 GB in all)
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from dflash_gguf.model.config import spec_from_config
from dflash_gguf.model.tensors import DraftTensor, draft_tensors

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
CHUNK = 1 << 24

#: the dims of GLM-5.3-Flash-DFlash2, from its published config
CONFIG: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "dflash_config": {
        "block_size": 8,
        "conv_group_size": 16,
        "conv_kernel_size": 2,
        "mask_token_id": 154856,
        "selector_rank": 256,
        "selector_top_k": 16,
        "target_layer_ids": [5, 14, 24, 33, 42],
    },
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "is_causal": False,
    "layer_types": ["sliding_attention"] * 5,
    "max_position_embeddings": 1048576,
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 45,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "sliding_window": 2048,
    "use_sliding_window": True,
    "vocab_size": 154880,
}


def full_config() -> dict[str, Any]:
    """GLM-5.3-Flash's dims."""
    return json.loads(json.dumps(CONFIG))  # type: ignore[no-any-return]


def small_config() -> dict[str, Any]:
    """The same draft with hardly any weights: what it costs is start-up and tokenizer."""
    config = full_config()
    config |= {"hidden_size": 512, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    config["head_dim"] = 64
    config["dflash_config"]["selector_rank"] = 32
    return config


def write_draft(folder: Path, config: dict[str, Any]) -> None:
    """Write config.json and model.safetensors (random weights, a fixed seed)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = [t for t in draft_tensors(spec_from_config(config, None, where="config").spec) if not t.optional]
    header, offset = {}, 0
    for tensor in tensors:
        size = 2 * int(np.prod(tensor.shape))
        header[tensor.source_name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(5)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            _write_weights(file, tensor, rng)


def _write_weights(file: Any, tensor: DraftTensor, rng: np.random.Generator) -> None:
    total, scale = int(np.prod(tensor.shape)), np.float32(tensor.shape[-1] ** -0.5)
    for start in range(0, total, CHUNK):
        values = rng.standard_normal(min(CHUNK, total - start), dtype=np.float32) * scale
        values += np.float32(tensor.f32)
        bits = values.view(np.uint32)
        file.write(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes())


def write_target(folder: Path) -> None:
    """A target's config and the largest tokenizer at hand."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = SHARED / "tokenizers/qwen3.tar.xz"
    if archive.is_file():
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        for file in (folder / "qwen3").iterdir():
            shutil.move(file, folder / file.name)
        (folder / "qwen3").rmdir()
    else:
        print("no real tokenizer at hand: the small one is used, fixed costs are too low", file=sys.stderr)
        for file in (ROOT / "fixtures/tokenizers/mini").glob("*.json"):
            shutil.copy(file, folder / file.name)
    config = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 45, "vocab_size": CONFIG["vocab_size"]}
    (folder / "config.json").write_text(json.dumps(config))


def make(folder: Path) -> tuple[Path, Path, Path]:
    """(full draft, small draft, target), made where they are not there yet."""
    full, small, target = folder / "full", folder / "small", folder / "target"
    for path, config in ((full, full_config()), (small, small_config())):
        if not (path / "model.safetensors").is_file():
            write_draft(path, config)
    if not target.is_dir():
        write_target(target)
    return full, small, target


if __name__ == "__main__":
    make(Path(sys.argv[1]))
