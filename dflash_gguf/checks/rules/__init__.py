"""The rules, a file a group; importing this registers them all.

Owns what is looked for and what is said about it; never decides what is run or shown.
Way in: registry.all_rules.
"""

from __future__ import annotations

from dflash_gguf.checks.rules import (
    container,
    metadata,
    naming,
    pair,
    provenance,
    source,
    tensors,
    tokenizer,
    weights,
)

__all__ = ["container", "metadata", "naming", "pair", "provenance", "source", "tensors", "tokenizer", "weights"]
