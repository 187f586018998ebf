"""Timing whole commands: alternated runs, medians, peak memory of the process. Ratios within one run are the result."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: wall and CPU seconds, peak resident memory in MB."""

    wall: float
    cpu: float
    peak: float


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians of one command's runs."""

    wall: float
    cpu: float
    peak: float


def warm(*paths: Path) -> None:
    """Have files in the page cache, without holding them: a child's peak memory begins with its parent's."""
    for path in paths:
        with path.open("rb") as file:
            while file.read(1 << 22):
                pass


def run_once(command: Sequence[str | Path], before: Callable[[], None] = lambda: None) -> Sample:
    """Run a command to its end; raises RuntimeError when it fails."""
    before()
    start = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command}: exit {process.returncode}\n{errors.decode()}")
    return Sample(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def alternate(
    commands: Mapping[str, Sequence[str | Path]],
    runs: int,
    warmups: int = 1,
    between: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Run all commands in turn, `runs` times over (after `warmups` rounds that do not count), `between` each round."""
    samples: dict[str, list[Sample]] = {name: [] for name in commands}
    for number in range(warmups + runs):
        for name, command in commands.items():
            sample = run_once(command)
            if number >= warmups:
                samples[name].append(sample)
        between()
        print(f"round {number + 1} of {warmups + runs}", file=sys.stderr)
    return {
        name: Timing(
            statistics.median(s.wall for s in taken),
            statistics.median(s.cpu for s in taken),
            max(s.peak for s in taken),
        )
        for name, taken in samples.items()
    }


def print_table(timings: Mapping[str, Timing]) -> None:
    """Medians as a Markdown table."""
    print("| command | wall s | CPU s | peak MB |\n|---|---|---|---|")
    for name, timing in timings.items():
        print(f"| {name} | {timing.wall:.3f} | {timing.cpu:.3f} | {timing.peak:.0f} |")


def verdict(what: str, measured: float, bound: float) -> bool:
    """Print one comparison; True when it holds."""
    holds = measured <= bound
    print(f"- {what}: {measured:.2f} (bound {bound:g}) {'holds' if holds else 'DOES NOT HOLD'}")
    return holds
