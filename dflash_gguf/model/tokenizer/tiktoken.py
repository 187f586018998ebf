"""Byte-level BPE vocabularies given as ranks in a tiktoken file (Kimi, the first Qwen).

A token's rank is its id and its age; merges are found by merging each token's bytes with the older tokens only.
Source of the special tokens: the tokenizers' own code as their repositories publish it; of the order of merges:
llama.cpp's converter.
"""

from __future__ import annotations

import binascii
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_gguf.errors import FormatError, ModelError
from dflash_gguf.model.tokenizer.added import decoder_tokens
from dflash_gguf.model.tokenizer.byte_chars import as_chars
from dflash_gguf.model.tokenizer.files import brief, read_bytes
from dflash_gguf.model.tokenizer.vocabulary import TokenType, Vocabulary, beyond, encode_texts
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dflash_gguf.model.tokenizer.files import TokenizerFiles

#: no token of a known file has more than 128 bytes; splitting a long one costs the square of its length
_MAX_TOKEN_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _Family:
    """Whose tokenizer a file is: special tokens that its code adds behind the ranks, and what splits its text.

    `named` are the texts of the first ones, `reserved` the text of every other, up to `count` in all.
    """

    file: str
    architectures: str
    pre: str
    count: int
    named: tuple[str, ...] = ()
    reserved: str = ""


_FAMILIES = (
    _Family("tiktoken.model", r"(deepseekv[23]|kimi).*", "kimi-k2", 256, reserved="<|reserved_token_{id}|>"),
    _Family(
        "qwen.tiktoken",
        r"qwenlmheadmodel",
        "qwen2",
        208,
        named=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        reserved="<|extra_{index}|>",
    ),
)


def find_file(folder: Path) -> Path | None:
    """The tiktoken file of a target, if it has one."""
    names = ("tiktoken.model", "qwen.tiktoken", "tokenizer.model")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def family_pre(target: TokenizerFiles) -> str | None:
    """The pre-tokenizer of a tiktoken target: its regex stands in the model's code, which is never run."""
    family = _family(target)
    return family.pre if family else None


def from_tiktoken(target: TokenizerFiles, vocab_size: int) -> tuple[Vocabulary, list[bytes]]:
    """Rows and merges of a tiktoken file.

    Raises FormatError for lines that are no `base64 rank`, ranks that leave a gap or are given twice; ModelError
    for more tokens than rows.
    """
    path = find_file(target.folder)
    if path is None:
        raise FormatError("no tiktoken file", where=str(target.folder))
    ranks = _read_ranks(path)
    specials = _specials(target, len(ranks), vocab_size)
    vocabulary = _vocabulary(list(ranks), specials, vocab_size, str(path))
    merges = [pair for token, rank in ranks.items() if len(token) > 1 and (pair := _merge_of(ranks, token, rank))]
    return vocabulary, [f"{as_chars(left)} {as_chars(right)}".encode() for left, right in merges]


def _family(target: TokenizerFiles) -> _Family | None:
    for family in _FAMILIES:
        if (target.folder / family.file).is_file() and re.fullmatch(family.architectures, target.architecture):
            return family
    return None


def _read_ranks(path: Path) -> dict[bytes, int]:
    where = str(path)
    lines = [line for line in read_bytes(path).splitlines() if line]
    if not lines:
        raise FormatError("holds no tokens", where=where)
    return ranked((_read_line(line, number, where) for number, line in enumerate(lines, 1)), where)


def _read_line(line: bytes, number: int, where: str) -> tuple[bytes, int]:
    text, _, rank = line.partition(b" ")
    try:
        token = binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        token = b""
    if not token or not rank.isdigit() or len(rank) > 9:
        raise FormatError(f"line {number} is not a token in base64 and its rank: no tiktoken file", where=where)
    return token, int(rank)


def ranked(tokens: Iterable[tuple[bytes, int]], where: str) -> dict[bytes, int]:
    """Token → rank, in the order of the ranks; raises FormatError unless they are 0, 1, 2 and so on."""
    ranks: dict[bytes, int] = {}
    for token, rank in tokens:
        if rank != len(ranks) or token in ranks:
            what = "is given twice" if token in ranks else f"has rank {rank}, expected {len(ranks)}"
            raise FormatError(f"token {brief(as_chars(token))} {what}", where=where)
        if len(token) > _MAX_TOKEN_BYTES:
            raise FormatError(
                f"token {rank} has {counted(len(token), 'byte')}, at most {_MAX_TOKEN_BYTES} are read", where=where
            )
        ranks[token] = rank
    return ranks


def _specials(target: TokenizerFiles, first: int, vocab_size: int) -> dict[str, int]:
    """Texts of the special tokens behind the ranks; tokenizer_config.json's come before a family's own."""
    listed = {token.id: token.text for token in decoder_tokens(target) or []}
    family = _family(target)
    if family is None:
        texts = listed
    else:
        spare = len(family.named)
        texts = {
            first + i: listed.get(first + i)
            or (family.named[i] if i < spare else family.reserved.format(id=first + i, index=i - spare))
            for i in range(family.count)
        }
    if texts and max(texts) >= vocab_size:
        raise beyond(first + len(texts), max(texts), vocab_size, str(target.folder))
    if len(set(texts.values())) != len(texts):
        raise FormatError("two special tokens have the same text", where=target.settings_path)
    return {text: token_id for token_id, text in sorted(texts.items())}


def _vocabulary(tokens: list[bytes], specials: dict[str, int], vocab_size: int, where: str) -> Vocabulary:
    if len(tokens) > vocab_size:
        raise beyond(len(tokens), len(tokens) - 1, vocab_size, where)
    texts = [as_chars(token) for token in tokens] + [f"[PAD{i}]" for i in range(len(tokens), vocab_size)]
    types = bytearray([TokenType.NORMAL]) * len(tokens) + bytearray([TokenType.UNUSED]) * (vocab_size - len(tokens))
    for text, token_id in specials.items():
        if token_id < len(tokens):
            raise FormatError(f"special token {brief(text)} has the id {token_id} of a token with a rank", where=where)
        texts[token_id], types[token_id] = text, TokenType.CONTROL
    defined = len(tokens) + len(specials)
    return Vocabulary(encode_texts(texts, f"{where}: token"), types, defined, specials, {}, ())


def _merge_of(ranks: dict[bytes, int], token: bytes, rank: int) -> tuple[bytes, bytes] | None:
    """The two older tokens that byte-pair encoding makes `token` of, None where it needs more than two."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        best, at = rank, -1
        for i in range(len(parts) - 1):
            found = ranks.get(parts[i] + parts[i + 1])
            if found is not None and found < best:
                best, at = found, i
        if at < 0:
            return None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def require_pre(target: TokenizerFiles) -> str:
    """`family_pre`, or ModelError where the family is not known."""
    name = family_pre(target)
    if name is None:
        raise ModelError(
            f"a tiktoken file of a family that is not known ({target.architecture or 'no architecture'}): its regex"
            " stands in code that is never run",
            where=str(target.folder),
            hint="name the pre-tokenizer it needs with --tokenizer-pre NAME",
        )
    return name
