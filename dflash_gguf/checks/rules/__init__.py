"""The rules, a file a group; importing this registers them all.

Owns what is looked for and what is said about it; never decides what is run or shown.
Way in: registry.all_rules.
"""

from __future__ import annotations

from dflash_gguf.checks.rules import (
    gf_container,
    kv_metadata,
    kv_provenance,
    nm_naming,
    pr_pair,
    sr_checkpoint,
    tk_tokenizer,
    tn_tensors,
    tn_weights,
)

__all__ = [
    "gf_container",
    "kv_metadata",
    "kv_provenance",
    "nm_naming",
    "pr_pair",
    "sr_checkpoint",
    "tk_tokenizer",
    "tn_tensors",
    "tn_weights",
]
