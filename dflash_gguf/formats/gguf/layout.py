"""Where the tensors of a GGUF lie: types, rows, offsets, order and the file's end.

ggml's loader wants the tensors one behind another in the order of their infos, each padded to the alignment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from dflash_gguf.formats.gguf.types import BLOCK_SIZE, REMOVED_TYPES, GGMLType, tensor_bytes
from dflash_gguf.wording import counted

MAX_TENSOR_NAME = 63  # ggml keeps 64 bytes, the last one NUL
_TOO_LARGE = 1 << 63
_KNOWN_TYPES = frozenset(map(int, GGMLType))


class RawTensorInfo(NamedTuple):
    """A tensor info as it stands in the file; nothing in it is to be trusted."""

    name: str
    type: int
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Defect:
    """Something wrong that does not keep the rest of the header from being read; `rule` is a check rule's id."""

    rule: str
    message: str
    where: str


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: `shape` in ne order (fastest first), `offset` from the start of the file, in bytes."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    offset: int
    size: int

    @property
    def n_weights(self) -> int:
        """Product of the dims."""
        return prod(self.shape)


@dataclass(slots=True)
class Layout:
    """The tensors whose size can be told, and what is wrong."""

    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    errors: list[Defect] = field(default_factory=list)
    warnings: list[Defect] = field(default_factory=list)


def lay_out(infos: list[RawTensorInfo], data_offset: int, alignment: int, file_size: int) -> Layout:
    """Check `infos` against one another and against the file's size."""
    layout = Layout()
    expected: int | None = 0
    for info in infos:
        _check_name(layout, info)
        ggml_type = _checked_type(layout, info)
        if ggml_type is None:
            expected = None  # nobody can tell where the next one has to start
            continue
        size = tensor_bytes(ggml_type, prod(info.shape))
        expected = _check_offset(layout, info, expected, alignment)
        if expected is not None:
            expected += padded(size, alignment)
        if info.name in layout.tensors:
            layout.errors.append(Defect("GF005", "the tensor stands twice", info.name))
        else:
            tensor = TensorInfo(info.name, ggml_type, info.shape, data_offset + info.offset, size)
            layout.tensors[info.name] = tensor
    _check_end(layout, data_offset, alignment, file_size)
    return layout


def padded(size: int, alignment: int) -> int:
    """`size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


def _check_name(layout: Layout, info: RawTensorInfo) -> None:
    length = len(info.name.encode("utf-8", "surrogateescape"))
    if not 0 < length <= MAX_TENSOR_NAME:
        message = f"the tensor's name has {counted(length, 'byte')}, expected 1 to {MAX_TENSOR_NAME}"
        layout.errors.append(Defect("GF005", message, info.name[:80]))
    if not info.name.isprintable():
        layout.warnings.append(Defect("GF007", "characters in the tensor's name cannot be shown", info.name[:80]))


def _checked_type(layout: Layout, info: RawTensorInfo) -> GGMLType | None:
    """The tensor's type, or None (with a defect) when its size cannot be told."""
    problem, rule, ggml_type = "", "GF005", None
    row = info.shape[0] if info.shape else 1
    if info.type in REMOVED_TYPES:
        problem = f"type {info.type} ({REMOVED_TYPES[info.type]}) was removed from ggml"
    elif info.type not in _KNOWN_TYPES:
        problem = f"unknown tensor type {info.type}"
    elif any(not 0 < dim < _TOO_LARGE for dim in info.shape):
        problem = f"dims {list(info.shape)}: each must be positive"
    elif prod(info.shape) * 8 >= _TOO_LARGE or info.offset >= _TOO_LARGE:
        problem, rule = f"dims {list(info.shape)} at offset {info.offset:,} fit no file", "GF003"
    elif row % BLOCK_SIZE[GGMLType(info.type)][0]:
        kind = GGMLType(info.type)
        problem = f"a row of {row} is not a multiple of {kind.name}'s block of {BLOCK_SIZE[kind][0]}"
    else:
        ggml_type = GGMLType(info.type)
    if problem:
        layout.errors.append(Defect(rule, problem, info.name[:80]))
    return ggml_type


def _check_offset(layout: Layout, info: RawTensorInfo, expected: int | None, alignment: int) -> int | None:
    """The offset to go on from: the tensor's own, so that one fault is told once."""
    problem = ""
    if info.offset % alignment:
        problem = f"offset {info.offset:,} is not a multiple of the alignment {alignment}"
    elif expected is not None and info.offset < expected:
        problem = f"offset {info.offset:,} overlaps the tensor that ends at {expected:,}"
    elif expected is not None and info.offset > expected:
        problem = f"offset {info.offset:,} leaves a gap after {expected:,}"
    if problem:
        layout.errors.append(Defect("GF006", problem, info.name))
        return None if info.offset % alignment else info.offset
    return info.offset


def _check_end(layout: Layout, data_offset: int, alignment: int, file_size: int) -> None:
    ends = [(tensor.offset + tensor.size, tensor.name) for tensor in layout.tensors.values()]
    end = max(ends)[0] if ends else min(data_offset, file_size)
    if end > file_size:
        first = min(past for past in ends if past[0] > file_size)[1]
        missing = counted(end - file_size, "byte", "is", "are")
        message = f"the file is truncated: {missing} missing, from this tensor on"
        layout.errors.append(Defect("GF006", message, first))
    behind = file_size - data_offset - padded(max(0, end - data_offset), alignment)
    if not layout.errors and behind > 0:
        layout.warnings.append(
            Defect("GF007", f"{counted(behind, 'byte', 'follows', 'follow')} the last tensor", "end of file")
        )
