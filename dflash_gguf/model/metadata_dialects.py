"""Foreign dialects of draft GGUFs: what forks and early converters wrote, and what llama.cpp reads instead.

`check` names what it finds here, `patch` carries it out. Facts: public converters of the forks and the reports of
files that llama.cpp refused (its issue 25116 among them). They name the architecture after the target's family and
`-dflash-draft`, put the draft's own keys one level down (`ARCH.dflash.block_size`, `ARCH.dflash2.selector_rank`),
write the checkpoint's layer ids as they stand and keep the mask token under the architecture.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, Metadata, MetaValue
from dflash_gguf.model.metadata import ARCHITECTURE, BY_NAME, MASK_KEY, PREFIX, coerce, convert_scalar

if TYPE_CHECKING:
    from collections.abc import Iterator

ARCHITECTURE_KEY = "general.architecture"
#: dflash-draft, qwen35-dflash-draft, gemma4-dflash-draft, deepseek4-dflash-draft, dflash2, dspark, deepseek4-dspark, …
_FOREIGN = re.compile(r"(\w+[-_])?dflash[-_]draft|dflash2|(\w+[-_])?dspark([-_]draft)?")
_NESTED = re.compile(r"(dflash2?\.)+")
#: the same key under another last name
_RENAMED = {"target_layer_ids": "target_layers", "conv_taps": "conv_kernel_size"}
#: what target_layers and the shape of fc say already
_RESTATED = ("n_target_layers", "n_target_features", "feat_dim_per_capture")
_UNSHIFTED = "target_layer_ids"
_MASK = "mask_token_id"
_MAX_IDS = 1 << 12


@dataclass(frozen=True, slots=True)
class Move:
    """One key's way to where llama.cpp reads it: `new` is None for a key that goes.

    `told` is what is wrong with it beyond its prefix; `clash` says why it cannot be decided where it belongs.
    """

    old: str
    new: str | None
    value: MetaValue
    told: str = ""
    clash: str = ""


def is_foreign(architecture: str | None) -> bool:
    """Whether an architecture's name is a known dialect's."""
    return architecture is not None and _FOREIGN.fullmatch(architecture) is not None


def is_dspark_name(architecture: str | None) -> bool:
    """Whether an architecture's name is one that converters gave DSpark drafts."""
    return is_foreign(architecture) and "dspark" in str(architecture)


def migration(metadata: Metadata) -> list[Move]:
    """What has to change in a draft's keys; empty for a file that is right, and for one that is no draft."""
    value = metadata.get(ARCHITECTURE_KEY)
    architecture = value.value if value is not None and isinstance(value.value, str) else None
    if architecture != ARCHITECTURE and not is_foreign(architecture):
        return []
    prefix = f"{architecture}."
    moves: list[Move] = []
    taken = dict(metadata)
    for old, found in metadata.items():
        if old.startswith(prefix):
            for move in _moves(prefix, old, found):
                settled = _settle(move, taken)
                if settled is not None:
                    moves.append(settled)
    return moves


def _moves(prefix: str, old: str, value: MetaValue) -> Iterator[Move]:
    """Where a key of the dialect belongs, if not where it stands."""
    name = old.removeprefix(prefix)
    bare = _NESTED.sub("", name, count=1) if _NESTED.match(name) else name
    moved = prefix != PREFIX or bare != name
    if bare == _MASK:
        number = None if isinstance(value.value, Array) else convert_scalar(value.value, ValueType.UINT32)
        found = value if number is None else MetaValue(ValueType.UINT32, number)
        yield Move(old, MASK_KEY, found, f"the mask token is read from {MASK_KEY}, not from here")
    elif bare == _UNSHIFTED:
        yield _shifted(old, value)
    elif bare in _RESTATED and moved:
        yield Move(old, None, value, "restates what target_layers and fc.weight say")
    elif bare in _RENAMED or moved:
        new = PREFIX + _RENAMED.get(bare, bare)
        told = "" if bare == name else f"nested one level down: {new} is read"
        yield Move(old, new, coerce(BY_NAME[new], value) or value if new in BY_NAME else value, told)


def _shifted(old: str, value: MetaValue) -> Move:
    new = PREFIX + _RENAMED[_UNSHIFTED]
    ids = value.value.items() if isinstance(value.value, Array) and value.value.count <= _MAX_IDS else []
    numbers = [int(item) + 1 for item in ids if type(item) is int]
    if not numbers or len(numbers) < len(ids) or min(numbers) < 1 or max(numbers) >= 1 << 31:
        return Move(old, new, value, f"{new} is read", clash="holds no layer ids")
    shifted = MetaValue(ValueType.ARRAY, Array.of(ValueType.INT32, numbers))
    return Move(old, new, shifted, f"the checkpoint's unshifted ids: {new} is read, and holds each id + 1")


def _settle(move: Move, taken: Metadata) -> Move | None:
    """The move with what stands in its way; None where there is nothing to do. `taken` grows by what it brings."""
    there = taken.get(move.new) if move.new else None
    beside = move.old.startswith(PREFIX) and not _NESTED.match(move.old.removeprefix(PREFIX))
    if there is not None and beside:
        return None  # llama.cpp reads the right one and never looks at this
    if there is not None and same_value(there, move.value):
        return Move(move.old, None, move.value, move.told)
    if there is not None:
        return Move(move.old, move.new, move.value, move.told, clash=f"{move.new} is there too, and differs")
    if move.new:
        taken[move.new] = move.value
    return move


def same_value(one: MetaValue, other: MetaValue) -> bool:
    """Whether two values are the same; the width of an integer does not matter."""
    a, b = one.value, other.value
    if isinstance(a, Array) and isinstance(b, Array):
        return a.count == b.count and (bytes(a.raw) == bytes(b.raw) or (a.count <= _MAX_IDS and a.items() == b.items()))
    return not isinstance(a, Array) and not isinstance(b, Array) and a == b
