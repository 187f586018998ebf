"""Checkpoint to GGUF.

plan decides and sizes everything before a byte is written, run streams it; neither prints.
Way in: convert(), dry_run(), Options.
"""

from __future__ import annotations

from dflash_gguf.convert.api import Converted, convert, dry_run
from dflash_gguf.convert.plan import Options

__all__ = ["Converted", "Options", "convert", "dry_run"]
