"""MXFP8 checkpoints, written and read, against cp, all in one run.

usage: python benchmarks/mxfp8.py FOLDER [RUNS=5]      (FOLDER: about 12 GB; inputs are made there)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import inputs
from timing import alternate, print_table, run_once, verdict, warm

OURS = [sys.executable, "-m", "dflash_gguf"]


def main() -> None:
    folder = Path(sys.argv[1])
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    full, small, target = inputs.make(folder)

    def write(draft: Path) -> list[str | Path]:
        return [*OURS, "mxfp8", draft, folder / f"{draft.name}-mxfp8", "--force"]

    def read(draft: Path) -> list[str | Path]:
        out = folder / f"{draft.name}-mxfp8.gguf"
        return [*OURS, "convert", folder / f"{draft.name}-mxfp8", "--target", target, "--force", "--out", out]

    def copy(path: Path) -> list[str | Path]:
        return ["cp", path, folder / "copy"]

    for draft in (small, full):
        run_once(write(draft))
        run_once(read(draft))
    warm(full / "model.safetensors", folder / "full-mxfp8/model.safetensors", target / "tokenizer.json")
    verify = [*OURS, "mxfp8", "--verify", folder / "full-mxfp8", "--source", full]
    timings = alternate(
        {
            "mxfp8, few weights": write(small),
            "mxfp8, full size": write(full),
            "cp, the BF16 source": copy(full / "model.safetensors"),
            "convert bf16 from MXFP8, few weights": read(small),
            "convert bf16 from MXFP8, full size": read(full),
            "cp, the BF16 GGUF": copy(folder / "full-mxfp8.gguf"),
            "mxfp8 --verify --source, full size": verify,
        },
        runs,
    )
    print_table(timings)
    written = timings["mxfp8, full size"].wall - timings["mxfp8, few weights"].wall
    name = "convert bf16 from MXFP8"
    converted = timings[f"{name}, full size"].wall - timings[f"{name}, few weights"].wall
    holds = [
        verdict("what full-size weights add to mxfp8 / cp", written / timings["cp, the BF16 source"].wall, 3),
        verdict(f"what full-size weights add to {name} / cp", converted / timings["cp, the BF16 GGUF"].wall, 2),
        verdict("peak memory, MB", max(timing.peak for timing in timings.values()), 300),
    ]
    print(f"{os.cpu_count()} CPUs; {'all hold' if all(holds) else 'SOME DO NOT HOLD'}")


if __name__ == "__main__":
    main()
