"""Q4_K_M at full size against scalar C, and what several types in one pass save; all in one run.

usage: python benchmarks/k_quants.py FOLDER [RUNS=5] [YARDSTICK.c]      (FOLDER: about 8 GB; inputs are made there)
YARDSTICK.c prints the million weights a second of one core in the arithmetic of a Q4_K scale search; it is built with
`cc -O2 -ffp-contract=off`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import inputs
from timing import alternate, print_table, verdict, warm

OURS = [sys.executable, "-m", "dflash_gguf"]
WEIGHTS = 1_171_080_448
CORES = 2


def build(source: Path, folder: Path) -> Path:
    """Compile the yardstick."""
    program = folder / "yardstick"
    subprocess.run(["cc", "-O2", "-ffp-contract=off", "-o", program, source, "-lm"], check=True)
    return program


def scalar_seconds(program: Path) -> float:
    """Seconds that the yardstick's arithmetic takes for all weights on `CORES` cores, each running it at once."""
    running = [subprocess.Popen([program], stdout=subprocess.PIPE, text=True) for _ in range(CORES)]
    return WEIGHTS / 1e6 / sum(float(process.communicate()[0]) for process in running)


def main() -> None:
    folder = Path(sys.argv[1])
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    source = Path(sys.argv[3]) if len(sys.argv) > 3 else inputs.SHARED / "tools/yardstick.c"
    full, small, target = inputs.make(folder)
    warm(full / "model.safetensors", target / "tokenizer.json")

    def convert(draft: Path, *types: str) -> list[str | Path]:
        kinds = [part for kind in types for part in ("--type", kind)]
        out = folder / f"{draft.name}-{{type}}.gguf"
        return [*OURS, "convert", draft, "--target", target, *kinds, "--force", "--out", out]

    program, scalars = build(source, folder), list[float]()
    timings = alternate(
        {
            "convert q4_k_m, few weights": convert(small, "q4_k_m"),
            "convert q4_k_m, full size": convert(full, "q4_k_m"),
            "convert bf16, full size": convert(full, "bf16"),
            "convert bf16 q8_0 q4_k_m, full size": convert(full, "bf16", "q8_0", "q4_k_m"),
        },
        runs,
        between=lambda: scalars.append(scalar_seconds(program)),
    )
    scalar = statistics.median(scalars)
    print(f"scalar C on {CORES} cores: {scalar:.1f} s for {WEIGHTS / 1e6:,.0f} M weights")
    print_table(timings)
    alone, copy = timings["convert q4_k_m, full size"], timings["convert bf16, full size"]
    added = alone.wall - timings["convert q4_k_m, few weights"].wall
    together = timings["convert bf16 q8_0 q4_k_m, full size"]
    peak = max(timing.peak for timing in timings.values())
    holds = [
        verdict("what full-size weights add to q4_k_m / scalar C on two cores", added / scalar, 0.25),
        verdict("three types in one pass / (1.3 q4_k_m + bf16)", together.wall / (1.3 * alone.wall + copy.wall), 1),
        verdict("peak memory, MB", peak, 300),
    ]
    print(f"q4_k_m at full size: CPU / wall {alone.cpu / alone.wall:.2f} of {CORES} cores")
    print("all hold" if all(holds) else "SOME DO NOT HOLD")


if __name__ == "__main__":
    main()
