"""Metadata and tensor names of a file edited without reconversion.

Owns what is changed, and the writing that proves the tensor bytes equal; never touches a weight.
Way in: patch().
"""

from __future__ import annotations

from dflash_gguf.patching.api import Patched, Request, patch

__all__ = ["Patched", "Request", "patch"]
