"""Carrying a plan out: one pass over the source in tiles, read, converted and written by a thread per core."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash_gguf.bytesio.atomic import AtomicFile
from dflash_gguf.convert.plan import OutputPlan, Plan
from dflash_gguf.convert.tiles import TileReader
from dflash_gguf.errors import OutputError
from dflash_gguf.formats.blocks import warm_up
from dflash_gguf.formats.gguf.types import GGMLType, tensor_bytes

TILE = 1 << 20  # weights; 2 MiB of BF16 stay in the second-level cache with their float32 copy


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows [first, first + rows) of tensor number `index`."""

    index: int
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class Listener:
    """Who wants to know: the plan once it stands, that kernels are being compiled, and source bytes as they are done.

    `on_bytes` is called from several threads.
    """

    on_plan: Callable[[Plan], None] = lambda _: None
    on_compile: Callable[[], None] = lambda: None
    on_bytes: Callable[[int], None] = lambda _: None


def run_plan(plan: Plan, listener: Listener, *, force: bool) -> None:
    """Write all outputs of `plan`.

    Nothing appears under a final name before every output is whole, re-read and synced. Raises InputError,
    OutputError, or ModelError for a weight that is NaN or infinite.
    """
    warm_up(_kernel_types(plan), listener.on_compile)
    with ExitStack() as stack:
        files = [AtomicFile(output.path, output.header.file_size, force=force) for output in plan.outputs]
        for file in files:
            stack.push(file)  # before it is created, so that a signal in between leaves nothing
            file.create()
        for file, output in zip(files, plan.outputs, strict=True):
            _write_frame(file, output)
        _Writer(plan, files, listener.on_bytes).run()
        for file, output in zip(files, plan.outputs, strict=True):
            _verify(file, output)
        for file in files:
            file.sync()
        for file in files:
            file.commit()


def _kernel_types(plan: Plan) -> list[GGMLType]:
    """Types that some tile will be quantized to, so that numba is not imported for a plain copy."""
    pairs = {(t.source.dtype, t.out.type) for output in plan.outputs for t in output.tensors}
    return sorted({kind for dtype, kind in pairs if kind.name != dtype and kind is not GGMLType.F32})


def _write_frame(file: AtomicFile, output: OutputPlan) -> None:
    """The header and the padding behind each tensor."""
    file.write(0, output.header.data)
    ends = (*output.header.offsets[1:], output.header.file_size)
    for tensor, offset, end in zip(output.tensors, output.header.offsets, ends, strict=True):
        file.write(offset + tensor.out.size, b"\0" * (end - offset - tensor.out.size))


def _verify(file: AtomicFile, output: OutputPlan) -> None:
    """Compare the header on disk with the plan's."""
    if file.read(0, len(output.header.data)) != output.header.data:
        raise OutputError("the header read back differs from what was written", where=str(file.path), hint="bad disk?")


class _Writer:
    """Threads that take tiles one after another until none is left or one of them fails."""

    def __init__(self, plan: Plan, files: list[AtomicFile], on_bytes: Callable[[int], None]) -> None:
        self.plan, self.files, self.on_bytes = plan, files, on_bytes
        self.tiles = _tiles(plan)
        self.lock = threading.Lock()
        self.stop = False

    def run(self) -> None:
        threads = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(self._work) for _ in range(threads)]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                self.stop = True
                raise

    def _next(self) -> _Tile | None:
        with self.lock:
            return None if self.stop else next(self.tiles, None)

    def _work(self) -> None:
        reader = TileReader(self.plan.head)
        try:
            while (tile := self._next()) is not None:
                self._convert(tile, reader)
        except BaseException:
            self.stop = True
            raise

    def _convert(self, tile: _Tile, reader: TileReader) -> None:
        size = reader.read(self.plan.outputs[0].tensors[tile.index], tile.first, tile.rows)
        for file, output in zip(self.files, self.plan.outputs, strict=True):
            out = output.tensors[tile.index].out
            row_bytes = tensor_bytes(out.type, out.shape[0])
            data: NDArray[np.uint8] = reader.encode(out.type)
            file.write(output.header.offsets[tile.index] + tile.first * row_bytes, data.data)
        self.on_bytes(size)


def _tiles(plan: Plan) -> Iterator[_Tile]:
    for index, tensor in enumerate(plan.outputs[0].tensors):
        row = tensor.out.shape[0]
        total = tensor.out.n_weights // row
        rows = max(1, TILE // row)
        if tensor.permuted:
            rows = max(1, rows // plan.head) * plan.head
        for first in range(0, total, rows):
            yield _Tile(index, first, min(rows, total - first))
