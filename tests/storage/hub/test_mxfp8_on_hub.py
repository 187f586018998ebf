"""MXFP8 checkpoints from and of the Hub."""

from __future__ import annotations

import json
from pathlib import Path

from support.builders import random_tensors, safetensors_bytes, v2_config, write_target
from support.hub_runs import Here
from support.mxfp8_drafts import NESTED, mxfp8_tensors, write_mxfp8_draft
from support.small_hub import SmallHub


def test_write_from_a_repository_and_verify(hub: SmallHub, run_here: Here, tmp_path: Path) -> None:
    files = {
        "config.json": json.dumps(v2_config()).encode(),
        "model.safetensors": safetensors_bytes(random_tensors(v2_config())),
        "README.md": b"# hi\n",
        "assets/x.png": b"x",
        ".gitattributes": b"hidden",
    }
    repo = hub.repo("org/Draft", files)
    done = run_here("mxfp8", "org/Draft", "out")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "work/out"
    source = json.loads((out / "conversion_manifest.json").read_text())["source"]
    assert (source["model"], source["revision"]) == ("org/Draft", repo.refs["main"])
    assert source["files_sha256"].keys() == files.keys() - {".gitattributes"}
    assert (out / "assets/x.png").read_bytes() == b"x"
    verified = run_here("mxfp8", "--verify", "out", "--source", "org/Draft", "--json")
    assert json.loads(verified.stdout)["not_checked"] == []
    assert verified.returncode == 0
    hub.repo("org/Draft-MXFP8", {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()})
    published = run_here("mxfp8", "--verify", "org/Draft-MXFP8", "--source", "hf://org/Draft")
    assert published.returncode == 0, published.stdout + published.stderr
    assert "not checked" not in published.stdout


def test_convert_reads_hf_quant_config(hub: SmallHub, run_here: Here, tmp_path: Path) -> None:
    """A matrix that only hf_quant_config.json excludes."""
    from conversion.test_mxfp8_convert import keep_bf16

    tensors = mxfp8_tensors(v2_config())
    keep_bf16(tensors, "fc.weight")
    nested = {**NESTED, "quantization": {"quant_algo": "MXFP8", "kv_cache_quant_algo": None, "exclude_modules": ["fc"]}}
    draft = write_mxfp8_draft(tmp_path / "d", v2_config(), tensors, quantization=None, hf_quant=nested)
    hub.repo("org/Draft-MXFP8", {path.name: path.read_bytes() for path in draft.iterdir()})
    done = run_here("convert", "org/Draft-MXFP8", "--target", write_target(tmp_path / "t"))
    assert done.returncode == 0, done.stderr
