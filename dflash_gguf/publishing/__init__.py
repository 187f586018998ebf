"""Drafts to the Hub, with proof.

Owns what is sent and in which order: check, card, one commit, comparison with what the Hub then holds; never prints.
Way in: prepare(), send().
"""

from __future__ import annotations

from dflash_gguf.publishing.prepare import Prepared, PublishOptions, prepare
from dflash_gguf.publishing.send import send

__all__ = ["Prepared", "PublishOptions", "prepare", "send"]
