"""Mistral's tekken.json: special tokens first, then byte-level BPE tokens by rank.

Source of the layout: the tokenizer class of Mistral's own library; of the merges: llama.cpp's converter.
"""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, Any

from dflash_gguf.errors import FormatError
from dflash_gguf.model.checkpoint import read_json
from dflash_gguf.model.tokenizer.byte_chars import as_chars
from dflash_gguf.model.tokenizer.files import MAX_FILE_BYTES, as_list, as_object, brief
from dflash_gguf.model.tokenizer.tiktoken import ranked
from dflash_gguf.model.tokenizer.vocabulary import TokenType, Vocabulary, beyond, encode_texts
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dflash_gguf.model.tokenizer.files import TokenizerFiles

TEKKEN_FILE = "tekken.json"

_IDS = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
#: the special tokens of files from before they listed their own
_SPECIALS = """
<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] [IMG]
<pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]
"""


def from_tekken(target: TokenizerFiles, vocab_size: int) -> tuple[Vocabulary, list[bytes], dict[str, int]]:
    """Rows, merges and special ids (bos, eos, unk, pad) of a tekken.json, whose special tokens stand first."""
    path = target.folder / TEKKEN_FILE
    whole, where = read_json(path, MAX_FILE_BYTES), str(path)
    config = as_object(whole.get("config"), f"{where}: config")
    total, count = (
        _natural(config.get(key), key, where) for key in ("default_vocab_size", "default_num_special_tokens")
    )
    entries = as_list(whole.get("vocab"), f"{where}: vocab")
    if not count <= total <= len(entries) + count:
        raise FormatError(
            f"{counted(total, 'token')} of which {count} are special, but {len(entries)} in vocab", where=where
        )
    if total > vocab_size:
        raise beyond(total, total - 1, vocab_size, where)
    ranks = ranked(_tokens(entries[: total - count], where), where)
    specials = _specials(whole, count, where)
    vocabulary = _rows(list(ranks), specials, vocab_size, where)
    ids = {word: specials.index(text) for word, text in _IDS.items() if text in specials}
    ids.setdefault("pad", ids.get("eos", 0))
    return vocabulary, [merge.encode() for merge in _all_splits(ranks)], ids


def _all_splits(ranks: dict[bytes, int]) -> Iterator[str]:
    """Every split of each token into two others, as tokenizer.json files that are made from ranks list them."""
    known = ranks.keys()
    for token in list(known)[256:]:
        splits = [(token[:i], token[i:]) for i in range(1, len(token))]
        pairs = [(ranks[left], ranks[right], left, right) for left, right in splits if left in known and right in known]
        for _, _, left, right in sorted(pairs):
            yield f"{as_chars(left)} {as_chars(right)}"


def _tokens(entries: list[Any], where: str) -> Iterator[tuple[bytes, int]]:
    for number, entry in enumerate(entries):
        item = as_object(entry, f"{where}: vocab {number}")
        text, rank = item.get("token_bytes"), item.get("rank")
        try:
            token = binascii.a2b_base64(text if isinstance(text, str) else "", strict_mode=True)
        except (binascii.Error, ValueError):
            token = b""
        if not token or type(rank) is not int or (number < 256 and token != bytes([number])):
            raise FormatError(f"entry {number} of vocab is no ranked token: {brief(text)}", where=where)
        yield token, rank


def _specials(whole: dict[str, Any], count: int, where: str) -> list[str]:
    listed = whole.get("special_tokens")
    texts: list[Any] = [*_SPECIALS.split()]
    if listed is not None:
        entries = [as_object(entry, f"{where}: special_tokens") for entry in as_list(listed, where)]
        if [entry.get("rank") for entry in entries] != list(range(len(entries))):
            raise FormatError("special_tokens are not ranked 0, 1, 2, …", where=where)
        texts = [entry.get("token_str") for entry in entries]
    if len(texts) > count or len(set(map(repr, texts))) != len(texts) or not all(isinstance(t, str) for t in texts):
        raise FormatError(
            f"{counted(len(texts), 'special token')}, expected at most {counted(count, 'different text')}", where=where
        )
    return [*texts, *(f"<SPECIAL_{i}>" for i in range(len(texts), count))]


def _rows(tokens: list[bytes], specials: list[str], vocab_size: int, where: str) -> Vocabulary:
    defined = len(specials) + len(tokens)
    texts = [*specials, *map(as_chars, tokens), *(f"[PAD{i}]" for i in range(defined, vocab_size))]
    counts = ((TokenType.CONTROL, len(specials)), (TokenType.NORMAL, len(tokens)))
    types = b"".join(bytes([kind]) * count for kind, count in (*counts, (TokenType.UNUSED, vocab_size - defined)))
    added = {text: i for i, text in enumerate(specials)}
    encoded = encode_texts(texts, f"{where}: token")
    return Vocabulary(encoded, bytearray(types), defined, added, {}, (), scores=[0.0] * vocab_size)


def _natural(value: Any, key: str, where: str) -> int:
    if type(value) is not int or value < 0:
        raise FormatError(f"config.{key} is {brief(value)}, expected a whole number", where=where)
    return value
