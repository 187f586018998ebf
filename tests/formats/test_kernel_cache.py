"""Compiled kernels on disk: found again, never stale, never in the way. Each run is a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.builders import ROOT

PROGRAM = """
import hashlib, sys
import numpy as np
from dflash_gguf.formats.blocks import quantize, warm_up
from dflash_gguf.formats.gguf.types import BLOCK_SIZE, GGMLType

kinds = [GGMLType[name] for name in sys.argv[1:]]
warm_up(kinds, lambda: print("compiling"))
x = (np.random.default_rng(1).standard_normal(256 * 77) * 0.03).astype(np.float32)
for kind in kinds:
    per_block, size = BLOCK_SIZE[kind]
    out = np.empty(x.size // per_block * size, np.uint8)
    quantize(kind, x, out)
    print(kind.name, hashlib.sha256(out).hexdigest())
"""
KIND = "F16"  # the quickest to compile


def start(package: Path, *kinds: str, **variables: object) -> subprocess.Popen[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    environment = {**kept, "PYTHONPATH": str(package), **{key: str(value) for key, value in variables.items()}}
    command = [sys.executable, "-B", "-c", PROGRAM, *kinds]
    return subprocess.Popen(
        command, env=environment, cwd=package, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[bool, list[str]]:
    """Whether it compiled, and the digests."""
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert not errors
    lines = out.splitlines()
    return lines[0] == "compiling", [line for line in lines if line != "compiling"]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package that nothing can be cached in: `__pycache__` is a file."""
    folder = tmp_path / "installed"
    shutil.copytree(ROOT / "dflash_gguf", folder / "dflash_gguf", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "dflash_gguf/formats/blocks/__pycache__").touch()
    return folder


def test_a_read_only_installation_uses_the_users_cache(package: Path, tmp_path: Path) -> None:
    compiled, first = finish(start(package, KIND, XDG_CACHE_HOME=tmp_path / "cache"))
    assert compiled
    assert list((tmp_path / "cache").rglob("*.nbc"))
    again, second = finish(start(package, KIND, XDG_CACHE_HOME=tmp_path / "cache"))
    assert not again
    assert first == second


def test_no_cache_at_all_still_runs(package: Path) -> None:
    assert finish(start(package, KIND, XDG_CACHE_HOME="/dev/null/none", HOME="/dev/null"))[0]


@pytest.mark.slow
def test_two_processes_compile_at_once(package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    pair = [start(package, KIND, NUMBA_CACHE_DIR=cache) for _ in range(2)]
    results = [finish(process) for process in pair]
    assert results[0][1] == results[1][1]
    assert finish(start(package, KIND, NUMBA_CACHE_DIR=cache)) == (False, results[0][1])


@pytest.mark.slow
def test_a_change_anywhere_in_the_room_compiles_anew(package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    finish(start(package, KIND, NUMBA_CACHE_DIR=cache))
    helper = package / "dflash_gguf/formats/blocks/half.py"
    text = helper.read_text()
    assert "0x7C00" in text
    helper.write_text(text.replace("0x38800000", "0x38800001"))
    compiled, _ = finish(start(package, KIND, NUMBA_CACHE_DIR=cache))
    assert compiled


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "keep"), [("nbi", 0), ("nbi", 100), ("nbc", 0), ("nbc", 100)])
def test_a_truncated_cache_is_no_error(suffix: str, keep: int, package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    _, first = finish(start(package, KIND, NUMBA_CACHE_DIR=cache))
    files = list(cache.rglob(f"*.{suffix}"))
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:keep])
    assert finish(start(package, KIND, NUMBA_CACHE_DIR=cache)) == (True, first)


#: Pickles of what numba's index begins with, damaged: each raises something else when it is loaded.
DAMAGED = {
    "text": b"\x80\x05\x8c\x04\xff\xfe\xfd\xfc.",
    "module": b"\x80\x05cno_such_module\nx\n.",
    "attribute": b"\x80\x05cos\nno_such_name\n.",
    "extension": b"\x80\x05\x82\x8c.",
    "stack": b"\x80\x05R.",
    "memo": b"\x80\x05h\x07.",
    "call": b"\x80\x05K\x01)R.",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_cache_is_replaced(name: str, package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    _, first = finish(start(package, KIND, NUMBA_CACHE_DIR=cache))
    for file in cache.rglob("*.nbi"):
        file.write_bytes(DAMAGED[name])
    assert finish(start(package, KIND, NUMBA_CACHE_DIR=cache)) == (True, first)
    assert finish(start(package, KIND, NUMBA_CACHE_DIR=cache)) == (False, first)


def test_kernels_that_would_not_be_compiled_are_refused(package: Path) -> None:
    process = start(package, KIND, NUMBA_DISABLE_JIT=1)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "UsageError: NUMBA_DISABLE_JIT is set" in errors


@pytest.mark.slow
def test_same_bytes_on_a_generic_processor(package: Path, tmp_path: Path) -> None:
    kinds = ("F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_K", "Q5_K", "Q6_K")
    pair = [
        start(package, *kinds, NUMBA_CACHE_DIR=tmp_path / "cache", **variables)
        for variables in ({}, {"NUMBA_CPU_NAME": "generic"})
    ]
    here, generic = (finish(process) for process in pair)
    assert here == generic
