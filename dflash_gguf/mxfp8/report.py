"""What verification comes to: a step is passed, found something, or could not be carried out and says why."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dflash_gguf.errors import FormatError, ModelError

#: the steps in their order, and what a checkpoint is qualified for that passed one
STEPS = {
    "structure": "config, names, shapes, dtypes and scales are an MXFP8 draft's, as vLLM reads them",
    "values": "every weight is a finite number, and BF16 holds it",
    "checksums": "every file is the one that the manifest names",
    "manifest": "what the manifest says of the tensors is so",
    "tensors": "every byte of every tensor follows from the source",
    "files": "every byte of every file follows from the source",
}


@dataclass(frozen=True, slots=True)
class VerificationFault:
    """One thing that is wrong, where, and which step found it."""

    step: str
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """What was found of a folder; `qualified_for` and `not_checked` hold names of `STEPS`, the latter with reasons."""

    folder: Path
    tensors: int
    quantized: int
    qualified_for: tuple[str, ...]
    not_checked: tuple[tuple[str, str], ...]
    findings: tuple[VerificationFault, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong with what could be checked."""
        return not self.findings


class Record:
    """Where the steps write down what they find; may be used from several threads."""

    def __init__(self) -> None:
        self.taken: dict[str, None] = {}
        self.qualified: list[str] = []
        self.skipped: dict[str, str] = {}
        self.findings: list[VerificationFault] = []
        self._lock = threading.Lock()

    def wrong(self, where: str, message: str) -> None:
        """Note a finding of the step that is being taken."""
        with self._lock:
            self.findings.append(VerificationFault(next(reversed(self.taken)), where, message))

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A step: an error about the files is a finding; without any it is passed."""
        self.taken[name] = None
        before = len(self.findings)
        try:
            yield
        except (FormatError, ModelError) as error:
            self.wrong(error.where, error.message)
        if len(self.findings) == before:
            self.qualified.append(name)

    def skip(self, name: str, reason: str) -> None:
        """Note why a step is not carried out."""
        self.skipped[name] = reason

    def report(self, folder: Path, *, tensors: int, quantized: int) -> VerificationReport:
        """All that was noted, in the order of the steps."""
        return VerificationReport(
            folder,
            tensors,
            quantized,
            tuple(name for name in STEPS if name in self.qualified),
            tuple((name, self.skipped[name]) for name in STEPS if name in self.skipped),
            tuple(self.findings),
        )
