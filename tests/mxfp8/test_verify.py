"""Verification: what passes, what each step can find, and that nothing unchecked is called checked."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders import random_tensors, v2_config, write_draft
from support.mxfp8_drafts import NESTED, mxfp8_tensors, write_mxfp8_draft
from support.processes import Run

from dflash_gguf.errors import UsageError
from dflash_gguf.mxfp8 import VerificationReport, verify_mxfp8, write_mxfp8

ALL = ("structure", "values", "checksums", "manifest", "tensors", "files")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A BF16 draft and the MXFP8 checkpoint written from it."""
    folder = tmp_path_factory.mktemp("made")
    draft = write_draft(folder / "Tiny-DFlash2", v2_config())
    (draft / "README.md").write_text("# hi\n")
    write_mxfp8(draft, folder / "out")
    return draft, folder / "out"


@pytest.fixture
def copy(made: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[1], tmp_path / "copy"))


def told(report: VerificationReport) -> str:
    return "\n".join(f"{finding.where}: {finding.message}" for finding in report.findings)


def test_with_its_source_everything_is_checked(made: tuple[Path, Path]) -> None:
    report = verify_mxfp8(made[1], made[0])
    assert report.passed, told(report)
    assert report.qualified_for == ALL
    assert report.not_checked == ()
    assert (report.tensors, report.quantized) == (56, 20)


def test_without_its_source_that_is_not_claimed(made: tuple[Path, Path]) -> None:
    report = verify_mxfp8(made[1])
    assert report.passed
    assert report.qualified_for == ALL[:4]
    assert dict(report.not_checked) == dict.fromkeys(ALL[4:], "no source is given (--source)")


def test_without_a_manifest(copy: Path, made: tuple[Path, Path]) -> None:
    (copy / "conversion_manifest.json").unlink()
    report = verify_mxfp8(copy, made[0])
    assert report.passed
    assert report.qualified_for == ("structure", "values", "tensors")
    reason = "there is no conversion_manifest.json that can be read"
    assert dict(report.not_checked) == dict.fromkeys(("checksums", "manifest", "files"), reason)


def test_another_tool_s_checkpoint_and_manifest(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Tensors in another order and without metadata; a manifest that holds what the published one is known to hold."""
    folder = write_mxfp8_draft(tmp_path / "theirs", v2_config(), quantization=None, hf_quant=NESTED)
    names = ("config.json", "hf_quant_config.json", "model.safetensors")
    sha256 = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    document = {"source": {"model": "lab/x", "revision": "b" * 40}, "output_files_sha256": sha256}
    (folder / "conversion_manifest.json").write_text(json.dumps(document))
    report = verify_mxfp8(folder)
    assert report.passed, told(report)
    assert report.qualified_for == ("structure", "values", "checksums")
    assert dict(report.not_checked)["manifest"] == "the manifest says nothing of the tensors"
    against = verify_mxfp8(folder, made[0])
    assert "is not what the source gives" in told(against)
    assert dict(against.not_checked)["files"] == "the manifest is another tool's"


def test_a_moved_source_is_still_the_source(made: tuple[Path, Path], tmp_path: Path) -> None:
    moved = Path(shutil.copytree(made[0], tmp_path / "elsewhere"))
    assert verify_mxfp8(made[1], moved).qualified_for == ALL


@pytest.mark.parametrize("seed", range(24))
def test_any_changed_byte_is_found(seed: int, copy: Path, made: tuple[Path, Path]) -> None:
    rng = random.Random(seed)
    path = rng.choice(sorted(copy.iterdir()))
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    report = verify_mxfp8(copy, made[0])
    assert not report.passed
    assert "files" not in report.qualified_for
    if path.name != "conversion_manifest.json":
        assert "checksums" not in report.qualified_for


def forge(copy: Path) -> None:
    """Let the manifest name the files as they are now."""
    document = json.loads((copy / "conversion_manifest.json").read_text())
    for name in document["output_files_sha256"]:
        document["output_files_sha256"][name] = hashlib.sha256((copy / name).read_bytes()).hexdigest()
    (copy / "conversion_manifest.json").write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("from_end", [1, 100, 20_000])
def test_tensors_changed_under_a_forged_manifest(from_end: int, copy: Path, made: tuple[Path, Path]) -> None:
    path = copy / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-from_end] ^= 1
    path.write_bytes(data)
    forge(copy)
    assert "checksums" in verify_mxfp8(copy).qualified_for
    report = verify_mxfp8(copy, made[0])
    assert "is not what the source gives" in told(report)
    assert "tensors" not in report.qualified_for


Edit = Callable[[dict[str, Any]], Any]
LIES: dict[str, tuple[Edit, str]] = {
    "coverage": (lambda d: d["coverage"].update(quantized=19), "coverage.quantized is 19, found 20"),
    "format": (lambda d: d["format"].update(block=[1, 16]), "format.block is [1, 16], found [1, 32]"),
    "exclude": (lambda d: d.update(exclude_modules=[]), "exclude_modules is [], the config says ['lm_head']"),
    "scale": (lambda d: d["weights"]["fc.weight"].update(scale_max=7), "weights.fc.weight.scale_max is 7, found"),
    "shape": (lambda d: d["weights"]["fc.weight"].update(shape=[1]), "weights.fc.weight.shape is [1], found [64, 192]"),
    "a weight less": (lambda d: d["weights"].pop("fc.weight"), "weights does not hold fc.weight"),
    "a weight more": (lambda d: d["weights"].update(x={}), "weights holds x, which is not quantized"),
    "a file more": (lambda d: d["output_files_sha256"].update(x="0"), "is in the manifest, but not there"),
    "a file less": (lambda d: d["output_files_sha256"].pop("README.md"), "is not in the manifest"),
    "no files": (lambda d: d.pop("output_files_sha256"), "has no output_files_sha256"),
}
#: lies that only the source gives away
LIES_OF_THE_SOURCE: dict[str, tuple[Edit, str]] = {
    "error": (lambda d: d["aggregate_error"].update(relative_rmse=0.0), "aggregate_error is not what the source gives"),
    "statistics": (lambda d: d["weights"]["fc.weight"].update(cosine=1.0), "weights is not what the source gives"),
    "source": (lambda d: d["source"]["files_sha256"].update(x="0"), "names other source files"),
    "a key more": (lambda d: d.update(note="x"), "note is not what the source gives"),
}


@pytest.mark.parametrize("name", [*LIES, *LIES_OF_THE_SOURCE])
def test_a_manifest_that_lies(name: str, copy: Path, made: tuple[Path, Path]) -> None:
    edit, complaint = {**LIES, **LIES_OF_THE_SOURCE}[name]
    path = copy / "conversion_manifest.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document, indent=2))
    alone = verify_mxfp8(copy)
    assert (complaint in told(alone)) == (name in LIES)
    assert alone.passed == (name not in LIES)
    against = verify_mxfp8(copy, made[0])
    assert complaint in told(against)
    assert "files" not in against.qualified_for


def test_a_file_that_was_added_or_removed(copy: Path) -> None:
    (copy / "extra.bin").write_bytes(b"x")
    (copy / "README.md").unlink()
    assert told(verify_mxfp8(copy)).count(": is ") == 2


def test_another_source(made: tuple[Path, Path], tmp_path: Path) -> None:
    tensors = random_tensors(v2_config())
    tensors["layers.1.mlp.up_proj.weight"][3, 3] ^= 0x8000
    tensors["norm.weight"][5] ^= 1
    report = verify_mxfp8(made[1], write_draft(tmp_path / "other", v2_config(), tensors))
    assert "layers.1.mlp.up_proj.weight: byte 195 is not what the source gives" in told(report)
    assert "norm.weight: byte 10 is not what the source gives" in told(report)
    assert report.qualified_for == ALL[:4]


def test_a_newer_revision_of_the_source(tmp_path: Path) -> None:
    folder = tmp_path / "models--lab--Tiny" / "snapshots"
    write_mxfp8(write_draft(folder / ("a" * 40), v2_config()), tmp_path / "out")
    newer = write_draft(folder / ("b" * 40), v2_config())
    assert f"was made from revision {'a' * 40}, the source is {'b' * 40}" in told(verify_mxfp8(tmp_path / "out", newer))


def test_a_source_of_another_shape(made: tuple[Path, Path], tmp_path: Path) -> None:
    report = verify_mxfp8(made[1], write_draft(tmp_path / "other", v2_config(intermediate_size=128)))
    assert "mlp.down_proj.weight: is F8_E4M3 [64, 96], the source gives F8_E4M3 [64, 128]" in told(report)
    assert dict(report.not_checked)["files"] == "its tensors are not those of the source"


def test_structure(tmp_path: Path) -> None:
    nested = {**NESTED, "quantization": {"quant_algo": "MXFP8"}, "producer": {"name": "x"}}
    folder = write_mxfp8_draft(tmp_path / "a", v2_config(), quantization=None, hf_quant=nested)
    found = told(verify_mxfp8(folder))
    assert "has no kv_cache_quant_algo, which vLLM wants" in found
    assert "has no exclude_modules, which vLLM wants" in found
    assert "names the producer 'x'" in found
    tensors = {k: ("F8_E8M0" if k.endswith("_scale") else d, v) for k, (d, v) in mxfp8_tensors(v2_config()).items()}
    assert "its scale is F8_E8M0: vLLM reads U8" in told(
        verify_mxfp8(write_mxfp8_draft(tmp_path / "b", v2_config(), tensors))
    )
    silent = write_mxfp8_draft(tmp_path / "c", v2_config(), quantization=None)
    assert "neither config.json nor hf_quant_config.json says that it is MXFP8" in told(verify_mxfp8(silent))
    excluded = {"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["fc"]}
    assert "fc.weight: is quantized although the config excludes it" in told(
        verify_mxfp8(write_mxfp8_draft(tmp_path / "d", v2_config(), quantization=excluded))
    )


def test_shards_of_one_matrix_that_differ(tmp_path: Path) -> None:
    from conversion.test_mxfp8_convert import keep_bf16

    tensors = mxfp8_tensors(v2_config())
    keep_bf16(tensors, "layers.0.self_attn.v_proj.weight")
    config = {"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["layers.0.self_attn.v_proj"]}
    report = verify_mxfp8(write_mxfp8_draft(tmp_path / "a", v2_config(), tensors, quantization=config))
    assert "vLLM reads q_proj, k_proj, v_proj as one matrix, and layers.0.self_attn.v_proj.weight is not" in told(
        report
    )


def test_values(tmp_path: Path) -> None:
    tensors = mxfp8_tensors(v2_config())
    tensors["fc.weight"][1][0, 5] = 0x7F
    tensors["layers.0.mlp.up_proj.weight_scale"][1][0, 0] = 255
    tensors["norm.weight"][1][1] = 0x7F80
    report = verify_mxfp8(write_mxfp8_draft(tmp_path / "a", v2_config(), tensors))
    assert [finding.message for finding in report.findings] == [
        "weight 5: code 0x7F is NaN",
        "weight 0: scale 255 is NaN",
        "weight 1 is NaN or infinite",
    ]
    assert report.qualified_for == ("structure",)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "conversion_manifest.json"])
@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b"\xff"])
def test_ruined_files_are_findings(name: str, text: bytes, copy: Path, made: tuple[Path, Path]) -> None:
    (copy / name).write_bytes(text)
    report = verify_mxfp8(copy, made[0])
    assert not report.passed
    assert "files" not in report.qualified_for


def test_a_bf16_draft_is_not_mxfp8(made: tuple[Path, Path], tmp_path: Path) -> None:
    report = verify_mxfp8(made[0])
    assert "no weight is quantized" in told(report)
    assert report.qualified_for == ()
    with pytest.raises(UsageError, match="no such folder"):
        verify_mxfp8(tmp_path / "nowhere")


def test_command_line(copy: Path, made: tuple[Path, Path], run: Run) -> None:
    done = run("mxfp8", "--verify", copy, "--source", made[0], "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema_version"], document["verdict"], document["qualified_for"]) == (1, "pass", list(ALL))
    (copy / "README.md").write_text("# ho\x1b[31m\n")
    failed = run("mxfp8", "--verify", copy)
    assert failed.returncode == 1
    assert "FAIL" in failed.stdout
    assert "README.md: has sha256" in failed.stdout
    assert "not checked, files: no source is given (--source)" in failed.stdout
    assert run("mxfp8", "--verify", copy, "--force").returncode == 2
    assert run("mxfp8", "--verify", copy / "none").returncode == 2


def test_scale_ranges_are_those_of_the_bytes(made: tuple[Path, Path]) -> None:
    document = json.loads((made[1] / "conversion_manifest.json").read_text())
    ranges = {(weight["scale_min"], weight["scale_max"]) for weight in document["weights"].values()}
    assert all(0 < low <= high < 127 for low, high in ranges)
    assert np.unique([list(pair) for pair in ranges]).size > 1


def test_check_comes_here(copy: Path, made: tuple[Path, Path], run: Run) -> None:
    done = run("check", copy, "--source", made[0], "--json")
    assert done.returncode == 0, done.stderr
    (file,) = json.loads(done.stdout)["files"]
    assert (file["verdict"], file["findings"]) == ("pass", [])
    assert file["passed"] == [f"mxfp8-{step}" for step in ALL]
    (copy / "README.md").write_text("# ho")
    failed = run("check", copy, "--json")
    assert failed.returncode == 1
    (finding,) = json.loads(failed.stdout)["files"][0]["findings"]
    assert (finding["rule"], finding["severity"]) == ("mxfp8-checksums", "error")
    assert "FAIL" in run("check", copy).stdout
    assert run("check", copy, "x.gguf").returncode == 2
    assert run("check", copy, "--format", "sarif").returncode == 2
