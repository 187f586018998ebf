"""Reading all weights of a file as fast as it can be read: what is NaN, what is zero, what is one value.

A quantized tensor is judged by its scales (which multiply every weight of a block) and, only while it may still
be all zero or constant, by its bytes. Offsets of the scales in a block: ggml's block layouts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dflash_gguf.formats.gguf.types import BLOCK_SIZE, GGMLType, tensor_bytes

if TYPE_CHECKING:
    from dflash_gguf.formats.gguf.layout import TensorInfo
    from dflash_gguf.storage.files import ByteFile

TILE = 2 << 20  # bytes

#: exponent bits of the float types, all of them set in NaN and infinity
_EXPONENT = {GGMLType.F32: 0x7F80_0000, GGMLType.F16: 0x7C00, GGMLType.BF16: 0x7F80}
#: where in a block its f16 scales are
_SCALES: dict[GGMLType, tuple[int, ...]] = {
    GGMLType.Q4_0: (0,),
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_0: (0,),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q8_0: (0,),
    GGMLType.Q2_K: (80, 82),
    GGMLType.Q3_K: (108,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
    GGMLType.IQ4_NL: (0,),
    GGMLType.IQ4_XS: (0,),
}
SCANNED = frozenset((*_EXPONENT, *_SCALES))


@dataclass(slots=True)
class TensorStatistics:
    """What a tensor's bytes show: `not_finite` is the first row with NaN or infinity, `mean` that of |F32 vectors|."""

    not_finite: int | None = None
    all_zero: bool = True
    constant: bool = True
    mean: float | None = None


def scan_weights(
    source: ByteFile, tensors: Sequence[TensorInfo], on_bytes: Callable[[int], None]
) -> Iterator[tuple[TensorInfo, TensorStatistics]]:
    """Read `tensors` (of SCANNED types) once; results come in their order. Raises InputError.

    `on_bytes` is told of each tensor's bytes when it is done, from several threads.
    """
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    local = threading.local()

    def look(tensor: TensorInfo) -> TensorStatistics:
        if not hasattr(local, "scanner"):
            local.scanner = _WeightScanner(source)
        seen: TensorStatistics = local.scanner.scan(tensor)
        on_bytes(tensor.size)
        return seen

    with ThreadPoolExecutor(threads) as pool:
        yield from zip(tensors, pool.map(look, tensors), strict=True)


class _WeightScanner:
    """One thread's buffers."""

    def __init__(self, source: ByteFile) -> None:
        self.source = source
        self.buffer = np.empty(TILE, np.uint8)
        self.masked = np.empty(TILE // 2, np.uint16)

    def scan(self, tensor: TensorInfo) -> TensorStatistics:
        seen, first = TensorStatistics(), None
        row = tensor_bytes(tensor.type, tensor.shape[0] if tensor.shape else 1)
        unit = BLOCK_SIZE[tensor.type][1]
        step = max(unit, TILE // unit * unit)
        for start in range(0, tensor.size, step):
            length = min(step, tensor.size - start)
            if len(self.buffer) < length:
                self.buffer = np.empty(length, np.uint8)
            raw = self.buffer[:length]
            self.source.read_into(tensor.offset + start, raw.data)
            at = self._first_bad(tensor.type, raw)
            if at is not None:
                seen.not_finite = (start + at * unit) // row
                return seen
            first = raw[:unit].tobytes() if first is None else first
            self._compare(tensor.type, raw, first, seen)
        if tensor.type is GGMLType.F32 and tensor.size <= TILE:
            seen.mean = float(np.abs(self.buffer[: tensor.size].view(np.float32)).mean(dtype=np.float64))
        return seen

    def _first_bad(self, kind: GGMLType, raw: NDArray[np.uint8]) -> int | None:
        """Number of the first weight (or block) that is not finite."""
        if kind in _SCALES:
            blocks = raw.reshape(-1, BLOCK_SIZE[kind][1])
            parts = [blocks[:, at : at + 2].copy().view(np.uint16).ravel() for at in _SCALES[kind]]
            bad = [int(np.argmax(hit)) for part in parts if (hit := (part & 0x7C00) == 0x7C00).any()]
            return min(bad) if bad else None
        mask = _EXPONENT[kind]
        masked: NDArray[np.uint32] | NDArray[np.uint16]
        if kind is GGMLType.F32:
            masked = raw.view(np.uint32) & np.uint32(mask)
        else:
            bits = raw.view(np.uint16)
            if len(self.masked) < len(bits):
                self.masked = np.empty(len(bits), np.uint16)
            masked = np.bitwise_and(bits, np.uint16(mask), out=self.masked[: len(bits)])
        return int(np.argmax(masked)) if masked.max(initial=0) == mask else None

    def _compare(self, kind: GGMLType, raw: NDArray[np.uint8], first: bytes, seen: TensorStatistics) -> None:
        """Whether all is zero, or like the first weight or block; a few of them first, since few tensors are."""
        for part in (raw[: 64 * len(first)], raw):
            seen.constant = seen.constant and _is_constant(kind, part, first)
            seen.all_zero = seen.all_zero and _is_zero(kind, part)
            if not (seen.constant or seen.all_zero):
                return


def _is_constant(kind: GGMLType, raw: NDArray[np.uint8], first: bytes) -> bool:
    same = raw.reshape(-1, len(first)) == np.frombuffer(first, np.uint8)
    return bool(same.all()) and (kind in _EXPONENT or _one_value(kind, first))


def _is_zero(kind: GGMLType, raw: NDArray[np.uint8]) -> bool:
    """Whether all bytes are zero, or every block's scales are (of either sign): then every weight is."""
    if kind in _EXPONENT:
        return not raw.any()
    blocks = raw.reshape(-1, BLOCK_SIZE[kind][1])
    return not any((blocks[:, at] | (blocks[:, at + 1] & 0x7F)).any() for at in _SCALES[kind])


def _one_value(kind: GGMLType, block: bytes) -> bool:
    """Whether the weights of a block that repeats are one value; Q8_0 only, others are rarely constant by bytes."""
    return kind is GGMLType.Q8_0 and len(set(block[2:])) == 1
