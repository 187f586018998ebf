"""What mends a finding: a fix a rule, each taking its value from the file, its source or its target; none guesses.

A fix that cannot tell the right value changes nothing; the rule then finds what it found before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from dflash_gguf.checks.names import respelled
from dflash_gguf.checks.recipes import expected_types, main_type
from dflash_gguf.checks.target import Rope
from dflash_gguf.errors import DflashError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.model.checkpoint import Identity
from dflash_gguf.model.config import V2_SIZES
from dflash_gguf.model.dialects import ARCHITECTURE_KEY, is_foreign
from dflash_gguf.model.metadata import (
    ARCHITECTURE,
    BY_NAME,
    FILE_TYPES,
    KEYS,
    MASK_KEY,
    PREFIX,
    QUANTIZATION_VERSION,
    coerce,
    convert_scalar,
)
from dflash_gguf.model.provenance import (
    MEANINGLESS,
    Card,
    base_model_pairs,
    draft_name,
    license_pairs,
    source_pairs,
)

if TYPE_CHECKING:
    from dflash_gguf.checks.subject import Subject
    from dflash_gguf.model.target import Target
    from dflash_gguf.patching.edits import Edits

_LAYERS, _SECTIONS = PREFIX + "target_layers", PREFIX + "rope.dimension_sections"
_FILE_TYPE, _QUANTIZATION = "general.file_type", "general.quantization_version"
_TOKENIZER = "tokenizer."
_TYPES_KEY, _SCORES_KEY = "tokenizer.ggml.token_type", "tokenizer.ggml.scores"
_TEMPLATE, _MAX_TEMPLATE = "tokenizer.chat_template", 1 << 20


@dataclass(frozen=True, slots=True)
class Work:
    """One rule's work on a file: the header that changes, the file as it is now, and whose vocabulary it should have.

    `donor` opens the target's tokenizer; None without a target.
    """

    edits: Edits
    subject: Subject
    donor: Callable[[], Target] | None


Fix: TypeAlias = "Callable[[Work], None]"


@dataclass(frozen=True, slots=True)
class Mend:
    """A fix, and what it cannot do without ("" where the file itself tells all)."""

    fix: Fix
    needs: str = ""


#: rule → its fix, in the order in which they are carried out
FIXES: dict[str, Mend] = {}


def _mends(*rules: str, needs: str = "") -> Callable[[Fix], Fix]:
    def register(fix: Fix) -> Fix:
        FIXES.update(dict.fromkeys(rules, Mend(fix, needs)))
        return fix

    return register


@_mends("GF007")
def _encode_anew(work: Work) -> None:
    """Padding, trailing bytes and odd bools are what encoding the header anew leaves no room for."""
    for key, value in work.edits.metadata.items():
        if isinstance(array := value.value, Array) and array.item_type is ValueType.BOOL:
            work.edits.set(key, MetaValue(value.type, Array.of(ValueType.BOOL, array.items())))
    work.edits.reencode()


@_mends("KV101")
def _migrate(work: Work) -> None:
    """All of a dialect or nothing: half of it would be no dialect any more, and nobody would miss the rest."""
    edits, moves = work.edits, work.subject.migration
    if any(move.clash for move in moves):
        return
    for move in moves:
        if move.new is None:
            edits.remove(move.old)
        else:
            edits.move(move.old, move.new, move.value)
    if is_foreign(work.subject.string(ARCHITECTURE_KEY)):
        edits.set(ARCHITECTURE_KEY, MetaValue(ValueType.STRING, ARCHITECTURE))
        _rename(edits, {name: new for name in work.subject.tensors if (new := respelled(name))})


@_mends("TN305")
def _canonical_names(work: Work) -> None:
    canonical = work.subject.canonical
    _rename(work.edits, {name: new for name, new in canonical.items() if new is not None and new != name})


def _rename(edits: Edits, names: dict[str, str]) -> None:
    for old, new in names.items():
        if new not in edits.names.values():
            edits.rename_tensor(old, new)


@_mends("KV102", needs="--source")
def _required_keys(work: Work) -> None:
    edits = work.edits
    for key in KEYS:
        value = edits.metadata.get(key.full)
        if value is not None and (right := coerce(key, value)) is not None:
            edits.set(key.full, right)
    wrong = [
        key.full
        for key in KEYS
        if (value := edits.metadata.get(key.full)) is None
        or not key.fits(value)
        or (key.required and not isinstance(value.value, Array) and not value.value)
    ]
    _take_from_source(work, wrong)
    for name in (_FILE_TYPE, _QUANTIZATION):
        value = edits.metadata.get(name)
        if value is not None and not isinstance(value.value, Array):
            number = convert_scalar(value.value, ValueType.UINT32)
            if number is not None:
                edits.set(name, MetaValue(ValueType.UINT32, number))
    if (value := edits.metadata.get(_QUANTIZATION)) is not None and value.type is not ValueType.UINT32:
        edits.set(_QUANTIZATION, MetaValue(ValueType.UINT32, QUANTIZATION_VERSION))
    if (value := edits.metadata.get(_FILE_TYPE)) is not None and value.type is not ValueType.UINT32:
        _label(work)


@_mends("KV103", needs="--source")
def _sizes(work: Work) -> None:
    """Sizes of the convolutions and the selector's rank are also in the tensors' shapes."""
    keys = [PREFIX + name for name in V2_SIZES]
    if not _take_from_source(work, [*keys, PREFIX + "block_size"]) and (spec := work.subject.spec) and spec.v2:
        for key in keys:
            told, found = BY_NAME[key].encode(spec), work.edits.metadata.get(key)
            if told is not None and key != PREFIX + "selector_top_k" and (found is None or not found.value):
                work.edits.set(key, told)


@_mends("KV104", "PR402", needs="--source")
def _target_layers(work: Work) -> None:
    value = work.edits.metadata.get(_LAYERS)
    if not _take_from_source(work, [_LAYERS]) and value is not None:
        right = coerce(BY_NAME[_LAYERS], value)
        if right is not None:
            work.edits.set(_LAYERS, right)


@_mends("KV105", needs="--source")
def _window(work: Work) -> None:
    _take_from_source(work, [PREFIX + f"attention.sliding_window{tail}" for tail in ("", "_pattern")])


@_mends("KV106")
def _own_sections(work: Work) -> None:
    _set_sections(work)


@_mends("PR403", needs="--target")
def _missing_sections(work: Work) -> None:
    if work.subject.target is not None and work.subject.target.rope is Rope.MROPE:
        _set_sections(work)


def _set_sections(work: Work) -> None:
    """[rotary dims / 2, 0, 0, 0]: what converting with an M-RoPE target writes."""
    head = work.subject.natural(PREFIX + "rope.dimension_count") or work.subject.natural(
        PREFIX + "attention.key_length"
    )
    if head is not None and head < 1 << 32:
        sections = Array.of(ValueType.INT32, [head // 2, 0, 0, 0])
        work.edits.set(_SECTIONS, MetaValue(ValueType.ARRAY, sections))


@_mends("KV107", needs="--source")
def _heads(work: Work) -> None:
    names = ("head_count", "head_count_kv", "key_length", "value_length")
    _take_from_source(work, [PREFIX + f"attention.{name}" for name in names])


@_mends("KV108", needs="--source")
def _limits(work: Work) -> None:
    names = ("embedding_length", "conv_group_size", "selector_top_k", "block_count")
    _take_from_source(work, [PREFIX + name for name in names])


@_mends("SR501", needs="--source")
def _all_of_source(work: Work) -> None:
    _take_from_source(work, [key.full for key in KEYS if key.full != _SECTIONS])
    _take_mask(work)


def _take_from_source(work: Work, keys: Iterable[str]) -> bool:
    """Have `keys` as converting the source writes them; False without a source."""
    original = work.subject.original
    if original is None:
        return False
    for key in keys:
        value, found = BY_NAME[key].encode(original.spec), work.edits.metadata.get(key)
        if value is not None:
            work.edits.set(key, value)
        elif found is not None and key != _SECTIONS:
            work.edits.remove(key)
    return True


@_mends("TK202", needs="--source")
def _mask(work: Work) -> None:
    value = work.edits.metadata.get(MASK_KEY)
    if not _take_mask(work) and value is not None and not isinstance(value.value, Array):
        number = convert_scalar(value.value, ValueType.UINT32)
        if number is not None:
            work.edits.set(MASK_KEY, MetaValue(ValueType.UINT32, number))


def _take_mask(work: Work) -> bool:
    original = work.subject.original
    if original is not None:
        work.edits.set(MASK_KEY, MetaValue(ValueType.UINT32, original.spec.mask_token_id))
    return original is not None


@_mends("TK201", needs="--target")
def _counts(work: Work) -> None:
    for key, kind in ((_TYPES_KEY, ValueType.INT32), (_SCORES_KEY, ValueType.FLOAT32)):
        value = work.edits.metadata.get(key)
        if value is not None and isinstance(array := value.value, Array) and array.item_type is not ValueType.STRING:
            items = [convert_scalar(item, kind) for item in array.items()] if array.count < 1 << 20 else [None]
            kept = [item for item in items if item is not None]
            if len(kept) == len(items):
                work.edits.set(key, MetaValue(ValueType.ARRAY, Array.of(kind, kept)))
    _take_tokenizer(work)


@_mends("TK203")
def _special_ids(work: Work) -> None:
    """Left out as converting leaves them out, where the target does not tell better."""
    if _take_tokenizer(work):
        return
    for key, value in list(work.edits.metadata.items()):
        number = value.value
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id") and key != MASK_KEY:
            beyond = type(number) is not int or not 0 <= number < work.subject.token_count
            if beyond:
                work.edits.remove(key)


@_mends("TK204", "PR401", needs="--target")
def _splitting(work: Work) -> None:
    _take_tokenizer(work)


@_mends("TK205", needs="--target")
def _damaged_vocabulary(work: Work) -> None:
    if _take_tokenizer(work):
        return
    for key, value in list(work.edits.metadata.items()):
        if key.startswith(_TEMPLATE) and isinstance(value.value, str) and len(value.value) > _MAX_TEMPLATE:
            work.edits.remove(key)


def _take_tokenizer(work: Work) -> bool:
    """Have the target's tokenizer as converting writes it; False where that is not known to be the draft's.

    A token whose text is another one there means another target: the vocabulary then stays as it is.
    """
    rows, mask = work.subject.codebook_rows or work.subject.token_count, work.edits.metadata.get(MASK_KEY)
    if work.donor is None or not rows or mask is None or type(mask.value) is not int:
        return False
    try:
        tokenizer = work.donor().tokenizer(vocab_size=rows, mask_token_id=mask.value, pre=None)
    except DflashError:
        return False  # the rule still finds what it found, and the pair rules tell why
    ours = work.subject.tokens or []
    if any(one != other for one, other in zip(ours, tokenizer.tokens.strings(), strict=False)):
        return False
    new, done = dict(tokenizer.key_values), len(work.edits.log)
    for key in [key for key in work.edits.metadata if key.startswith(_TOKENIZER) and key not in new]:
        work.edits.remove(key)
    for key, value in new.items():
        work.edits.set(key, value)
    if len(work.edits.log) > done:
        work.edits.arrange(new)
    return True


@_mends("KV109")
def _kind(work: Work) -> None:
    if not work.subject.is_dspark:
        _label(work)


def _label(work: Work) -> None:
    """general.file_type: the type whose recipe gives all of the file's types, else that of most weights."""
    tensors = work.subject.tensors
    found = main_type(tensors)
    named = [name for name in FILE_TYPES if _fits(work.subject, name)]
    named += [name for name in FILE_TYPES if found is not None and name == found.name]
    if named:
        work.edits.set(_FILE_TYPE, MetaValue(ValueType.UINT32, FILE_TYPES[named[0]]))


def _fits(subject: Subject, name: str) -> bool:
    choices = expected_types(subject, name)
    return bool(choices) and all(subject.tensors[tensor].type is choice.type for tensor, choice in choices.items())


@_mends("KV110", needs="--source and --target")
def _identity(work: Work) -> None:
    """Name, license, source and base model as converting writes them, where the file is silent.

    Not the source's revision and hash: that the file was made from just these, nobody has proved.
    """
    original, donor = work.subject.original, work.donor
    card = original.card if original else Card()
    target = donor().identity(card) if donor else _named(card.base_model)
    name = work.subject.string("general.name")
    if original and (name is None or MEANINGLESS.fullmatch(name[:200].strip().lower())):
        told = draft_name(original.identity, original.spec, target or Identity("target"))
        work.edits.set("general.name", MetaValue(ValueType.STRING, told))
    pairs = [*(license_pairs(card)), *(source_pairs(original.identity) if original else ())]
    for key, value in [*pairs, *(base_model_pairs(target) if target else ())]:
        if key not in work.edits.metadata:
            work.edits.set(key, value)


def _named(base_model: str | None) -> Identity | None:
    organization, _, name = (base_model or "").rpartition("/")
    return Identity(name, organization or None) if name else None
