"""A file's header mended without converting it anew: keys, tensor names, foreign dialects.

edits holds the header while it changes, mend knows what each rule of `check` asks for, copy writes the file and proves
its tensor data equal. Never changes a weight. Way in: patch().
"""

from __future__ import annotations

from dflash_gguf.patching.api import Patched, patch
from dflash_gguf.patching.edits import Change

__all__ = ["Change", "Patched", "patch"]
