"""Quantization kernels in M weights/s beside two things in C: the yardstick, and ggml where a build of it is at hand.

usage: python benchmarks/kernels.py [ROUNDS]

The yardstick (../shared/tools/yardstick.c, or DFLASH_SHARED) is the arithmetic of Q4_K's search as scalar C. ggml is
looked for in DFLASH_GGML_LIB, then in the package xllamacpp. All contenders take turns; the figures are medians.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import inputs
import numpy as np
from numpy.typing import NDArray
from timing import verdict

from dflash_gguf.formats.blocks import QUANTIZABLE, mxfp8, quantize, warm_up
from dflash_gguf.formats.gguf.types import GGMLType, tensor_bytes

SHARED = Path(os.environ.get("DFLASH_SHARED", inputs.SHARED))
TILE = 1 << 20  # weights, as a conversion's
TILES = 4
F32 = NDArray[np.float32]
Run = Callable[[F32], Any]


def ours(ggml_type: GGMLType, source: F32) -> None:
    quantize(ggml_type, source, np.empty(tensor_bytes(ggml_type, source.size), np.uint8))


def our_mxfp8(source: F32) -> None:
    mxfp8.encode(source, np.empty(source.size, np.uint8), np.empty(source.size // mxfp8.BLOCK, np.uint8))


def find_ggml() -> ctypes.CDLL | None:
    path = os.environ.get("DFLASH_GGML_LIB")
    found = importlib.util.find_spec("xllamacpp")
    if path is None and found and found.submodule_search_locations:
        path = str(Path(found.submodule_search_locations[0]) / "xllamacpp.abi3.so")
    library = ctypes.CDLL(path) if path and Path(path).exists() else None
    return library if hasattr(library, "quantize_row_q4_K_ref") else None


def ggmls(library: ctypes.CDLL, ggml_type: GGMLType, source: F32) -> None:
    floats = {GGMLType.F16: "ggml_fp32_to_fp16_row", GGMLType.BF16: "ggml_fp32_to_bf16_row_ref"}
    name = floats.get(ggml_type, f"quantize_row_{ggml_type.name.replace('Q', 'q')}_ref")
    out = np.empty(tensor_bytes(ggml_type, source.size), np.uint8)
    function = getattr(library, name)
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    function(source.ctypes.data, out.ctypes.data, source.size)


def build_yardstick(folder: Path) -> Path | None:
    source, program = SHARED / "tools/yardstick.c", folder / "yardstick"
    if not source.exists():
        return None
    subprocess.run(["cc", "-O2", "-ffp-contract=off", "-o", program, source, "-lm"], check=True)
    return program


def speed(run: Run, tiles: list[F32], threads: int) -> float:
    """M weights/s over all tiles."""
    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        list(pool.map(run, tiles))
        return sum(tile.size for tile in tiles) / (time.perf_counter() - start) / 1e6


def measure(contenders: dict[tuple[str, str], Callable[[], float]], rounds: int) -> dict[tuple[str, str], float]:
    """Medians of all contenders, which take turns."""
    results: dict[tuple[str, str], list[float]] = {key: [] for key in contenders}
    for number in range(rounds):
        for key, run in contenders.items():
            results[key].append(run())
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return {key: statistics.median(values) for key, values in results.items()}


def contenders_of(library: ctypes.CDLL | None, yardstick: Path | None) -> dict[tuple[str, str], Callable[[], float]]:
    rng = np.random.default_rng(1)
    tiles = [(rng.standard_normal(TILE) * 0.03).astype(np.float32) for _ in range(TILES)]
    runs: dict[str, Run] = {kind.name: partial(ours, kind) for kind in sorted(QUANTIZABLE - {GGMLType.F32})}
    runs["MXFP8"] = our_mxfp8
    contenders: dict[tuple[str, str], Callable[[], float]] = {}
    if yardstick:
        contenders["yardstick", "C"] = lambda: float(subprocess.check_output([yardstick]))
    for name, run in runs.items():
        contenders[name, "one"] = partial(speed, run, tiles, 1)
        contenders[name, "two"] = partial(speed, run, tiles, 2)
        if library and name != "MXFP8":
            contenders[name, "C"] = partial(speed, partial(ggmls, library, GGMLType[name]), tiles, 1)
    return contenders


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    warm_up(QUANTIZABLE, lambda: print("compiling kernels …", file=sys.stderr))
    library = find_ggml()
    with tempfile.TemporaryDirectory() as folder:
        medians = measure(contenders_of(library, build_yardstick(Path(folder))), rounds)
    print("| type | one core | two threads | ggml's C, one core | times ggml's |\n|---|---|---|---|---|")
    for name in (name for name, column in medians if column == "one"):
        one, two, other = (medians.get((name, column)) for column in ("one", "two", "C"))
        beside = f"{other:.1f} | {one / other:.1f}" if one and other else "– | –"
        print(f"| {name} | {one:.0f} | {two:.0f} | {beside} |")
    yardstick = medians.get(("yardstick", "C"))
    if yardstick:
        print(f"\nThe yardstick on one core: {yardstick:.1f} M weights/s.")
        verdict("Q4_K: time of the yardstick's that ours takes", yardstick / medians["Q4_K", "one"], 0.25)
    if library:
        verdict("Q6_K: time of ggml's that ours takes", medians["Q6_K", "C"] / medians["Q6_K", "one"], 1 / 3)


if __name__ == "__main__":
    main()
