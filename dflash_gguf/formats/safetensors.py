"""The safetensors header: name → dtype, shape and byte range, checked against the file before anything is read.

Layout: u64 header length, a JSON object, then the data; ranges must cover the data without holes or overlaps.
Source: the format page of the safetensors project, whose own reader wants the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, TypeGuard

from dflash_gguf.errors import FormatError
from dflash_gguf.formats.json_text import parse_object
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from dflash_gguf.storage.files import ByteFile

MAX_HEADER = 100_000_000
MAX_DIMS = 64  # as many as numpy has; no draft has a tensor of more than three

#: bits of one item of every dtype that safetensors knows
DTYPE_BITS: dict[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One tensor of a safetensors file: `offset` from the start of the file, `size` in bytes, row-major `shape`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int
    source: ByteFile

    @property
    def n_weights(self) -> int:
        """Product of the dims."""
        return prod(self.shape)


def read_header(source: ByteFile) -> dict[str, SourceTensor]:
    """Tensors of `source` in the order of their data.

    Raises FormatError: bad header length, no JSON, a key twice, unknown dtype, size ≠ shape · dtype, a hole, an
    overlap, bytes behind the last tensor.
    """
    if source.size < 8:
        raise FormatError(
            f"{counted(source.size, 'byte', 'is', 'are')} no safetensors file",
            where=source.name,
            hint="was it downloaded?",
        )
    length = int.from_bytes(source.read(0, 8), "little")
    if length > MAX_HEADER or 8 + length > source.size:
        raise FormatError(
            f"header length {length:,}, but the file has {counted(source.size, 'byte')} (at most {MAX_HEADER:,})",
            where=source.name,
            hint="truncated, or not a safetensors file (a Git LFS pointer?)",
        )
    header = parse_object(source.read(8, length), f"{source.name} header")
    header.pop("__metadata__", None)
    tensors = [_tensor(source, 8 + length, name, entry) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.size))
    _check_cover(source, 8 + length, tensors)
    return {tensor.name: tensor for tensor in tensors}


def _tensor(source: ByteFile, data_start: int, name: str, entry: Any) -> SourceTensor:
    where = f"{source.name}: {name}"
    if not isinstance(entry, dict):
        raise FormatError("its header entry is no object", where=where)
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise FormatError(f"unknown dtype {dtype!r}", where=where)
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise FormatError(f"shape {shape!r} and data_offsets {offsets!r} are not lists of naturals", where=where)
    begin, end = offsets
    if begin > end or data_start + end > source.size:
        raise FormatError(
            f"data_offsets {offsets} do not fit {counted(source.size - data_start, 'byte')} of data",
            where=where,
            hint="truncated?",
        )
    if len(shape) > MAX_DIMS:  # a product of millions of dims would be a number of megabytes
        raise FormatError(f"{counted(len(shape), 'dim')}, at most {MAX_DIMS} are read", where=where)
    bits = prod(shape) * DTYPE_BITS[dtype]
    if bits != 8 * (end - begin):
        raise FormatError(f"{counted(end - begin, 'byte')}, but {shape} of {dtype} takes {bits // 8:,}", where=where)
    return SourceTensor(name, dtype, tuple(shape), data_start + begin, end - begin, source)


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 62 for item in value)


def _check_cover(source: ByteFile, data_start: int, tensors: list[SourceTensor]) -> None:
    position = data_start
    for tensor in tensors:
        if tensor.offset != position:
            kind = "overlaps the tensor before it" if tensor.offset < position else "leaves a hole before it"
            raise FormatError(f"its data {kind}", where=f"{source.name}: {tensor.name}")
        position += tensor.size
    if position != source.size:
        raise FormatError(
            f"{counted(source.size - position, 'byte', 'follows', 'follow')} the last tensor", where=source.name
        )


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file to be written: `offset` from the start of the file, `size` in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class EncodedSafetensors:
    """A file's first bytes, its tensors in the order of their data, and its size."""

    data: bytes
    tensors: tuple[StoredTensor, ...]
    file_size: int


def encode_header(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> EncodedSafetensors:
    """Lay out (name, dtype, shape): by dtype, the widest first, then by name, as the safetensors library writes them.

    The metadata say `format: pt`, without which transformers refuses a file. Spaces make the header's length a
    multiple of 8.
    """
    order = {dtype: number for number, dtype in enumerate(DTYPE_BITS)}
    laid_out = sorted(tensors, key=lambda tensor: (-order[tensor[1]], tensor[0]))
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    sizes, position = [], 0
    for name, dtype, shape in laid_out:
        sizes.append(prod(shape) * DTYPE_BITS[dtype] // 8)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + sizes[-1]]}
        position += sizes[-1]
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace")
    text += b" " * (-len(text) % 8)
    stored, offset = [], 8 + len(text)
    for (name, dtype, shape), size in zip(laid_out, sizes, strict=True):
        stored.append(StoredTensor(name, dtype, tuple(shape), offset, size))
        offset += size
    return EncodedSafetensors(len(text).to_bytes(8, "little") + text, tuple(stored), offset)
