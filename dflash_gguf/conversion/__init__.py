"""Checkpoint to GGUF.

plan decides and sizes everything before a byte is written, run streams it; neither prints.
Way in: convert(), dry_run(), quantize_file().
"""

from __future__ import annotations

from dflash_gguf.conversion.api import Converted, convert, dry_run
from dflash_gguf.conversion.plan import Options
from dflash_gguf.conversion.requantize import quantize_file
from dflash_gguf.conversion.run import Listener

__all__ = ["Converted", "Listener", "Options", "convert", "dry_run", "quantize_file"]
