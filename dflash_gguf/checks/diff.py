"""Two GGUFs compared: metadata, and tensors by their bytes or, where those differ, by the error between the weights."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from math import isfinite, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_gguf.checks.place import locate
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.formats.gguf.types import BLOCK_SIZE, GGMLType, tensor_bytes
from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.storage.hub import Hub

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dflash_gguf.formats.gguf.layout import TensorInfo
    from dflash_gguf.formats.gguf.scan import Header
    from dflash_gguf.storage.files import ByteFile

TILE = 1 << 20  # weights
_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class KeyDiff:
    """A key whose value differs; None where a file has not got it."""

    key: str
    a: MetaValue | None
    b: MetaValue | None


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """A tensor that differs. The errors are b's against a: RMSE over a's RMS, largest |b − a|, cosine of the angle.

    They are None where one file lacks the tensor, the shapes differ, or a type's weights are not read; `problem`
    then says which.
    """

    name: str
    a: TensorInfo | None
    b: TensorInfo | None
    rmse: float | None = None
    max_error: float | None = None
    cosine: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Diff:
    """All that differs between two files; `same` counts tensors of equal type, shape and bytes."""

    keys: tuple[KeyDiff, ...]
    tensors: tuple[TensorDiff, ...]
    same: int

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.keys and not self.tensors


def diff(a: str | Path, b: str | Path) -> Diff:
    """Compare two files, tensors worst first.

    Raises UsageError or InputError for a file that cannot be read, FormatError for one whose header cannot.
    """
    with ExitStack() as stack:
        hub = Hub()
        sources: list[ByteFile] = []
        for name in (a, b):
            file = locate(str(name), hub).open(whole=True)
            stack.enter_context(file)
            sources.append(file)
        headers = [scan_header(source) for source in sources]
        for header, source in zip(headers, sources, strict=True):
            header.require_sound(source.name)
        keys = tuple(_keys(headers[0], headers[1]))
        tensors, same = _tensors(headers, sources)
    return Diff(keys, tensors, same)


def _keys(a: Header, b: Header) -> Iterator[KeyDiff]:
    for key in dict.fromkeys((*a.metadata, *b.metadata)):
        one, other = a.metadata.get(key), b.metadata.get(key)
        if one is None or other is None or not _equal(one, other):
            yield KeyDiff(key, one, other)


def _equal(one: MetaValue, other: MetaValue) -> bool:
    a, b = one.value, other.value
    if isinstance(a, Array) and isinstance(b, Array):
        return a.item_type is b.item_type and bytes(a.raw) == bytes(b.raw)
    return one.type is other.type and (a == b or (a != a and b != b))  # noqa: PLR0124 - NaN is like NaN here


def _tensors(headers: list[Header], sources: Sequence[ByteFile]) -> tuple[tuple[TensorDiff, ...], int]:
    a, b = headers
    names = list(dict.fromkeys((*a.tensors, *b.tensors)))
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def compare(name: str) -> TensorDiff | None:
        return _compare(name, a.tensors.get(name), b.tensors.get(name), sources)

    with ThreadPoolExecutor(threads) as pool:
        found = [item for item in pool.map(compare, names) if item is not None]
    found.sort(key=lambda item: -(float("inf") if item.rmse is None or not isfinite(item.rmse) else item.rmse))
    return tuple(found), len(names) - len(found)


def _compare(name: str, a: TensorInfo | None, b: TensorInfo | None, sources: Sequence[ByteFile]) -> TensorDiff | None:
    if a is None or b is None:
        return TensorDiff(name, a, b, problem=f"only in {'the second' if a is None else 'the first'} file")
    if a.shape != b.shape:
        return TensorDiff(name, a, b, problem="the shapes differ")
    if a.type is b.type and _same_bytes(a, b, sources):
        return None
    from dflash_gguf.formats.blocks import DEQUANTIZABLE

    for tensor in (a, b):
        if tensor.type not in DEQUANTIZABLE:
            return TensorDiff(name, a, b, problem=f"weights of type {tensor.type.name} are not read")
    return TensorDiff(name, a, b, *_errors(a, b, sources))


def _same_bytes(a: TensorInfo, b: TensorInfo, sources: Sequence[ByteFile]) -> bool:
    for start in range(0, a.size, _BYTES):
        length = min(_BYTES, a.size - start)
        if sources[0].read(a.offset + start, length) != sources[1].read(b.offset + start, length):
            return False
    return True


def _errors(a: TensorInfo, b: TensorInfo, sources: Sequence[ByteFile]) -> tuple[float, float, float]:
    """Relative RMSE, largest error and cosine, summed in float64 a tile at a time."""
    import numpy as np

    step = TILE // 256 * 256
    sums, largest = np.zeros(4), 0.0
    with np.errstate(all="ignore"):
        for first in range(0, a.n_weights, step):
            count = min(step, a.n_weights - first)
            x = _weights(sources[0], a, first, count).astype(np.float64)
            y = _weights(sources[1], b, first, count).astype(np.float64)
            error = y - x
            sums += (error @ error, x @ x, y @ y, x @ y)
            largest = max(largest, float(np.abs(error).max(initial=0)))
    squares, xx, yy, xy = map(float, sums)
    rmse = sqrt(squares / xx) if xx > 0 and isfinite(squares) else 0.0 if squares == 0 else float("inf")
    return rmse, largest, xy / sqrt(xx * yy) if xx > 0 and yy > 0 else float(xx == yy)


def _weights(source: ByteFile, tensor: TensorInfo, first: int, count: int) -> NDArray[Any]:
    import numpy as np

    from dflash_gguf.formats.blocks import dequantize

    per_block, size = BLOCK_SIZE[GGMLType(tensor.type)]
    raw = np.empty(tensor_bytes(tensor.type, count), np.uint8)
    source.read_into(tensor.offset + first // per_block * size, raw.data)
    return dequantize(tensor.type, raw)
