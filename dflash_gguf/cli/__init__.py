"""The command line, one file a command; the only place that prints.

Owns options, progress and exit codes; no logic that a library user would miss.
Way in: main().
"""

from __future__ import annotations

from dflash_gguf.cli.interrupts import main

__all__ = ["main"]
