"""Metadata values: scalars as Python objects, arrays as a slice of encoded bytes that is decoded only when asked.

The same `Array` is what the scanner hands out (a view of the header) and what the emitter takes, so a
150,000-token vocabulary is copied from one file to another without ever becoming 150,000 strings.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from dflash_gguf.formats.gguf.types import SCALAR_FORMAT, ValueType

Item: TypeAlias = int | float | bool | str
Scalar: TypeAlias = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Array:
    """`count` items of `item_type`, encoded as in the file (strings: u64 length + UTF-8 each)."""

    item_type: ValueType
    count: int
    raw: bytes | memoryview

    @classmethod
    def of(cls, item_type: ValueType, items: Iterable[Item]) -> Array:
        """Encode `items`."""
        if item_type is ValueType.STRING:
            return cls.of_strings([str(item).encode() for item in items])
        values = list(items)
        return cls(item_type, len(values), struct.pack(f"<{len(values)}{SCALAR_FORMAT[item_type]}", *values))

    @classmethod
    def of_strings(cls, items: list[bytes]) -> Array:
        """Encode strings given as UTF-8 bytes."""
        lengths = list(map(len, items))
        prefixes = {length: struct.pack("<Q", length) for length in set(lengths)}
        parts = zip(map(prefixes.__getitem__, lengths), items, strict=True)
        return cls(ValueType.STRING, len(items), b"".join(chain.from_iterable(parts)))

    def strings(self) -> list[bytes]:
        """The strings' bytes, in order; nothing is decoded."""
        raw, position, out = bytes(self.raw), 0, list[bytes]()
        unpack, append = struct.Struct("<Q").unpack_from, out.append
        for _ in range(self.count):
            start = position + 8
            position = start + unpack(raw, position)[0]
            append(raw[start:position])
        return out

    def items(self) -> list[Item]:
        """All items; bytes that are not UTF-8 come back as surrogates."""
        if self.item_type is ValueType.STRING:
            return [item.decode("utf-8", "surrogateescape") for item in self.strings()]
        if self.item_type is ValueType.BOOL:  # struct's "?" would hide a byte other than 0 and 1
            return [byte != 0 for byte in bytes(self.raw)]
        return list(struct.unpack(f"<{self.count}{SCALAR_FORMAT[self.item_type]}", self.raw))


@dataclass(frozen=True, slots=True)
class MetaValue:
    """One metadata value with the type it has in the file."""

    type: ValueType
    value: Scalar | Array


Metadata: TypeAlias = dict[str, MetaValue]
