"""Fixes of the vocabulary: only keys that a rule complains of, and only from a target whose tokens are the draft's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash_gguf.checks.subject import MERGES_KEY, TOKENS_KEY
from dflash_gguf.errors import DflashError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.model.metadata import MASK_KEY, convert_scalar
from dflash_gguf.patching.work import Work, mends, own_source

if TYPE_CHECKING:
    from dflash_gguf.checks.subject import Subject

_TOKENIZER = "tokenizer."
_TYPES_KEY, _SCORES_KEY = "tokenizer.ggml.token_type", "tokenizer.ggml.scores"
_MODEL_KEY, _PRE_KEY = "tokenizer.ggml.model", "tokenizer.ggml.pre"
_TEMPLATE, _MAX_TEMPLATE = "tokenizer.chat_template", 1 << 20


@mends("TK201", needs="--target")
def _counts(work: Work) -> None:
    for key, kind in ((_TYPES_KEY, ValueType.INT32), (_SCORES_KEY, ValueType.FLOAT32)):
        value = work.edits.metadata.get(key)
        if value is not None and isinstance(array := value.value, Array) and array.item_type is not ValueType.STRING:
            items = [convert_scalar(item, kind) for item in array.items()] if array.count < 1 << 20 else [None]
            kept = [item for item in items if item is not None]
            if len(kept) == len(items):
                work.edits.set(key, MetaValue(ValueType.ARRAY, Array.of(kind, kept)))
    if TOKENS_KEY in work.edits.metadata:
        _take_tokenizer(work, (TOKENS_KEY, _TYPES_KEY, _SCORES_KEY))
    else:
        _take_tokenizer(work)


@mends("TK203")
def _special_ids(work: Work) -> None:
    """The target's; where that is not at hand, left out as converting leaves them out."""
    wrong = [
        key
        for key, value in work.edits.metadata.items()
        if key.startswith(_TOKENIZER) and key.endswith("_token_id") and key != MASK_KEY
        if type(value.value) is not int or not 0 <= value.value < work.subject.token_count
    ]
    if not _take_tokenizer(work, wrong) and _rows(work) in (None, work.subject.token_count):
        for key in wrong:
            work.edits.remove(key)


@mends("TK204", needs="--target")
def _splitting(work: Work) -> None:
    """Model and pre-tokenizer, and the merges where one of them is missing or wrong."""
    _take_tokenizer(work, [_MODEL_KEY, _PRE_KEY, *([] if _merges_fit(work.subject) else [MERGES_KEY])])


@mends("PR401", needs="--target")
def _shared_vocabulary(work: Work) -> None:
    """As many tokens as the target has, of its model, split its way."""
    wrong = [_MODEL_KEY, _PRE_KEY]
    if work.subject.token_count != _rows(work):
        wrong += [TOKENS_KEY, _TYPES_KEY, _SCORES_KEY]
    _take_tokenizer(work, wrong)


def _merges_fit(subject: Subject) -> bool:
    if subject.merges is None or subject.tokens is None:
        return False
    tokens = set(subject.tokens)
    parts = [merge.partition(b" ") if merge[:1] != b" " else (b"", b"", b"") for merge in subject.merges]
    return bool(parts) and all(left in tokens and right in tokens for left, _, right in parts)


@mends("TK205", needs="--target")
def _damaged_vocabulary(work: Work) -> None:
    huge = [
        key
        for key, value in work.edits.metadata.items()
        if key.startswith(_TEMPLATE) and isinstance(value.value, str) and len(value.value) > _MAX_TEMPLATE
    ]
    if not _take_tokenizer(work, [_TYPES_KEY, *huge]):
        for key in huge:
            work.edits.remove(key)


def _rows(work: Work) -> int | None:
    """How many tokens there have to be, where anything but the tokens themselves tells."""
    original, pair = own_source(work.subject), work.subject.target
    told = original.spec.vocab_size if original else pair.vocab_size if pair else None
    return work.subject.codebook_rows or told


def _take_tokenizer(work: Work, keys: Sequence[str] | None = None) -> bool:
    """Have `keys` (or all) of the target's tokenizer as converting writes them; False without one that is the draft's.

    A token whose text is another one there means another target: the vocabulary then stays as it is.
    """
    rows, mask = _rows(work) or work.subject.token_count, work.edits.metadata.get(MASK_KEY)
    if work.donor is None or not rows or mask is None or type(mask.value) is not int:
        return False
    try:
        tokenizer = work.donor().tokenizer(vocab_size=rows, mask_token_id=mask.value, pre=None)
    except DflashError:
        return False  # the rule still finds what it found, and the pair rules tell why
    if TOKENS_KEY in work.edits.metadata:
        ours = work.subject.tokens
        if ours is None or any(a != b for a, b in zip(ours, tokenizer.tokens.strings(), strict=False)):
            return False
    new, done = dict(tokenizer.key_values), len(work.edits.log)
    for key in keys if keys is not None else [key for key in work.edits.metadata if key.startswith(_TOKENIZER)]:
        if key not in new and key in work.edits.metadata:
            work.edits.remove(key)
    for key in new if keys is None else [key for key in new if key in keys]:
        work.edits.set(key, new[key])
    if len(work.edits.log) > done:
        work.edits.arrange([key for key in new if key in work.edits.metadata])
    return True
