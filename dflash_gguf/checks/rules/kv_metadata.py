"""KV: the metadata under `dflash.`, judged by the table that writes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from dflash_gguf.checks.finding import Severity
from dflash_gguf.checks.geometry import uniform_dim
from dflash_gguf.checks.registry import Needs, Problem, rule
from dflash_gguf.checks.subject import Subject
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.model.config import MAX_BLOCKS, V2_SIZES
from dflash_gguf.model.metadata import ARCHITECTURE, BY_NAME, KEYS, PREFIX
from dflash_gguf.model.metadata_dialects import ARCHITECTURE_KEY, is_foreign
from dflash_gguf.model.tensor_dialects import respelled
from dflash_gguf.wording import counted

#: keys that have a rule of their own
_TARGET_LAYERS = PREFIX + "target_layers"
_WINDOW = PREFIX + "attention.sliding_window"
_PATTERN = PREFIX + "attention.sliding_window_pattern"
_SECTIONS = PREFIX + "rope.dimension_sections"
_OWN_RULE = {_TARGET_LAYERS, _WINDOW, _PATTERN, _SECTIONS, *(PREFIX + size for size in V2_SIZES)}
#: keys outside `dflash.` whose type llama.cpp insists on
_GENERAL = {"general.file_type": ValueType.UINT32, "general.quantization_version": ValueType.UINT32}


@rule(
    "KV101",
    Severity.ERROR,
    "the architecture is not `dflash`, or its keys are a foreign dialect's",
    why="llama.cpp picks the draft's code by general.architecture and looks keys up under exactly that prefix. Forks "
    "wrote `dflash-draft` and kindred names, nested keys, unshifted layer ids, or the mask token under `dflash.`. "
    "A draft of another kind (EAGLE-3, MTP, DSpark) that llama.cpp runs is no fault: a note says so.",
    at_run_time="unknown model architecture, or keys that are silently not found: nothing is drafted.",
    fix="`dflash-gguf patch IN OUT --fix KV101` migrates the known dialects; otherwise convert the checkpoint anew.",
    needs=Needs.HEADER,
)
def architecture(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    where, name = ARCHITECTURE_KEY, subject.string(ARCHITECTURE_KEY)
    if name is None:
        yield Problem(f"is missing or no string, expected {ARCHITECTURE!r}", where)
    elif is_foreign(name):
        count = sum(key.startswith(name + ".") for key in subject.metadata)
        change = f"; {counted(count, 'key')} under '{name}.' would have to stand under '{PREFIX}'" if count else ""
        yield Problem(f"{name!r} is a foreign dialect, expected {ARCHITECTURE!r}{change}", where)
        yield from _foreign_keys(subject)
        yield from _foreign_tensors(subject)
    elif name == ARCHITECTURE:
        yield from _foreign_keys(subject)
    elif subject.sidecar is not None:
        told = f"{name!r}: {subject.sidecar.name}, recognised and not supported"
        hint = f"nothing has to be mended: llama.cpp runs it with {subject.sidecar.flag}"
        yield Problem(told, where, hint, Severity.NOTE)
    else:
        yield Problem(f"{name!r}: not a DFlash draft (expected {ARCHITECTURE!r})", where, "name the draft's file")


def _foreign_keys(subject: Subject) -> Iterator[Problem]:
    """Each key that is more than under another prefix; plainly doubled prefixes have one cause and are told once."""
    if doubled := [move.old for move in subject.migration if move.old.startswith(PREFIX * 2)]:
        yield Problem(
            f"{counted(len(doubled), 'key', 'has', 'have')} the prefix twice: '{PREFIX}' must stand once", doubled[0]
        )
    for move in subject.migration:
        nested = move.new == PREFIX + move.old.removeprefix(PREFIX * 2)
        if move.clash or (move.told and not nested):
            yield Problem(f"{move.told}; {move.clash}" if move.clash else move.told, move.old)


def _foreign_tensors(subject: Subject) -> Iterator[Problem]:
    spelled = {name: new for name in subject.tensors if (new := respelled(name))}
    if spelled:
        name, new = next(iter(spelled.items()))
        yield Problem(f"{counted(len(spelled), 'tensor')} under names that are not read: {new} is, for this one", name)


@rule(
    "KV102",
    Severity.ERROR,
    "a required key is missing, of the wrong type, or zero",
    why="llama.cpp reads each key with one type. Some absent keys stop it, others silently become a default that the "
    "draft was not trained with: block_size becomes 16.",
    at_run_time="key not found / wrong type at load; or a default that ruins acceptance.",
    fix="`dflash-gguf patch IN OUT --fix KV102 --source DRAFT` (a wrong type needs no source), or convert anew.",
)
def required_keys(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    for key in KEYS:
        value = subject.metadata.get(key.full)
        if key.full in _OWN_RULE or key.full in subject.misplaced:
            continue
        if value is None:
            if key.required:
                yield Problem(f"is missing ({key.type_name})", key.full)
        elif not key.fits(value):
            yield Problem(f"has type {_type(value)}, expected {key.type_name}", key.full)
        elif key.required and key.name != "block_size" and not _is_positive(value):
            yield Problem(f"is {value.value}, expected more than 0", key.full)
    for name, kind in _GENERAL.items():
        if (value := subject.metadata.get(name)) is not None and value.type is not kind:
            yield Problem(f"has type {_type(value)}, expected {kind.name}", name)


def _is_positive(value: MetaValue) -> bool:
    return not isinstance(value.value, int | float) or 0 < value.value < float("inf")


def _type(value: MetaValue) -> str:
    return f"array of {value.value.item_type.name}" if isinstance(value.value, Array) else value.type.name


@rule(
    "KV103",
    Severity.ERROR,
    "block or DFlash 2 sizes that cannot be",
    why="A block is an anchor and at least one proposal. A DFlash 2 draft needs all four sizes of its convolutions and "
    "its selector.",
    at_run_time="DFlash2 model is missing conv/selector metadata; with a wrong block size the draft proposes at "
    "positions it was never trained for and acceptance collapses.",
    fix="`dflash-gguf patch IN OUT --fix KV103 --source DRAFT` takes them from its config.json; or convert anew.",
)
def block_sizes(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    key = PREFIX + "block_size"
    value = subject.metadata.get(key)
    if value is not None and BY_NAME[key].fits(value) and isinstance(value.value, int):
        if value.value < 2:
            yield Problem(f"is {value.value}, expected at least 2", key)
        trained = subject.original.spec.block_size if subject.original else value.value
        if value.value == 16 and trained == 8:
            yield Problem("is 16, but the source says 8", key, severity=Severity.WARNING)
    if subject.version == 2:
        for name in (PREFIX + size for size in V2_SIZES):
            found = subject.metadata.get(name)
            if found is None and name not in subject.misplaced:
                yield Problem("is missing: DFlash 2 needs it", name)
            elif found is not None and not (BY_NAME[name].fits(found) and found.value):
                yield Problem(f"is {_shown(found)}, expected UINT32 > 0: DFlash 2 needs it", name)


def _shown(value: MetaValue) -> str:
    return _type(value) if isinstance(value.value, Array) else f"{value.value!r} ({value.type.name})"


@rule(
    "KV104",
    Severity.ERROR,
    "target_layers cannot be right",
    why="They name the target's blocks whose input the draft was trained on: HF's layer ids + 1, increasing.",
    at_run_time="'target_layers' missing stops the load. One off, and the draft sees hidden states it never saw: "
    "everything loads, acceptance falls to a few per cent.",
    fix="target_layers = target_layer_ids + 1 as INT32: `dflash-gguf patch IN OUT --fix KV104 --source DRAFT`.",
)
def target_layers(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    value, where = subject.metadata.get(_TARGET_LAYERS), _TARGET_LAYERS
    if value is None:
        if _TARGET_LAYERS not in subject.misplaced:
            yield Problem("is missing", where)
        return
    if not BY_NAME[where].fits(value):
        yield Problem(f"has type {_type(value)}, expected array of INT32", where)
        return
    layers = subject.integers(where) or []
    if not layers:
        count = value.value.count if isinstance(value.value, Array) else 0
        yield Problem(f"holds {counted(count, 'layer')}, expected a few", where)
    elif min(layers) < 1:
        yield Problem(f"{layers}: {min(layers)} is no block's number, expected at least 1", where)
    elif any(b <= a for a, b in pairwise(layers)):
        yield Problem(f"{layers} does not increase", where)
    if subject.original and tuple(layers) == tuple(layer - 1 for layer in subject.original.spec.target_layers):
        told = f"{layers} are the source's ids unshifted: every tap is off by one"
        yield Problem(told, where, severity=Severity.WARNING)


@rule(
    "KV105",
    Severity.ERROR,
    "sliding window and its pattern do not fit",
    why="The window says how far a sliding layer sees, the pattern which layers slide; llama.cpp needs both.",
    at_run_time="A window without pattern stops the load; a pattern without window is ignored, and layers trained on "
    "a window see everything.",
    fix="Both as the checkpoint's config says, or neither: `dflash-gguf patch IN OUT --fix KV105 --source DRAFT`.",
)
def sliding_window(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    window, pattern = subject.metadata.get(_WINDOW), subject.metadata.get(_PATTERN)
    if window is not None and not BY_NAME[_WINDOW].fits(window):
        yield Problem(f"has type {_type(window)}, expected UINT32", _WINDOW)
        return
    if window is not None and window.value and pattern is None:
        yield Problem(f"a window of {window.value} without a pattern", _WINDOW)
    if pattern is None:
        return
    if not BY_NAME[_PATTERN].fits(pattern) or not isinstance(pattern.value, Array):
        yield Problem(f"has type {_type(pattern)}, expected array of BOOL", _PATTERN)
        return
    if window is None or not window.value:
        yield Problem("a pattern without a window", _PATTERN)
    blocks = subject.natural(PREFIX + "block_count")
    if blocks and pattern.value.count != blocks:
        yield Problem(f"has {counted(pattern.value.count, 'entry')} for {counted(blocks, 'block')}", _PATTERN)


@rule(
    "KV106",
    Severity.ERROR,
    "rope.dimension_sections are not a draft's",
    why="A draft for an M-RoPE target ropes on the temporal position only: [rotary dims / 2, 0, 0, 0]. The target's "
    "own sections (as [11, 11, 10, 0]) split its dims among positions that the draft does not have.",
    at_run_time="The draft loads and ropes part of its dims by the wrong position: acceptance falls to nothing.",
    fix="`dflash-gguf patch IN OUT --fix KV106` writes the right sections.",
)
def rope_sections(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    value = subject.metadata.get(_SECTIONS)
    if value is None:
        return
    sections = subject.integers(_SECTIONS) or []
    if not BY_NAME[_SECTIONS].fits(value) or len(sections) != 4:
        yield Problem(f"is {_type(value)} with {counted(len(sections), 'item')}, expected 4 of INT32", _SECTIONS)
        return
    head = subject.natural(PREFIX + "attention.key_length")
    rotary = subject.natural(PREFIX + "rope.dimension_count") or head
    if rotary is None or (sections[0] in (rotary // 2, (head or 0) // 2) and not any(sections[1:])):
        return  # with one section only, its size makes no difference: the reference writes half the head
    told = "these look like the target's own" if any(sections[1:]) else f"2·{sum(sections)} is not {rotary} rotary dims"
    yield Problem(f"{sections}, expected [{rotary // 2}, 0, 0, 0]: {told}", _SECTIONS)


@rule(
    "KV107",
    Severity.ERROR,
    "head counts and head sizes do not fit the attention tensors",
    why="heads · key_length is the width of attn_q, kv heads · key_length that of attn_k; the heads share kv heads "
    "evenly; keys and values have one length.",
    at_run_time="llama.cpp refuses the file: tensor has wrong shape.",
    fix="`dflash-gguf patch IN OUT --fix KV107 --source DRAFT` takes them from the checkpoint's config.json.",
)
def heads(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    key, value = (subject.natural(PREFIX + f"attention.{word}_length") for word in ("key", "value"))
    count, shared = (subject.natural(PREFIX + f"attention.head_count{tail}") for tail in ("", "_kv"))
    if key and value and key != value:
        yield Problem(f"value_length {value} differs from key_length {key}", PREFIX + "attention.value_length")
    if count and shared and count % shared:
        yield Problem(
            f"{counted(count, 'head', 'does', 'do')} not share {counted(shared, 'kv head')} evenly",
            PREFIX + "attention.head_count_kv",
        )
    for name, number, tensor in (("head_count", count, "attn_q"), ("head_count_kv", shared, "attn_k")):
        rows = uniform_dim(subject.tensors, rf"blk\.\d+\.{tensor}\.weight", 1)
        if number and key and rows and number * key != rows:
            told = f"{counted(number, 'head')} of {key}: {counted(number * key, 'row')}, {tensor} has {rows:,}"
            yield Problem(told, f"{PREFIX}attention.{name}")


@rule(
    "KV108",
    Severity.ERROR,
    "sizes that llama.cpp's loader refuses",
    why="Groups must divide the hidden size, the selector's lattice (top_k·(top_k+1) numbers) must fit one hidden "
    "state, and at most 512 blocks are loaded.",
    at_run_time="llama.cpp refuses the file with the same words.",
    fix="Compare them with the checkpoint's config.json: `dflash-gguf patch IN OUT --fix KV108 --source DRAFT`.",
)
def loader_limits(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    hidden, group, top_k, blocks = (
        subject.natural(PREFIX + name)
        for name in ("embedding_length", "conv_group_size", "selector_top_k", "block_count")
    )
    if hidden and group and hidden % group:
        yield Problem(f"embedding_length {hidden} is no multiple of {group}", PREFIX + "conv_group_size")
    if hidden and top_k and top_k * (top_k + 1) > hidden:
        told = f"top_k {top_k} needs {top_k * (top_k + 1)} numbers, the hidden size is {hidden}"
        yield Problem(told, PREFIX + "selector_top_k")
    if blocks and blocks > MAX_BLOCKS:
        yield Problem(f"{blocks:,} blocks, at most {MAX_BLOCKS} are loaded", PREFIX + "block_count")


@rule(
    "KV111",
    Severity.ERROR,
    "a DFlash 1 or 2 file says that it samples from the anchor",
    why="Only DSpark drafts propose from the anchor's own position. No engine reads the key for DFlash 1 and 2.",
    at_run_time="every proposal is off by one: acceptance falls to almost nothing.",
    fix="The draft was trained for another layout: it cannot run as DFlash. Ask its author for a DFlash draft.",
    needs=Needs.HEADER,
)
def samples_from_anchor(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    key = PREFIX + "sample_from_anchor"
    value = subject.metadata.get(key)
    if value is not None and value.value is True and not subject.is_dspark:
        yield Problem("is true: every proposal would be shifted by one", key)
