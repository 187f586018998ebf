"""What mends a finding: a fix a rule, each taking its value from the file, its source or its target; none guesses.

A fix that cannot tell the right value changes nothing; the rule then finds what it found before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dflash_gguf.checks.expected_types import fitting_label
from dflash_gguf.checks.target import RopeKind
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.model.checkpoint import Identity
from dflash_gguf.model.config import V2_SIZES
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
from dflash_gguf.model.metadata_dialects import ARCHITECTURE_KEY, is_foreign
from dflash_gguf.model.provenance import (
    MEANINGLESS,
    Card,
    base_model_pairs,
    draft_name,
    license_pairs,
    source_pairs,
)
from dflash_gguf.model.tensor_dialects import respelled
from dflash_gguf.patching.fix_context import SECTIONS, FixContext, mends, own_source, take_from_source, take_mask

if TYPE_CHECKING:
    from dflash_gguf.patching.edits import Edits

_LAYERS = PREFIX + "target_layers"
_FILE_TYPE, _QUANTIZATION = "general.file_type", "general.quantization_version"
_TRUTH = bytes([0]) + bytes([1]) * 255  # any byte as the bool it is read as


@mends("GF007")
def _encode_anew(work: FixContext) -> None:
    """Padding, trailing bytes and odd bools are what encoding the header anew leaves no room for."""
    for key, value in work.edits.metadata.items():
        if isinstance(array := value.value, Array) and array.item_type is ValueType.BOOL:
            work.edits.set(key, MetaValue(value.type, replace(array, raw=bytes(array.raw).translate(_TRUTH))))
    if not work.edits.changed:
        encoded, file = work.edits.encoded(), work.subject.source
        if file.size != encoded.file_size or file.read(0, len(encoded.data)) != encoded.data:
            work.edits.reencode()


@mends("KV101")
def _migrate(work: FixContext) -> None:
    """All of a dialect or nothing: half of it would be no dialect any more, and nobody would miss the rest."""
    edits, moves = work.edits, work.subject.migration
    if any(move.clash for move in moves):
        return
    for move in moves:
        if move.new is None:
            edits.remove(move.old)
    edits.move({move.old: (move.new, move.value) for move in moves if move.new is not None})
    if is_foreign(work.subject.string(ARCHITECTURE_KEY)):
        edits.set(ARCHITECTURE_KEY, MetaValue(ValueType.STRING, ARCHITECTURE))
        _rename(edits, {name: new for name in work.subject.tensors if (new := respelled(name))})


@mends("TN305")
def _canonical_names(work: FixContext) -> None:
    canonical = work.subject.canonical
    _rename(work.edits, {name: new for name, new in canonical.items() if new is not None and new != name})


def _rename(edits: Edits, names: dict[str, str]) -> None:
    """Rename those whose new name nobody has."""
    taken = set(edits.names)
    free = {}
    for old, new in names.items():
        if new not in taken:
            free[old] = new
            taken.add(new)
    edits.rename_tensors(free)


@mends("KV102", needs="--source")
def _required_keys(work: FixContext) -> None:
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
    take_from_source(work, wrong)
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


@mends("KV103", needs="--source")
def _sizes(work: FixContext) -> None:
    """Sizes of the convolutions and the selector's rank are also in the tensors' shapes."""
    keys = [PREFIX + name for name in V2_SIZES]
    if not take_from_source(work, [*keys, PREFIX + "block_size"]) and (spec := work.subject.spec) and spec.v2:
        for key in keys:
            told, found = BY_NAME[key].encode(spec), work.edits.metadata.get(key)
            if told is not None and key != PREFIX + "selector_top_k" and (found is None or not found.value):
                work.edits.set(key, told)


@mends("KV104", "PR402", needs="--source")
def _target_layers(work: FixContext) -> None:
    value = work.edits.metadata.get(_LAYERS)
    if not take_from_source(work, [_LAYERS]) and value is not None:
        right = coerce(BY_NAME[_LAYERS], value)
        if right is not None:
            work.edits.set(_LAYERS, right)


@mends("KV105", needs="--source")
def _window(work: FixContext) -> None:
    take_from_source(work, [PREFIX + f"attention.sliding_window{tail}" for tail in ("", "_pattern")])


@mends("KV106")
def _own_sections(work: FixContext) -> None:
    _set_sections(work)


@mends("PR403", needs="--target")
def _missing_sections(work: FixContext) -> None:
    if work.subject.target is not None and work.subject.target.rope is RopeKind.MROPE:
        _set_sections(work)


def _set_sections(work: FixContext) -> None:
    """[rotary dims / 2, 0, 0, 0]: what converting with an M-RoPE target writes."""
    head = work.subject.natural(PREFIX + "rope.dimension_count") or work.subject.natural(
        PREFIX + "attention.key_length"
    )
    if head is not None and head < 1 << 32:
        sections = Array.of(ValueType.INT32, [head // 2, 0, 0, 0])
        work.edits.set(SECTIONS, MetaValue(ValueType.ARRAY, sections))


@mends("KV107", needs="--source")
def _heads(work: FixContext) -> None:
    names = ("head_count", "head_count_kv", "key_length", "value_length")
    take_from_source(work, [PREFIX + f"attention.{name}" for name in names])


@mends("KV108", needs="--source")
def _limits(work: FixContext) -> None:
    names = ("embedding_length", "conv_group_size", "selector_top_k", "block_count")
    take_from_source(work, [PREFIX + name for name in names])


@mends("SR501", needs="--source")
def _all_of_source(work: FixContext) -> None:
    take_from_source(work, [key.full for key in KEYS if key.full != SECTIONS])
    take_mask(work)


@mends("TK202", needs="--source")
def _mask(work: FixContext) -> None:
    value = work.edits.metadata.get(MASK_KEY)
    if not take_mask(work) and value is not None and not isinstance(value.value, Array):
        number = convert_scalar(value.value, ValueType.UINT32)
        if number is not None:
            work.edits.set(MASK_KEY, MetaValue(ValueType.UINT32, number))


@mends("KV109")
def _kind(work: FixContext) -> None:
    if not work.subject.is_dspark:
        _label(work)


def _label(work: FixContext) -> None:
    """general.file_type as the tensors bear it out."""
    name = fitting_label(work.subject)
    if name in FILE_TYPES:
        work.edits.set(_FILE_TYPE, MetaValue(ValueType.UINT32, FILE_TYPES[name]))


@mends("KV110", needs="--source and --target")
def _identity(work: FixContext) -> None:
    """Name, license, source and base model as converting writes them, where the file is silent.

    Not the source's revision and hash: that the file was made from just these, nobody has proved.
    """
    original, donor = own_source(work.subject), work.donor
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
