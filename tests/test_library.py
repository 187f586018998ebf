"""The commands as functions of the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dflash_gguf


def test_convert_inspect_quantize_check_diff(draft: Path, target: Path, tmp_path: Path) -> None:
    done = dflash_gguf.convert(draft, target, types=["bf16"], out=tmp_path / "dflash-Tiny-{type}.gguf")
    file = done.plan.outputs[0].path
    assert dflash_gguf.inspect(file)["draft"]["max_draft"] == 7
    dflash_gguf.quantize(file, tmp_path / "dflash-Tiny-Q8_0.gguf", "q8_0")
    (report,) = dflash_gguf.check([file], target=target, source=draft, data=True).files
    assert report.verdict == "pass", report.findings
    assert {tensor.name for tensor in dflash_gguf.diff(file, tmp_path / "dflash-Tiny-Q8_0.gguf").tensors}


def test_layer_ids_are_the_configs(draft: Path, target: Path, tmp_path: Path) -> None:
    done = dflash_gguf.convert(draft, target, target_layers=[0, 1, 3], out=tmp_path / "x.gguf")
    assert dflash_gguf.inspect(done.plan.outputs[0].path)["draft"]["target_layers"] == [1, 2, 4]
    with pytest.raises(dflash_gguf.DflashError, match="--target-layers contradicts"):
        dflash_gguf.convert(draft, target, target_layers=[1, 2, 4], out=tmp_path / "y.gguf")
    with pytest.raises(dflash_gguf.DflashError, match="no increasing list"):
        dflash_gguf.convert(draft, target, target_layers=[2, 1], out=tmp_path / "y.gguf")


def test_every_name_is_there_and_importing_costs_nothing() -> None:
    for name in dflash_gguf.__all__:
        assert callable(getattr(dflash_gguf, name))
    code = "import sys, dflash_gguf; assert not {'numpy', 'typer', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
