"""Starting the engine's process, and what it said when it did not come back with an answer."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dflash_gguf.engine.worker import RESULT
from dflash_gguf.errors import UsageError

_WORKER = Path(__file__).with_name("worker.py")
#: time stamp and level that llama.cpp puts before a line
_PREFIX = re.compile(r"^[\d.]+ [A-Z] ")
#: a line of the source that an assertion or an abort names; a debugger's backtrace has its numbers in front
_PLACE = re.compile(r"^[^\s:]+\.(cpp|cu|c|h|hpp|m|metal):\d+: ")
_FOLDERS = re.compile(r"^[^\s:]*/")
#: what a healthy start says too, and what a debugger says behind a crash
_HARMLESS = re.compile(
    r"this warning is normal|failed to measure the memory of the extra model|auto-loading has been declined"
    r"|^ptrace: |^No stack\.|^The program is not being run|^\d+\t.*: No such file"
)
_TOLD = re.compile(r"error|fail|assert|exceed|unknown|cannot|abort|terminate|bad_alloc|out of memory", re.IGNORECASE)
_MAX_REASON = 300


@dataclass(frozen=True, slots=True)
class Completion:
    """One prompt's answer: tokens read and generated, milliseconds of generating, tokens drafted and accepted."""

    text: str
    prompt_n: int
    predicted_n: int
    predicted_ms: float
    draft_n: int
    draft_n_accepted: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there are no answers, in the engine's own words where it had any."""

    reason: str


def require_engine() -> str:
    """The engine's version. Raises UsageError where it is not installed."""
    from importlib.metadata import version

    if find_spec("xllamacpp") is None:
        raise UsageError("the engine is not installed", where="bench", hint="pip install 'dflash-gguf[engine]'")
    return version("xllamacpp")


def run_engine(job: dict[str, Any], time_limit: float) -> list[list[Completion]] | Failure:
    """Repeats × prompts, or why not: the process may be killed, abort, hang (`time_limit`, seconds) or refuse."""
    command = [sys.executable, "-P", str(_WORKER)]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(job),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=time_limit,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stderr.decode("utf-8", "replace") if isinstance(error.stderr, bytes) else error.stderr or ""
        return Failure(f"not done after {time_limit:g} s{_behind(said)}")
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if done.returncode == 0 and lines:
        return [[Completion(**answer) for answer in run] for run in json.loads(lines[-1].removeprefix(RESULT))]
    return Failure(_ending(done.returncode) + (_behind(done.stderr) or _next_step(done.returncode, job)))


def _ending(code: int) -> str:
    if code >= 0:
        return f"the engine stopped (exit {code})"
    import signal

    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the engine crashed ({name})"


def _next_step(code: int, job: dict[str, Any]) -> str:
    """For a crash that no line of the log explains; the control without a draft has nothing to check."""
    if code >= 0 or job["draft"] is None:
        return ""
    return "; run " + shlex.join(["dflash-gguf", "check", job["draft"], "--target", job["target"]])


def _behind(log: str) -> str:
    reason = reason_of(log)
    return f": {reason}" if reason else ""


def reason_of(log: str) -> str:
    """The line of a log that says why: where the engine gave up, its first error, the last that sounds like one."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not _HARMLESS.search(line)]
    gave_up = [_FOLDERS.sub("", line) for line in lines if _PLACE.match(line)]
    errors = [line for line in lines if re.match(r"^[\d.]+ E ", line) and "Traceback" not in line]
    named = [line for line in errors if "error" in line.lower()] or errors
    plain = [line for line in lines if not _PREFIX.match(line)]  # not the log of a run that went well so far
    told = gave_up[-1:] or named[:1] or [line for line in lines if _TOLD.search(line)][-1:] or plain[-1:]
    return _PREFIX.sub("", told[0])[:_MAX_REASON] if told else ""
