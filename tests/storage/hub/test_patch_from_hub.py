"""`patch` of a published file, with target and checkpoint on the Hub: what it fetches, and what comes out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.builders import random_tensors, safetensors_bytes, v2_config, write_target
from support.builders_gguf import Parts
from support.hub_runs import Here
from support.small_hub import SmallHub

from dflash_gguf.formats.gguf.types import ValueType

FILE = "dflash-Tiny-BF16.gguf"


@pytest.fixture
def published(hub: SmallHub, run_here: Here, tmp_path: Path) -> bytes:
    """A repository with a file that lacks what it had when it was converted; returns the file as it was."""
    config = v2_config()
    weights = safetensors_bytes(random_tensors(config))
    hub.repo("org/Tiny-DFlash2", {"config.json": json.dumps(config).encode(), "model.safetensors": weights})
    folder = write_target(tmp_path / "Tiny")
    shards = {f"model-{n:05d}-of-00002.safetensors": bytes(64) for n in (1, 2)}
    hub.repo("org/Tiny", {**{path.name: path.read_bytes() for path in folder.iterdir()}, **shards})
    assert run_here("convert", "org/Tiny-DFlash2", "--target", "org/Tiny").returncode == 0
    made = tmp_path / "work" / FILE
    parts, good = Parts.of(made), made.read_bytes()
    made.unlink()
    parts.remove("tokenizer.ggml.pre", "dflash.context_length").set("dflash.block_size", ValueType.UINT64, 8)
    hub.repo("org/drafts", {FILE: parts.encode()})
    hub.forget()
    return good


def test_what_was_published_is_mended(hub: SmallHub, run_here: Here, published: bytes, tmp_path: Path) -> None:
    options = ("--fix", "all", "--target", "org/Tiny", "--source", "org/Tiny-DFlash2")
    done = run_here("patch", f"hf://org/drafts/{FILE}", FILE, *options)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "work" / FILE).read_bytes() == published
    asked = {request.path.rpartition("/")[2] for request in hub.requests}
    assert not {name for name in asked if name.startswith("model-")}


def test_a_repository_is_not_changed_in_place(run_here: Here, published: bytes) -> None:
    done = run_here("patch", f"hf://org/drafts/{FILE}", "--in-place", "--remove", "general.name")
    assert done.returncode == 2
    assert "belongs to the Hub's cache" in done.stderr
    assert published


def test_a_repository_is_no_file(run_here: Here, published: bytes) -> None:
    done = run_here("patch", "org/drafts", "out.gguf")
    assert done.returncode == 2
    assert "names a repository, not a file" in done.stderr
    assert published
