"""Carrying a plan out: one pass over the source in tiles, read, converted and written by a thread per core."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash_gguf.conversion.plan import OutputPlan, Plan
from dflash_gguf.conversion.tiles import TileReader
from dflash_gguf.conversion.workers import share
from dflash_gguf.errors import OutputError
from dflash_gguf.formats.blocks import announced, warm_up
from dflash_gguf.formats.gguf.types import GGMLType, tensor_bytes
from dflash_gguf.storage.atomic import AtomicFile

TILE = 1 << 20  # weights; 2 MiB of BF16 stay in the second-level cache with their float32 copy


@dataclass(frozen=True, slots=True)
class _ConversionTile:
    """Rows [first, first + rows) of tensor number `index`."""

    index: int
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class ConversionListener:
    """Who wants to know: the plan once it stands, that kernels are being compiled, and source bytes as they are done.

    `on_bytes` is called from several threads.
    """

    on_plan: Callable[[Plan], None] = lambda _: None
    on_compile: Callable[[], None] = lambda: None
    on_bytes: Callable[[int], None] = lambda _: None


def run_plan(plan: Plan, listener: ConversionListener, *, force: bool) -> None:
    """Write all outputs of `plan`.

    Nothing appears under a final name before every output is whole, re-read and synced. Raises InputError,
    OutputError, or ModelError for a weight that is NaN or infinite.
    """
    _warm_up(plan, listener)
    with ExitStack() as stack:
        files = [AtomicFile(output.path, output.header.file_size, force=force) for output in plan.outputs]
        for file in files:
            stack.push(file)  # before it is created, so that a signal in between leaves nothing
            file.create()
        for file, output in zip(files, plan.outputs, strict=True):
            _write_frame(file, output)
        _write_tiles(plan, files, listener.on_bytes)
        for file, output in zip(files, plan.outputs, strict=True):
            _verify(file, output)
        for file in files:
            file.sync()
        for file in files:
            file.commit()


def _warm_up(plan: Plan, listener: ConversionListener) -> None:
    warm_up(_kernel_types(plan), listener.on_compile)
    if any(tensor.scale for tensor in plan.outputs[0].tensors):
        with announced(listener.on_compile):
            importlib.import_module("dflash_gguf.formats.blocks.mxfp8_block")


def _kernel_types(plan: Plan) -> list[GGMLType]:
    """Types that some tile will be quantized to, so that numba is not imported for a plain copy."""
    pairs = {(t.dtype, t.out.type) for output in plan.outputs for t in output.tensors}
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


def _write_tiles(plan: Plan, files: list[AtomicFile], on_bytes: Callable[[int], None]) -> None:
    def new_worker() -> Callable[[_ConversionTile], None]:
        reader = TileReader(plan.head)
        return lambda tile: on_bytes(_convert(plan, files, tile, reader))

    share(_tiles(plan), new_worker)


def _convert(plan: Plan, files: list[AtomicFile], tile: _ConversionTile, reader: TileReader) -> int:
    """Write one tile to every output; returns source bytes read."""
    size = reader.read(plan.outputs[0].tensors[tile.index], tile.first, tile.rows)
    for file, output in zip(files, plan.outputs, strict=True):
        out = output.tensors[tile.index].out
        row_bytes = tensor_bytes(out.type, out.shape[0])
        data: NDArray[np.uint8] = reader.encode(out.type)
        file.write(output.header.offsets[tile.index] + tile.first * row_bytes, data.data)
    return size


def _tiles(plan: Plan) -> Iterator[_ConversionTile]:
    for index, tensor in enumerate(plan.outputs[0].tensors):
        row = tensor.out.shape[0]
        total = tensor.out.n_weights // row
        rows = max(1, TILE // row)
        if tensor.permuted:
            rows = max(1, rows // plan.head) * plan.head
        for first in range(0, total, rows):
            yield _ConversionTile(index, first, min(rows, total - first))
