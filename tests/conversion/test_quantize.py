"""`quantize`, and what must not change a byte: threads, the CPU, the way a type was reached."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.builders import ROOT, random_tensors, v2_config, write_draft, write_target
from support.processes import Run

from dflash_gguf.conversion import ConvertOptions, convert, quantize_file
from dflash_gguf.errors import FormatError, ModelError, UsageError
from dflash_gguf.formats.gguf.emit import OutTensor, encode_header
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.formats.gguf.types import GGMLType
from dflash_gguf.storage.files import LocalFile

KINDS = ("q8_0", "q4_k_m", "q4_k_s", "q5_k_m", "q6_k", "q4_0", "q5_0", "f16")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A draft whose rows hold whole super-blocks, except for those of attn_output."""
    folder = tmp_path_factory.mktemp("pair")
    config = v2_config(hidden_size=256, intermediate_size=512, selector_rank=256)
    return write_draft(folder / "draft", config), write_target(
        folder / "target", {"architectures": ["Qwen3ForCausalLM"]}
    )


@pytest.mark.parametrize("kind", KINDS)
def test_convert_equals_convert_then_quantize(kind: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    convert(*pair, ConvertOptions(types=(kind, "bf16"), out=str(tmp_path / "{type}.gguf")))
    quantize_file(tmp_path / "BF16.gguf", tmp_path / "second.gguf", kind)
    assert (tmp_path / "second.gguf").read_bytes() == (tmp_path / f"{kind.upper()}.gguf").read_bytes()


def digests(pair: tuple[Path, Path], folder: Path, **options: object) -> dict[str, str]:
    kinds = [part for kind in KINDS for part in ("--type", kind)]
    command = [sys.executable, "-m", "dflash_gguf", "convert", str(pair[0]), "--target", str(pair[1])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(options.pop("env", None) or {})}  # type: ignore[dict-item]
    done = subprocess.run(  # type: ignore[call-overload]
        [*command, *kinds, "--out", "{type}", "--json"],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        **options,
    )
    return {file["type"]: file["sha256"] for file in json.loads(done.stdout)["files"]}


def test_one_thread_and_many_give_the_same_bytes(pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    one.mkdir()
    many.mkdir()
    cpu = min(os.sched_getaffinity(0))
    alone = digests(pair, one, preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
    assert alone == digests(pair, many)
    assert hashlib.sha256((many / "Q6_K").read_bytes()).hexdigest() == alone["Q6_K"]


@pytest.mark.slow
def test_a_generic_cpu_gives_the_same_bytes(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "generic").mkdir()
    generic = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert digests(pair, tmp_path / "here") == digests(pair, tmp_path / "generic", env=generic)


def test_what_cannot_be_quantized_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    convert(*pair, ConvertOptions(types=("q8_0",), out=str(tmp_path / "q8.gguf")))
    with pytest.raises(ModelError, match="is Q8_0 already"):
        quantize_file(tmp_path / "q8.gguf", tmp_path / "x.gguf", "q4_k_m")
    with pytest.raises(UsageError, match="is the input"):
        quantize_file(tmp_path / "q8.gguf", tmp_path / "q8.gguf", "q4_k_m", force=True)
    with pytest.raises(UsageError, match="unknown type 'q9'"):
        quantize_file(tmp_path / "q8.gguf", tmp_path / "x.gguf", "q9")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "q8.gguf").read_bytes()[:-40])
    with pytest.raises(FormatError, match="bytes are missing"):
        quantize_file(tmp_path / "cut.gguf", tmp_path / "x.gguf", "q4_k_m")
    assert not (tmp_path / "x.gguf").exists()


def test_tensors_that_no_draft_has_are_refused_or_kept(draft: Path, target: Path, tmp_path: Path) -> None:
    convert(draft, target, ConvertOptions(out=str(tmp_path / "a.gguf")))
    with LocalFile(tmp_path / "a.gguf") as source:
        metadata = list(scan_header(source).metadata.items())

    def quantized(*tensors: OutTensor) -> None:
        header = encode_header(metadata, tensors)
        (tmp_path / "b.gguf").write_bytes(header.data + bytes(header.file_size - len(header.data)))
        quantize_file(tmp_path / "b.gguf", tmp_path / "c.gguf", "q8_0", force=True)

    with pytest.raises(ModelError, match="holds no tensors"):
        quantized()
    with pytest.raises(ModelError, match="scalar: has no dims"):
        quantized(OutTensor("scalar", GGMLType.F32, ()))
    odd = "not \udcff UTF-8.weight"
    quantized(OutTensor(odd, GGMLType.F32, (32, 2, 3, 4)))
    with LocalFile(tmp_path / "c.gguf") as source:
        assert scan_header(source).tensors[odd].type is GGMLType.Q8_0


def test_command_line(draft: Path, target: Path, run: Run, tmp_path: Path) -> None:
    work = tmp_path / "work"
    assert run("convert", draft, "--target", target, "--out", "b.gguf").returncode == 0
    plan = json.loads(run("quantize", "b.gguf", "q.gguf", "--type", "Q8_0", "--dry-run", "--json").stdout)
    assert not (work / "q.gguf").exists()
    done = run("quantize", "b.gguf", "q.gguf", "--type", "q8_0", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"][0]["bytes"] == plan["files"][0]["bytes"] == (work / "q.gguf").stat().st_size
    again = run("quantize", "b.gguf", "q.gguf", "--type", "q8_0")
    assert (again.returncode, again.stderr) == (2, "error: q.gguf: exists already (--force replaces it)\n")
    refused = run("quantize", "b.gguf", "r.gguf", "--type", "q4_k_m", "--no-fallback")
    assert refused.returncode == 1
    assert "fc.weight: a row of 192 is not a multiple of Q4_K's block of 256" in refused.stderr


def test_a_nan_in_a_gguf_names_tensor_and_position(draft: Path, target: Path, tmp_path: Path) -> None:
    convert(draft, target, ConvertOptions(out=str(tmp_path / "b.gguf")))
    raw = random_tensors(v2_config())["fc.weight"].tobytes()
    data = bytearray((tmp_path / "b.gguf").read_bytes())
    at = data.index(raw)
    data[at + 200 : at + 202] = b"\xc0\x7f"
    (tmp_path / "b.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=r"fc\.weight: weight 100 is NaN or infinite"):
        quantize_file(tmp_path / "b.gguf", tmp_path / "q.gguf", "q8_0")
