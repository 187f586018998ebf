"""MXFP8 checkpoints: written from BF16 ones, and verified.

plan decides and sizes everything, write streams it into a folder that appears whole, verify says what was in fact
checked; none of them prints. Way in: write_mxfp8(), verify_mxfp8().
"""

from __future__ import annotations

from dflash_gguf.mxfp8.verify import Report, verify_mxfp8
from dflash_gguf.mxfp8.write import Listener, Written, write_mxfp8

__all__ = ["Listener", "Report", "Written", "verify_mxfp8", "write_mxfp8"]
