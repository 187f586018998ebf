"""Conversion and inspection against cp, python and gguf-inspect, all in one run.

usage: python benchmarks/convert.py FOLDER [RUNS=5]      (FOLDER: about 12 GB; inputs are made there)
needs: pip install gguf-inspect==0.1.0
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import inputs
from timing import alternate, print_table, verdict, warm

OURS = [sys.executable, "-m", "dflash_gguf"]


def main() -> None:
    folder = Path(sys.argv[1])
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    full, small, target = inputs.make(folder)
    warm(full / "model.safetensors", target / "tokenizer.json")

    def convert(draft: Path, *types: str) -> list[str | Path]:
        kinds = [part for kind in types for part in ("--type", kind)]
        out = folder / f"{draft.name}-{{type}}.gguf"
        return [*OURS, "convert", draft, "--target", target, *kinds, "--force", "--out", out]

    copy = f"cp '{full}/model.safetensors' '{folder}/copy' && sync '{folder}/copy'"
    timings = alternate(
        {
            "import numpy": [sys.executable, "-c", "import numpy"],
            "convert bf16, few weights": convert(small, "bf16"),
            "convert q8_0, few weights": convert(small, "q8_0"),
            "convert both, few weights": convert(small, "bf16", "q8_0"),
            "cp + sync, 2.34 GB": ["sh", "-c", copy],
            "convert bf16, full size": convert(full, "bf16"),
            "convert q8_0, full size": convert(full, "q8_0"),
            "convert both, full size": convert(full, "bf16", "q8_0"),
        },
        runs,
    )
    file = folder / "full-BF16.gguf"
    scripts = Path(sys.executable).parent
    quick = alternate(
        {
            "gguf-inspect": [scripts / "gguf-inspect", file],
            "inspect": [*OURS, "inspect", file],
            "inspect --json": [*OURS, "inspect", "--json", file],
            "--help": [*OURS, "--help"],
        },
        2 * runs,
        warmups=2,
    )
    print_table({**timings, **quick})
    numpy, cp = timings["import numpy"].wall, timings["cp + sync, 2.34 GB"].wall
    holds = [verdict("fixed cost of bf16 / import numpy", timings["convert bf16, few weights"].wall / numpy, 12)]
    kernels = timings["convert q8_0, few weights"].wall / numpy
    print(f"- fixed cost of q8_0 / import numpy: {kernels:.2f} (numba and its cached kernels are loaded)")
    for kind, bound in (("bf16", 1.5), ("q8_0", 2.0), ("both", 3.0)):
        added = timings[f"convert {kind}, full size"].wall - timings[f"convert {kind}, few weights"].wall
        holds.append(verdict(f"what full-size weights add to {kind} / (cp + sync)", added / cp, bound))
    peak = max(timing.peak for name, timing in timings.items() if name.startswith("convert"))
    holds.append(verdict("peak memory of convert, MB", peak, 250))
    base = quick["gguf-inspect"].wall
    for name, bound in (("inspect", 1.5), ("inspect --json", 1.5), ("--help", 1.2)):
        holds.append(verdict(f"{name} / gguf-inspect", quick[name].wall / base, bound))
    holds.append(verdict("peak memory of inspect, MB", max(quick[n].peak for n in ("inspect", "inspect --json")), 60))
    print(f"{os.cpu_count()} CPUs; {'all hold' if all(holds) else 'SOME DO NOT HOLD'}")


if __name__ == "__main__":
    main()
