"""The numpy reference decode, to be read beside the paper.

Owns the math; never guesses a value the file does not hold.
Way in: draft(), generate() on files; draft.DraftModel and decode.speculate on models.
"""

from __future__ import annotations

from dflash_gguf.executor.api import Drafted, Generated, Limits, Sampling, draft, generate

__all__ = ["Drafted", "Generated", "Limits", "Sampling", "draft", "generate"]
