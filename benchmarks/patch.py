"""patch, from file to file and in place, against cp followed by sync of the same bytes, all in one run.

usage: python benchmarks/patch.py FOLDER [RUNS=5]      (FOLDER: about 12 GB; inputs are made there)

cp alone only fills memory; patch has every byte on the disk, hashed and compared with the source, before it takes the
final name.
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
    files = {}
    for draft in (small, full):
        files[draft] = folder / f"{draft.name}-BF16.gguf"
        run_once([*OURS, "convert", draft, "--target", target, "--force", "--out", files[draft]])
        run_once(["cp", files[draft], folder / f"{draft.name}-patched.gguf"])
    number = iter(range(1 << 20))

    def patch(draft: Path) -> list[str | Path]:
        out = folder / f"{draft.name}-out.gguf"
        return [*OURS, "patch", files[draft], out, "--force", "--set", "general.description=str:" + "x" * 100]

    def in_place(draft: Path) -> list[str | Path]:
        name = folder / f"{draft.name}-patched.gguf"
        return [*OURS, "patch", name, "--in-place", "--set", f"dflash.context_length=u32:{next(number)}"]

    copied = folder / "copy"
    commands = {
        "patch IN OUT, few weights": patch(small),
        "patch IN OUT, full size": patch(full),
        "cp + sync": ["sh", "-c", 'cp "$0" "$1" && sync "$1"', files[full], copied],
        "cp": ["cp", files[full], copied],
        "patch --in-place, few weights": in_place(small),
        "patch --in-place, full size": in_place(full),
    }
    warm(files[full], files[small])
    timings = alternate(commands, runs, between=lambda: _next(commands, in_place(small), in_place(full)))
    print_table(timings)
    added = timings["patch IN OUT, full size"].wall - timings["patch IN OUT, few weights"].wall
    within = timings["patch --in-place, full size"].wall / timings["patch --in-place, few weights"].wall
    holds = [
        verdict("what full-size weights add to patch / (cp + sync)", added / timings["cp + sync"].wall, 1.5),
        verdict("patch --in-place, full size / few weights", within, 1.5),
        verdict("peak memory, MB", max(t.peak for name, t in timings.items() if name.startswith("patch")), 150),
    ]
    print(f"what full-size weights add to patch / cp that does not sync: {added / timings['cp'].wall:.2f}")
    print(f"{os.cpu_count()} CPUs; {'all hold' if all(holds) else 'SOME DO NOT HOLD'}")


def _next(commands: dict[str, list[str | Path]], *in_place: list[str | Path]) -> None:
    """Another value each round, so that there is something to change."""
    commands["patch --in-place, few weights"], commands["patch --in-place, full size"] = in_place


if __name__ == "__main__":
    main()
