"""How a command against the small Hub ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


Here = Callable[..., Result]
