"""MXFP8 checkpoints: written from BF16 ones, and verified.

plan decides and sizes everything, write streams it into a folder that appears whole, verify says what was in fact
checked; none of them prints. Way in: write_mxfp8(), verify_mxfp8().
"""

from __future__ import annotations

from dflash_gguf.mxfp8.verify import VerificationReport, verify_mxfp8
from dflash_gguf.mxfp8.write import Mxfp8Listener, Written, write_mxfp8

__all__ = ["Mxfp8Listener", "VerificationReport", "Written", "verify_mxfp8", "write_mxfp8"]
