"""Streaming a plan's weights: one pass over the source in tiles, on a thread per core.

Where the bytes go is the caller's business: they are written, or compared with those of a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_gguf.conversion.tiles import TileReader
from dflash_gguf.conversion.workers import share
from dflash_gguf.formats.blocks import announced
from dflash_gguf.model.quantization import BLOCK
from dflash_gguf.mxfp8.checkpoint_plan import CheckpointPlan, PlannedWeight

TILE = 1 << 20  # weights
#: takes bytes and the offset in model.safetensors where they belong; called from several threads
Sink = Callable[[int, memoryview], None]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What became of one or more weights w, decoded to w'. `scale_min` and `scale_max` are E8M0 codes."""

    relative_rmse: float
    cosine: float
    max_abs_error: float
    amax: float
    saturated: int
    zero_blocks: int
    scale_min: int
    scale_max: int

    def as_json(self) -> dict[str, Any]:
        """Every field by its name."""
        return asdict(self)

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization noise; None without noise."""
        return -20 * math.log10(self.relative_rmse) if self.relative_rmse else None


@dataclass(frozen=True, slots=True)
class _Mxfp8Tile:
    """Rows [first, first + rows) of weight number `index`."""

    index: int
    first: int
    rows: int


#: sums as `encode_measured` gives them, with the least and greatest scale
_Measured = tuple[NDArray[np.float64], int, int]


def stream_weights(
    plan: CheckpointPlan,
    sink: Sink,
    *,
    first: Sequence[Callable[[], None]] = (),
    on_bytes: Callable[[int], None] = lambda _: None,
    on_compile: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Statistics], Statistics]:
    """Send every weight's bytes (codes and scales, or as they are) to `sink`; gives statistics per weight, and in all.

    `first` are other jobs that the threads take before any tile. Results do not depend on the number of threads.
    Raises ModelError for a weight that is NaN or infinite, and whatever `sink` raises.
    """
    with announced(on_compile):
        from dflash_gguf.formats.blocks import mxfp8_block  # noqa: F401 - kernels are compiled before threads start
    measured: dict[_Mxfp8Tile, _Measured] = {}
    tiles = list(_tiles(plan))

    def new_worker() -> Callable[[_Mxfp8Tile | Callable[[], None]], None]:
        encoder = _Encoder(plan.weights, sink, measured, on_bytes)
        return lambda job: encoder.encode(job) if isinstance(job, _Mxfp8Tile) else job()

    jobs: list[_Mxfp8Tile | Callable[[], None]] = [*first, *tiles]
    share(jobs, new_worker)
    by_weight: dict[str, list[_Measured]] = {}
    for tile in tiles:
        if tile in measured:
            by_weight.setdefault(plan.weights[tile.index].stored.name, []).append(measured[tile])
    everything = [part for parts in by_weight.values() for part in parts]
    return {name: _statistics(parts) for name, parts in by_weight.items()}, _statistics(everything)


def _tiles(plan: CheckpointPlan) -> Iterator[_Mxfp8Tile]:
    for index, weight in enumerate(plan.weights):
        row = weight.source.shape[-1]
        total, rows = weight.source.n_weights // row, max(1, TILE // row)
        for first in range(0, total, rows):
            yield _Mxfp8Tile(index, first, min(rows, total - first))


class _Encoder:
    """One thread's buffers."""

    def __init__(
        self,
        weights: Sequence[PlannedWeight],
        sink: Sink,
        measured: dict[_Mxfp8Tile, _Measured],
        on_bytes: Callable[[int], None],
    ) -> None:
        self.weights, self.sink, self.measured, self.on_bytes = weights, sink, measured, on_bytes
        self.reader = TileReader(1)
        self.codes = np.empty(0, np.uint8)
        self.scales = np.empty(0, np.uint8)

    def encode(self, tile: _Mxfp8Tile) -> None:
        weight = self.weights[tile.index]
        size = self.reader.read_source(weight.source, tile.first, tile.rows)
        row = weight.source.shape[-1]
        if weight.scale is None:
            self.sink(weight.stored.offset + tile.first * size // tile.rows, self.reader.raw().data)
        else:
            self.measured[tile] = self._quantize(tile.rows * row)
            n_scales = tile.rows * row // BLOCK
            self.sink(weight.stored.offset + tile.first * row, self.codes[: tile.rows * row].data)
            self.sink(weight.scale.offset + tile.first * row // BLOCK, self.scales[:n_scales].data)
        self.on_bytes(size)

    def _quantize(self, n_weights: int) -> _Measured:
        from dflash_gguf.formats.blocks import mxfp8_block

        if self.codes.size < n_weights:
            self.codes, self.scales = np.empty(n_weights, np.uint8), np.empty(n_weights // BLOCK, np.uint8)
        codes, scales, sums = self.codes[:n_weights], self.scales[: n_weights // BLOCK], np.empty(len(mxfp8_block.SUMS))
        mxfp8_block.encode_measured(self.reader.floats(), codes, scales, sums)
        return sums, int(scales.min()), int(scales.max())


def _statistics(parts: Sequence[_Measured]) -> Statistics:
    """Combine tiles; the sums are added in the order of the file, and exactly."""
    squares, decoded, error = (math.fsum(float(sums[i]) for sums, _, _ in parts) for i in range(3))
    max_error, amax = (max((float(sums[i]) for sums, _, _ in parts), default=0.0) for i in (3, 4))
    zero_blocks, saturated = (sum(int(sums[i]) for sums, _, _ in parts) for i in (5, 6))
    norm = math.sqrt(squares) * math.sqrt(decoded)
    return Statistics(
        relative_rmse=math.sqrt(error / squares) if squares else 0.0,
        # 2·w·w' = w² + w'² − (w − w')²
        cosine=(squares + decoded - error) / 2 / norm if norm else 1.0,
        max_abs_error=max_error,
        amax=amax,
        saturated=saturated,
        zero_blocks=zero_blocks,
        scale_min=min((low for _, low, _ in parts), default=0),
        scale_max=max((high for _, _, high in parts), default=0),
    )
