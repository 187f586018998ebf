"""The sizes of a real draft, GLM-5.3-Flash-DFlash2, planned from a file of its dims that holds nothing."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders import spec_of, v2_config, write_target

from dflash_gguf.conversion import ConvertOptions, dry_run
from dflash_gguf.model.tensors import draft_tensors


def glm_config() -> dict[str, Any]:
    config = v2_config(selector_rank=256, selector_top_k=16, target_layer_ids=[5, 14, 24, 33, 42])
    config |= {"hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8}
    config |= {"head_dim": 128, "num_hidden_layers": 5, "num_target_layers": 45, "vocab_size": 154880}
    return config | {"layer_types": ["sliding_attention"] * 5, "sliding_window": 2048}


@pytest.fixture
def glm(tmp_path: Path) -> Path:
    """A sparse checkpoint: 2.34 GB that take no room."""
    folder = tmp_path / "GLM-5.3-Flash-DFlash2"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(glm_config()))
    header, offset = {}, 0
    for tensor in draft_tensors(spec_of(glm_config())):
        if not tensor.optional:
            end = offset + 2 * int(np.prod(tensor.shape))
            header[tensor.source_name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [offset, end]}
            offset = end
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    return folder


def test_tensor_data_of_each_type(glm: Path, tmp_path: Path) -> None:
    # published: BF16 2,342,589,440 B, Q8_0 1,244,902,400 B, Q4_K_M 687,584,256 B of tensor data, 81 tensors
    target = write_target(tmp_path / "GLM-5.3-Flash", {"architectures": ["Qwen3ForCausalLM"]})
    plan = dry_run(glm, target, ConvertOptions(types=("bf16", "q8_0", "q4_k_m"), out=str(tmp_path / "{type}.gguf")))
    sizes = [output.header.file_size - len(output.header.data) for output in plan.outputs]
    assert sizes == [2_342_589_440, 1_244_902_400, 687_584_256]
    assert {len(output.tensors) for output in plan.outputs} == {81}
    assert len({len(output.header.data) for output in plan.outputs}) == 1  # metadata do not depend on the type
    assert sum(tensor.out.n_weights for tensor in plan.outputs[0].tensors) == 1_171_080_448
