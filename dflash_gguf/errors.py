"""Every error a user can meet.

One line says where (file, key or tensor), what was found and expected, and what to do next. A class decides
the process's exit code, so that the command line needs no table of its own.
"""

from __future__ import annotations

from typing import ClassVar


class DflashError(Exception):
    """Base of all errors that this package raises on purpose.

    `where` names the file, key or tensor; `hint` is the next step; `str()` joins all three in one line.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        line = f"{self.where}: {self.message}" if self.where else self.message
        return f"{line} ({self.hint})" if self.hint else line


class UsageError(DflashError):
    """The call cannot be carried out as it was put: a missing path, an option's value, an output that exists."""

    exit_code = 2


class InputError(DflashError):
    """Bytes could not be read: permission, I/O, a file that shrank while it was read."""

    exit_code = 3


class FormatError(DflashError):
    """Bytes are there but are not a valid GGUF, safetensors, JSON or tokenizer file.

    `rule` is the id of the check rule that such a file breaks, where there is one (`GF003`).
    """

    def __init__(self, message: str, *, where: str = "", hint: str = "", rule: str = "") -> None:
        super().__init__(message, where=where, hint=hint)
        self.rule = rule


class ModelError(DflashError):
    """A well-formed file does not describe a DFlash draft, or one that the arch `dflash` cannot hold."""


class HubError(DflashError):
    """The Hub did not give what was asked: not found, gated, offline, throttled."""

    exit_code = 3


class OutputError(DflashError):
    """The result could not be written: no room, a read-only directory, a failed rename."""

    exit_code = 3
