"""Encoding a GGUF header: everything in front of the tensor data, as bytes that are known before a file exists."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dflash_gguf.formats.gguf.layout import padded
from dflash_gguf.formats.gguf.types import SCALAR_FORMAT, GGMLType, ValueType, tensor_bytes
from dflash_gguf.formats.gguf.values import Array, MetaValue

ALIGNMENT = 32
VERSION = 3


@dataclass(frozen=True, slots=True)
class OutTensor:
    """A tensor to be written: `shape` in ne order; `size` in bytes, without padding."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]

    @property
    def n_weights(self) -> int:
        """Product of the dims."""
        total = 1
        for dim in self.shape:
            total *= dim
        return total

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return tensor_bytes(self.type, self.n_weights)


@dataclass(frozen=True, slots=True)
class EncodedHeader:
    """A header's bytes (padded to the data), and where every tensor and the file end: absolute offsets."""

    data: bytes = field(repr=False)
    offsets: tuple[int, ...]
    file_size: int


def encode_header(
    metadata: Iterable[tuple[str, MetaValue]],
    tensors: Sequence[OutTensor],
    *,
    version: int = VERSION,
    alignment: int = ALIGNMENT,
) -> EncodedHeader:
    """Encode little-endian; tensors stand in the order given, each padded to `alignment`."""
    pairs = list(metadata)
    parts = [struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(pairs))]
    for key, value in pairs:
        parts += (_string(key.encode()), struct.pack("<I", value.type), encode_value(value))
    position, relative = 0, []
    for tensor in tensors:
        relative.append(position)
        dims = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        parts += (
            _string(tensor.name.encode("utf-8", "surrogateescape")),
            dims,
            struct.pack("<IQ", tensor.type, position),
        )
        position += padded(tensor.size, alignment)
    header = b"".join(parts)
    header += b"\0" * (padded(len(header), alignment) - len(header))
    return EncodedHeader(header, tuple(len(header) + offset for offset in relative), len(header) + position)


def _string(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def encode_value(value: MetaValue) -> bytes:
    """A value as it stands behind its type."""
    if isinstance(value.value, Array):
        return struct.pack("<IQ", value.value.item_type, value.value.count) + bytes(value.value.raw)
    if value.type is ValueType.STRING:
        return _string(str(value.value).encode("utf-8", "surrogateescape"))
    return struct.pack("<" + SCALAR_FORMAT[value.type], value.value)
