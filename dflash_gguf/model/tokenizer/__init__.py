"""The target's tokenizer as GGUF metadata.

Owns everything from tokenizer.json to the `tokenizer.*` keys; never tokenizes text, never runs a chat template.
Way in: load.load_tokenizer (a target's directory in, `Tokenizer` out), from_gguf.tokenizer_of_header (a header in);
kinds.py tells the kinds of vocabulary apart, pre.py tells which splitter llama.cpp needs.
"""

from __future__ import annotations

from dflash_gguf.model.tokenizer.from_gguf import tokenizer_of_header
from dflash_gguf.model.tokenizer.load import Tokenizer, load_tokenizer
from dflash_gguf.model.tokenizer.pre_names import PRE_NAMES, same_pre

__all__ = ["PRE_NAMES", "Tokenizer", "load_tokenizer", "same_pre", "tokenizer_of_header"]
