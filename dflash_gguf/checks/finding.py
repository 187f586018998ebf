"""What a check says: findings, the verdict on a file, the report on all files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_gguf.errors import DflashError


class Severity(Enum):
    """How bad a finding is: an error fails the file, a warning warns, a note informs."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return _ORDER[self]


_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
VERDICTS = {Severity.ERROR: "fail", Severity.WARNING: "warn", Severity.NOTE: "pass"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: `where` is a key, a tensor or a place in the file, `hint` how to mend it."""

    rule: str
    severity: Severity
    message: str
    where: str
    hint: str

    def fingerprint(self, file_name: str) -> str:
        """What a baseline knows it by: the same rule, as severe, at the same place of a file of the same name."""
        import hashlib

        text = f"{self.rule}\0{self.severity.value}\0{file_name}\0{self.where}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class FileReport:
    """The report on one file; `error` says why it could not be looked at (missing, unreadable).

    `passed` are the ids of rules that were carried out and found nothing, `known` counts the findings that a
    baseline knows, `not_checked` says what was not looked at, and why.
    """

    path: str
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    known: int = 0
    error: DflashError | None = None

    @property
    def verdict(self) -> str:
        """`pass`, `warn` or `fail`."""
        if self.error is not None:
            return "fail"
        worst = min((finding.severity for finding in self.findings), key=lambda s: s.rank, default=Severity.NOTE)
        return VERDICTS[worst]

    @property
    def file_name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The reports on all files, in the order they were named."""

    files: tuple[FileReport, ...]

    def exit_code(self, fail_on: Severity) -> int:
        """The contract's code: 1 for findings at or above `fail_on`, more for files that could not be looked at."""
        failed = any(f.severity.rank <= fail_on.rank for file in self.files for f in file.findings)
        codes = [file.error.exit_code for file in self.files if file.error is not None]
        return max([int(failed), *codes])
