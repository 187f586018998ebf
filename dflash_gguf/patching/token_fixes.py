"""Fixes of the vocabulary: only keys that a rule complains of, and only from a target whose tokens are the draft's."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_gguf.checks.subject import SCORES_KEY, TOKENS_KEY, TYPES_KEY
from dflash_gguf.errors import DflashError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.model.metadata import MASK_KEY, convert_scalar
from dflash_gguf.patching.fix_context import FixContext, mends, own_source

_TOKENIZER = "tokenizer."


@mends("TK201", needs="--target")
def _counts(work: FixContext) -> None:
    for key, kind in ((TYPES_KEY, ValueType.INT32), (SCORES_KEY, ValueType.FLOAT32)):
        value = work.edits.metadata.get(key)
        if value is not None and isinstance(array := value.value, Array) and array.item_type is not ValueType.STRING:
            items = [convert_scalar(item, kind) for item in array.items()] if array.count < 1 << 20 else [None]
            kept = [item for item in items if item is not None]
            if len(kept) == len(items):
                work.edits.set(key, MetaValue(ValueType.ARRAY, Array.of(kind, kept)))
    if TOKENS_KEY in work.edits.metadata:
        _take_tokenizer(work, (TOKENS_KEY, TYPES_KEY, SCORES_KEY))
    else:
        _take_tokenizer(work)


@mends("TK203")
def _special_ids(work: FixContext) -> None:
    """The target's; where that is not at hand, left out as converting leaves them out."""
    if not _take_tokenizer(work, work.keys) and _rows(work) in (None, work.subject.token_count):
        _remove(work, work.keys)


@mends("TK204", needs="--target")
def _splitting(work: FixContext) -> None:
    """Model, pre-tokenizer or merges."""
    _take_tokenizer(work, work.keys)


@mends("PR401", needs="--target")
def _shared_vocabulary(work: FixContext) -> None:
    """As many tokens as the target has, of its model, split its way."""
    _take_tokenizer(work, [*work.keys, *((TYPES_KEY, SCORES_KEY) if TOKENS_KEY in work.keys else ())])


@mends("TK205", needs="--target")
def _damaged_vocabulary(work: FixContext) -> None:
    """Types of byte tokens, and templates that are none; never a token's text."""
    templates = [key for key in work.keys if key != TOKENS_KEY]
    if not _take_tokenizer(work, [TYPES_KEY, *templates]):
        _remove(work, templates)


def _remove(work: FixContext, keys: Sequence[str]) -> None:
    for key in keys:
        if key in work.edits.metadata:
            work.edits.remove(key)


def _rows(work: FixContext) -> int | None:
    """How many tokens there have to be, where anything but the tokens themselves tells."""
    original, pair = own_source(work.subject), work.subject.target
    told = original.spec.vocab_size if original else pair.vocab_size if pair else None
    return work.subject.codebook_rows or told


def _take_tokenizer(work: FixContext, keys: Sequence[str] | None = None) -> bool:
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
    old = keys if keys is not None else [key for key in work.edits.metadata if key.startswith(_TOKENIZER)]
    _remove(work, [key for key in old if key not in new])
    for key in new if keys is None else [key for key in new if key in keys]:
        work.edits.set(key, new[key])
    if len(work.edits.log) > done:
        work.edits.arrange([key for key in new if key in work.edits.metadata])
    return True
