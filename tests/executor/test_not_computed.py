"""Drafts that llama.cpp runs and the numpy executor does not: one line that names the tensor and what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.builders import random_tensors, v2_config, write_draft
from support.builders_gguf import Parts
from support.processes import Run
from support.vocabulary_tensors import OFFSETS, reduced

from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.formats.gguf.types import GGMLType

SAYS = "is not computed by the numpy executor (`dflash-gguf bench` runs its GGUF in the real engine"


@pytest.fixture
def drafts(target: Path, tmp_path: Path) -> dict[str, Path]:
    """A checkpoint and its GGUF with a reduced vocabulary; GGUFs with other tensors that are optional in llama.cpp."""
    folder = reduced(tmp_path / "reduced", OFFSETS)
    file = tmp_path / "d2t.gguf"
    convert(folder, target, ConvertOptions(out=str(file)))
    found = {"reduced": folder, "d2t": file}
    plain = write_draft(tmp_path / "Tiny-DFlash2", v2_config(), random_tensors(v2_config()))
    convert(plain, target, ConvertOptions(out=str(tmp_path / "plain.gguf")))
    for name, count in (("rope_freqs.weight", 16), ("fc.scale", 1), ("blk.1.post_ffw_norm.weight", 64)):
        parts = Parts.of(tmp_path / "plain.gguf")
        parts.tensors[name] = (GGMLType.F32, (count,), np.ones(count, np.float32).tobytes())
        found[name] = tmp_path / f"{name}.gguf"
        found[name].write_bytes(parts.encode())
    return found


@pytest.mark.slow
def test_each_is_told_in_one_line(run: Run, drafts: dict[str, Path], target: Path) -> None:
    for name, path in drafts.items():
        commands = [["compare", path, path, "--target", target]]
        if path.is_file():
            commands += [
                ["draft", path, "--target", target, "--features", "random:4", "--anchor", "1"],
                ["generate", path, "--target", target, "--prompt", "x"],
            ]
        for command in commands:
            done = run(*command)
            tensor = "d2t" if name == "reduced" else name
            assert done.returncode == 1, done.stderr
            assert done.stderr.startswith(f"error: {path}: {tensor}: a draft with "), done.stderr
            assert SAYS in done.stderr
            assert done.stderr.count("\n") == 1
