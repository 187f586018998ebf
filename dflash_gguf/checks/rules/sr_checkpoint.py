"""SR: the file against the checkpoint it was made from."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from dflash_gguf.checks.finding import Severity
from dflash_gguf.checks.registry import Needs, NotChecked, Problem, rule
from dflash_gguf.checks.source import SourceDraft
from dflash_gguf.checks.subject import TOKENS_KEY, Subject
from dflash_gguf.errors import DflashError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.model.draft_header import value_type
from dflash_gguf.model.metadata import KEYS, MASK_KEY
from dflash_gguf.wording import counted

#: keys that depend on the target too
_OF_TARGET = {"rope.dimension_sections"}


def _original(subject: Subject) -> SourceDraft:
    if subject.original is None:
        raise ValueError("a source rule was run without a source")
    return subject.original


@rule(
    "SR501",
    Severity.ERROR,
    "metadata are not what converting the source gives",
    why="Each value under `dflash.` follows from the checkpoint's config.json; one that differs was edited, guessed by "
    "a tool, or belongs to another revision.",
    at_run_time="The draft runs with geometry it was not trained with: less acceptance, or none.",
    fix="`dflash-gguf patch IN OUT --fix SR501 --source DRAFT`, or convert the source anew.",
    needs=Needs.SOURCE,
)
def metadata(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    spec = _original(subject).spec
    for key in KEYS:
        if key.name in _OF_TARGET:
            continue
        found, expected = subject.metadata.get(key.full), key.encode(spec)
        if found is not None and expected is None and key.of == "rope_scaling" and spec.rope_scaling:
            continue  # a yarn constant that the source leaves to the default
        if found is None and expected is None:
            continue
        if found is None or expected is None or not _equal(found, expected):
            is_now, gives = _shown(found), _shown(expected)
            if found and expected and is_now == gives:
                is_now, gives = f"{is_now} ({value_type(found)})", f"{gives} ({value_type(expected)})"
            yield Problem(f"is {is_now}, converting the source gives {gives}", key.full)
    mask = subject.metadata.get(MASK_KEY)
    if mask is not None and mask.value != spec.mask_token_id:
        yield Problem(f"is {_shown(mask)}, the source says {spec.mask_token_id}", MASK_KEY)
    if subject.token_count and subject.token_count != spec.vocab_size:
        yield Problem(f"{counted(subject.token_count, 'token')}, the source says {spec.vocab_size:,}", TOKENS_KEY)


def _equal(one: MetaValue, other: MetaValue) -> bool:
    a, b = one.value, other.value
    if isinstance(a, Array) and isinstance(b, Array):
        return a.item_type is b.item_type and bytes(a.raw) == bytes(b.raw)
    if one.type is not other.type or isinstance(a, Array) or isinstance(b, Array):
        return False
    if one.type is ValueType.FLOAT32:
        return _f32(float(a)) == _f32(float(b))
    return a == b


def _f32(value: float) -> bytes:
    return struct.pack("<f", value)


def _shown(value: MetaValue | None) -> str:
    if value is None:
        return "absent"
    if isinstance(value.value, Array):
        return str(value.value.items()) if value.value.count <= 64 else f"{counted(value.value.count, 'item')}"
    return f"{value.value:.9g}" if isinstance(value.value, float) else repr(value.value)


@rule(
    "SR502",
    Severity.ERROR,
    "a tensor is not what the source holds",
    why="BF16 and F32 copies are exact; a quantized tensor equals what quantizing the source gives, bit for bit, or "
    "(another quantizer) lies within the error that its type has. A norm with 1 added, exchanged projections or one "
    "flipped byte load like any other weight.",
    at_run_time="The draft runs, with less acceptance or none; nothing in a log says why.",
    fix="Convert the source anew; if that differs too, the download of one of them is damaged.",
    needs=Needs.SOURCE,
)
def tensors(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    original = _original(subject)
    if not subject.at_hand:
        yield NotChecked("weights on the Hub are read with --data")
        return
    if not original.has_weights:
        yield NotChecked(f"{original.folder} holds no safetensors")
        return
    from dflash_gguf.checks.compare_checkpoint import compare_source

    try:
        yield from compare_source(subject, original)
    except DflashError as error:
        yield NotChecked(str(error))


@rule(
    "SR503",
    Severity.WARNING,
    "made from another revision of the source",
    why="The file records the source's commit and the hash of what its config says; the source has changed since.",
    at_run_time="The draft works as it did; the newer one may be better, or fit a newer target.",
    fix="Convert the source anew.",
    needs=Needs.SOURCE,
)
def revision(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    original, compared = _original(subject), False
    for key, present in (
        ("general.source.version", original.identity.revision),
        ("general.source.spec_sha256", original.spec_sha256),
    ):
        recorded = subject.string(key)
        compared = compared or bool(recorded and present)
        if recorded and present and recorded != present:
            yield Problem(f"records {recorded[:12]}, the source is at {present[:12]}: stale, reconvert", key)
    if not compared:
        yield NotChecked("the file records neither a revision nor a hash that the source has")
