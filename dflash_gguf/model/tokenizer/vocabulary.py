"""Token rows: text and type of every id; here those of a vocabulary in tokenizer.json."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, cast

from dflash_gguf.errors import FormatError, ModelError
from dflash_gguf.model.tokenizer.added import Added, all_added, listed_tokens
from dflash_gguf.model.tokenizer.files import as_object, brief

if TYPE_CHECKING:
    from dflash_gguf.model.tokenizer.files import TokenizerFiles


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`. Source: llama.cpp's `llama_token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Rows of a vocabulary: `texts[id]` and `types[id]`; `defined` ids have a text of their own.

    `added` maps the text of each added token to its id, `listed` those that tokenizer.json itself lists. `scores`
    are for the kinds that merge by score.
    """

    texts: list[bytes]
    types: bytearray
    defined: int
    added: dict[str, int]
    listed: dict[str, int]
    warnings: tuple[str, ...]
    scores: list[float] | None = None


def base_vocabulary(target: TokenizerFiles) -> dict[str, Any]:
    """`model.vocab` of tokenizer.json."""
    model = as_object(target.tokenizer.get("model"), f"{target.tokenizer_path}: model")
    return as_object(model.get("vocab"), f"{target.tokenizer_path}: model.vocab")


def read_vocabulary(target: TokenizerFiles, vocab_size: int) -> Vocabulary:
    """All `vocab_size` rows; ids without a token are `[PADn]`, unused.

    Raises FormatError for ids that are no ids, are given twice or lie beyond the rows.
    """
    where = target.tokenizer_path
    base = base_vocabulary(target)
    rows: list[str | None] = [None] * vocab_size
    place_base(base, rows, where)
    listed = listed_tokens(target, base)
    added, warnings = all_added(target, listed, base)
    types = bytearray([TokenType.NORMAL]) * vocab_size
    for token in added:
        _place_added(token, rows, types, where)
    missing = [i for i, text in enumerate(rows) if text is None]
    for i in missing:
        rows[i], types[i] = f"[PAD{i}]", TokenType.UNUSED
    return Vocabulary(
        texts=encode_texts(cast("list[str]", rows), f"{where}: token"),
        types=types,
        defined=vocab_size - len(missing),
        added={token.text: token.id for token in added},
        listed={token.text: token.id for token in listed.values()},
        warnings=warnings,
    )


def encode_texts(texts: list[str], where: str) -> list[bytes]:
    """UTF-8 of each text. One call for all of them is several times faster than one a text."""
    try:
        encoded = "\0".join(texts).encode("utf-8").split(b"\0")
    except UnicodeEncodeError:
        index = next(i for i, text in enumerate(texts) if not _is_unicode(text))
        raise FormatError(f"number {index} holds a lone surrogate", where=where) from None
    return encoded if len(encoded) == len(texts) else [text.encode("utf-8") for text in texts]


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def place_base(base: dict[str, Any], rows: list[str | None], where: str) -> None:
    """Put every text of `base` into its row; raises FormatError or ModelError for ids that are none."""
    if not base:
        raise FormatError("model.vocab is empty", where=where)
    if set(map(type, base.values())) != {int}:
        text, token_id = next((text, value) for text, value in base.items() if type(value) is not int)
        raise FormatError(f"model.vocab: id of {brief(text)} is {brief(token_id)}, expected an integer", where=where)
    low, high = min(base.values()), max(base.values())
    if low < 0:
        raise FormatError(f"model.vocab: id {brief(low)} is negative", where=where)
    if high >= len(rows):
        raise beyond(len(base), high, len(rows), where)
    if list(base.values()) == list(range(len(base))):  # as every tokenizer.json is written
        rows[: len(base)] = base
        return
    for text, token_id in base.items():
        rows[token_id] = text
    if len(rows) - rows.count(None) != len(base):
        raise _given_twice(base, where)


def _place_added(token: Added, rows: list[str | None], types: bytearray, where: str) -> None:
    if token.id >= len(rows):
        raise beyond(token.id + 1, token.id, len(rows), where)
    present = rows[token.id]
    if present is not None and present != token.text:
        raise FormatError(f"id {token.id} is both {brief(present)} and {brief(token.text)}", where=where)
    rows[token.id] = token.row_text
    types[token.id] = TokenType.CONTROL if token.control else TokenType.USER_DEFINED


def beyond(count: int, highest: int, vocab_size: int, where: str) -> ModelError:
    """The error for a vocabulary that does not fit into the draft's rows."""
    return ModelError(
        f"{brief(count)} tokens up to id {brief(highest)}, but the draft has {vocab_size} vocabulary rows",
        where=where,
        hint="this target and this draft do not belong together",
    )


def _given_twice(base: dict[str, int], where: str) -> FormatError:
    seen: dict[int, str] = {}
    for text, token_id in base.items():
        if token_id in seen:
            return FormatError(
                f"model.vocab: id {token_id} is both {brief(seen[token_id])} and {brief(text)}", where=where
            )
        seen[token_id] = text
    return FormatError("model.vocab: an id is given twice", where=where)
