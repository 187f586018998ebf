"""The commands as functions of the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.executor_fixture import FIXTURES

import dflash_gguf
from dflash_gguf.comparison import Inputs
from dflash_gguf.model.prompts import Prompt


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


def test_paths_may_be_strings(tmp_path: Path) -> None:
    """As in the other functions: what is typed into a notebook is a string."""
    pair, file = str(FIXTURES / "target"), str(tmp_path / "dflash-fixture-BF16.gguf")
    dflash_gguf.convert(str(FIXTURES / "draft"), pair, out=file)
    drafted = dflash_gguf.draft(file, pair, "random:4", 1, trace=str(tmp_path / "trace.npz"))
    assert drafted.proposal.tokens == dflash_gguf.draft(Path(file), Path(pair), "random:4", 1).proposal.tokens
    assert (tmp_path / "trace.npz").is_file()
    said = [
        dflash_gguf.generate(kind(file), kind(pair), "Tell", 8, tokenizer=kind(pair), trace=kind(tmp_path / name))
        for kind, name in ((str, "a.npz"), (Path, "b.npz"))
    ]
    assert said[0].text == said[1].text
    assert dflash_gguf.compare(file, str(FIXTURES / "draft"), pair, Inputs(features="random:4")).equal
    prompts = Inputs((Prompt("Tell", repetitive=False),), n_predict=8)
    assert dflash_gguf.compare(file, file, pair, prompts, tokenizer=pair).equal
    written = dflash_gguf.write_mxfp8(str(FIXTURES / "draft"), str(tmp_path / "mxfp8"))
    assert dflash_gguf.verify_mxfp8(str(written.folder), str(FIXTURES / "draft")).passed


def test_bench_takes_strings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from dflash_gguf.engine import BenchSettings, api

    monkeypatch.setattr(api, "require_engine", lambda: "0")
    for drafts in ("none.gguf", ["none.gguf"], [Path("none.gguf")]):
        with pytest.raises(dflash_gguf.DflashError, match=r"target\.gguf: no such file"):
            dflash_gguf.bench(str(tmp_path / "target.gguf"), drafts, (), BenchSettings())
