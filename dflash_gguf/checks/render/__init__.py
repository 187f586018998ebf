"""A report as text: for a person, a script, a code-scanning service, a test dashboard, a pull request.

Owns formats; never looks at a file and never prints.
Way in: RENDERERS (name → function of a report).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from dflash_gguf.errors import UsageError

if TYPE_CHECKING:
    from dflash_gguf.checks.finding import CheckReport

FORMATS = ("text", "json", "sarif", "junit", "github")


def renderer(name: str) -> Callable[[CheckReport], str]:
    """The function that renders a report in format `name`. Raises UsageError for an unknown one."""
    if name not in FORMATS:
        raise UsageError(f"unknown format {name!a}, expected one of {', '.join(FORMATS)}", where="--format")
    render: Callable[[CheckReport], str] = import_module(f"dflash_gguf.checks.render.{name}").render
    return render
