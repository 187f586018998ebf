"""Run the command line and end it at a step of its own work, whatever the machine's speed.

A step is a call that changes what stands on the disk. Their number and order are the same in every run from the same
start; only which bytes a `pwrite` writes depends on the threads. A run is ended just before a step, or amid it if it
writes. `steps_of` and `end_at` start such a run:

    python killed.py trace FILE ARGUMENTS…   run, and write the steps to FILE as JSON
    python killed.py SIGNAL STEP ARGUMENTS…  send itself SIGNAL at step number STEP
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil  # noqa: F401 - looks at once which functions of `os` take descriptors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_gguf.cli import main
from dflash_gguf.storage import folder
from support.builders import ROOT
from support.processes import heed_signals

#: name of the call, and the paths it is about
Step = tuple[str, list[str]]
Arguments = tuple[str | Path, ...]
_NAMING = {"rename", "link", "exchange"}
_WITHOUT_PATH = {"copy_file_range", "flock", "fsync", "unlink", "rmdir"}  # or one relative to a descriptor


@dataclass(frozen=True)
class Steps:
    """The steps of a run that writes `out`: those before `touched` leave its name alone, after `named` it is new."""

    steps: list[Step]
    touched: int
    named: int

    def some(self, seed: int) -> list[int]:
        """The first that writes, another, the last, and those that give the name, with the next one after it."""
        written = [number for number, (name, _) in enumerate(self.steps) if name == "pwrite"]
        between = random.Random(seed).choice(range(written[0] + 1, written[-1]))
        after = min(self.named + 1, len(self.steps) - 1)
        return sorted({written[0], between, written[-1], self.touched, self.named, after})


def steps_of(arguments: Arguments, out: Path, folder: Path) -> Steps:
    """Run to the end, and tell the steps; `folder` is for a file of ours."""
    done = _run("trace", folder / "steps.json", *arguments)
    assert done.returncode == 0, done.stderr
    steps = json.loads((folder / "steps.json").read_text())
    about = [n for n, (name, paths) in enumerate(steps) if name in _NAMING and str(out) in paths]
    return Steps(steps, about[0], about[-1])


def end_at(step: int, kind: signal.Signals, arguments: Arguments) -> None:
    """Run, end it, and look at its exit code and at what it says."""
    done = _run(int(kind), step, *arguments)
    if kind is signal.SIGKILL:
        assert done.returncode == -kind, done.stderr
    else:
        assert (done.returncode, done.stderr) == (130, "interrupted: no partial output is left\n")


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, __file__, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=600, preexec_fn=heed_signals
    )


class Watch:
    """Counts steps, and acts before the one that is `due`."""

    def __init__(self, due: int, act: Callable[[], None]) -> None:
        self.due, self.act = due, act
        self.steps: list[Step] = []
        self.lock = threading.RLock()

    def install(self, put: Callable[[Any, str, Any], None] = setattr) -> None:
        for name in ("open", "mkdir", "copy_file_range", "rename", "link", "unlink", "rmdir", "fsync"):
            put(os, name, self.watched(name, getattr(os, name)))
        put(fcntl, "flock", self.watched("flock", fcntl.flock))
        put(folder, "_exchange", self.watched("exchange", folder._exchange))
        put(os, "pwrite", self.writing(os.pwrite))

    def watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            paths = [os.fsdecode(a) for a in arguments if isinstance(a, str | bytes | os.PathLike)]
            if any(".partial" in path for path in paths) or name in _WITHOUT_PATH:
                with self.lock:
                    self.step(name, paths)
            return call(*arguments, **options)

        return wrapper

    def writing(self, call: Callable[..., int]) -> Callable[..., int]:
        def wrapper(fd: int, data: memoryview, offset: int) -> int:
            with self.lock:
                if len(self.steps) == self.due:
                    call(fd, data[: len(data) // 2], offset)
                self.step("pwrite", [])
                return call(fd, data, offset)

        return wrapper

    def step(self, name: str, paths: list[str]) -> None:
        self.steps.append((name, paths))
        if len(self.steps) == self.due + 1:
            self.act()


def trace(file: Path) -> None:
    """Run without an end of our own making."""
    watch = Watch(-1, lambda: None)
    watch.install()
    try:
        main()
    finally:
        file.write_text(json.dumps(watch.steps))


if __name__ == "__main__":
    first, second, *sys.argv[1:] = sys.argv[1:]
    if first == "trace":
        trace(Path(second))
    else:
        Watch(int(second), lambda: os.kill(os.getpid(), int(first))).install()
        main()
