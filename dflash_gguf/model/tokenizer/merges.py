"""BPE merges, each "left right" in one string."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from dflash_gguf.errors import FormatError, ModelError
from dflash_gguf.model.tokenizer.files import as_list, brief
from dflash_gguf.model.tokenizer.vocabulary import encode_texts

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The byte-level stand-in for a space: a space inside a token would end it.
_SPACE = "\u0120"


def read_merges(model: dict[str, Any], vocab: dict[str, int], where: str) -> list[bytes]:
    """UTF-8 of each merge, in order; tokenizer.json has them as strings or as pairs.

    Raises FormatError for anything else, ModelError for a merge of tokens that the vocabulary has not.
    """
    where = f"{where}: model.merges"
    merges = as_list(model.get("merges") or [], where)
    if not merges:
        raise FormatError("no merges: this is no BPE vocabulary", where=where)
    kinds = set(map(type, merges))
    if kinds == {str}:
        return _from_strings(merges, vocab, where)
    if kinds == {list} and set(map(len, merges)) == {2}:
        return _from_pairs(merges, vocab, where)
    raise FormatError("neither strings nor pairs of strings throughout", where=where)


def _from_strings(merges: list[str], vocab: dict[str, int], where: str) -> list[bytes]:
    joined = " ".join(merges)
    parts = joined.split(" ")
    if len(parts) != 2 * len(merges) or joined.count(" ") + 1 != len(parts):
        index = next(i for i, merge in enumerate(merges) if merge.count(" ") != 1)
        raise FormatError(f"number {index}, {brief(merges[index])}, is not two tokens", where=where)
    _require_known(parts, vocab, where)
    return encode_texts(merges, where)


def _from_pairs(merges: list[list[str]], vocab: dict[str, int], where: str) -> list[bytes]:
    try:
        joined = list(map(" ".join, merges))
    except TypeError:
        index = next(i for i, pair in enumerate(merges) if set(map(type, pair)) != {str})
        raise FormatError(f"number {index} is not two strings", where=where) from None
    _require_known(chain.from_iterable(merges), vocab, where)
    if "".join(joined).count(" ") != len(merges):
        joined = [" ".join(part.replace(" ", _SPACE) for part in pair) for pair in merges]
    return encode_texts(joined, where)


def _require_known(parts: Iterable[str], vocab: dict[str, int], where: str) -> None:
    parts = list(parts)
    if all(map(vocab.__contains__, parts)):
        return
    unknown = next(part for part in parts if part not in vocab)
    raise ModelError(
        f"a merge names {brief(unknown)}, which model.vocab has not",
        where=where,
        hint="vocabulary and merges are from different tokenizers, or were cut",
    )
