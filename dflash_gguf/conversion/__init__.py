"""Checkpoint to GGUF.

plan decides and sizes everything before a byte is written, run streams it; neither prints.
Way in: convert(), dry_run(), quantize_file().
"""

from __future__ import annotations

from dflash_gguf.conversion.api import Converted, convert, dry_run
from dflash_gguf.conversion.plan import ConvertOptions
from dflash_gguf.conversion.requantize import quantize_file
from dflash_gguf.conversion.stream import ConversionListener

__all__ = ["ConversionListener", "ConvertOptions", "Converted", "convert", "dry_run", "quantize_file"]
