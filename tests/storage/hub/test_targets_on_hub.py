"""Targets on the Hub that are more than a tokenizer: their embedding, or a GGUF; and no byte more than that takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.builders import random_tensors, safetensors_bytes, target_config, v2_config, write_target
from support.processes import Run
from support.real_engine import write_target_gguf
from support.small_hub import SmallHub
from support.vocabulary_tensors import EMBED, HEAD

from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.storage.files import LocalFile

INDEX = "model.safetensors.index.json"


@pytest.fixture
def draft(hub: SmallHub) -> None:
    config = v2_config()
    files = {"config.json": json.dumps(config).encode(), "model.safetensors": safetensors_bytes(random_tensors(config))}
    hub.repo("org/Draft", files)


@pytest.mark.usefixtures("draft")
def test_the_targets_embedding_is_read_where_it_is(hub: SmallHub, run_hub: Run, tmp_path: Path) -> None:
    folder = write_target(tmp_path / "t", target_config(tie_word_embeddings=False))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    shards = {
        "a.safetensors": {"model.embed_tokens.weight": EMBED},
        "b.safetensors": {"lm_head.weight": HEAD},
        "c.safetensors": {"model.norm.weight": EMBED[0]},
    }
    files |= {name: safetensors_bytes(tensors) for name, tensors in shards.items()}
    weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    files[INDEX] = json.dumps({"weight_map": weight_map}).encode()
    hub.repo("org/Target", files)
    result = run_hub("convert", "org/Draft", "--target", "org/Target", "--embed", "from-target", "--out", "o.gguf")
    assert result.returncode == 0, result.stderr
    with LocalFile(tmp_path / "work/o.gguf") as file:
        tensors = scan_header(file).tensors
        for name, expected in (("token_embd.weight", EMBED), ("output.weight", HEAD)):
            assert file.read(tensors[name].offset, tensors[name].size) == expected.tobytes()
    assert not hub.asked(match="c.safetensors")


@pytest.mark.usefixtures("draft")
def test_of_a_gguf_only_the_header_is_read(hub: SmallHub, run_hub: Run, tmp_path: Path) -> None:
    path = write_target_gguf(tmp_path / "t.gguf", write_target(tmp_path / "t"), target_config())
    hub.repo("org/Target-GGUF", {"Tiny-Q8_0.gguf": path.read_bytes() + bytes(8 << 20)})
    target = "hf://org/Target-GGUF/Tiny-Q8_0.gguf"
    result = run_hub("convert", "org/Draft", "--target", target, "--out", "o.gguf")
    assert result.returncode == 0, result.stderr
    with LocalFile(tmp_path / "work/o.gguf") as file:
        metadata = scan_header(file).metadata
    assert metadata["general.base_model.0.name"].value == "Tiny"
    assert metadata["tokenizer.ggml.pre"].value == "qwen2"
    assert hub.sent() < 2 << 20
    refused = run_hub("convert", "org/Draft", "--target", target, "--embed", "from-target", "--out", "p.gguf")
    assert refused.returncode == 1
    assert "the target is a GGUF" in refused.stderr
