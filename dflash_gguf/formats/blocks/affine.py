"""The search behind Q4_K and Q5_K: 32 weights of a sub-block as scale · level − min, level in 0 … `top`.

From a first guess (the range divided evenly) a number of steps stretch the grid a little, fit scale and minimum
by least squares to the levels that it gives, and keep the fit with the smallest weighted error. A weight counts
as much as its size plus the sub-block's root mean square. The minimum that a step kept is the next step's origin.
Definition: ggml's `make_qkx2_quants` as `quantize_row_q4_K_ref` and `quantize_row_q5_K_ref` call it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dflash_gguf.formats.blocks.half import float_bits, store_half
from dflash_gguf.formats.blocks.jit import inner
from dflash_gguf.formats.blocks.lanes import (
    LANES,
    F32x32,
    if_equal,
    if_greater,
    if_less,
    load,
    magnitude,
    nearest,
    spread,
    square_root,
    store,
    store_bytes,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Weights of a sub-block, sub-blocks of a block, and blocks that are worked on together (one sub-block a lane).
WEIGHTS = 32
PARTS = 8
GROUP = LANES // PARTS

_ZERO = np.float32(0)
_ONE = np.float32(1)
_COUNT = np.float32(WEIGHTS)
_DELTA = np.float32(0.1)
_INFINITY = np.float32(np.inf)
_FINEST = np.float32(63)


class Grid(NamedTuple):
    """Scratch of one group. Rows of `LANES` sub-blocks: weight i of sub-block k is at [i · LANES + k]."""

    x: NDArray[np.float32]
    importance: NDArray[np.float32]
    levels: NDArray[np.float32]
    #: Per sub-block: fitted scale and minimum (≤ 0) …
    scale: NDArray[np.float32]
    low: NDArray[np.float32]
    #: … and what gave the kept levels: level = nearest(slope · (x − origin)).
    slope: NDArray[np.float32]
    origin: NDArray[np.float32]
    #: Per sub-block: scale and minimum as the file holds them.
    step: NDArray[np.float32]
    offset: NDArray[np.float32]
    codes: NDArray[np.uint8]


@inner
def new_grid() -> Grid:
    n = WEIGHTS * LANES
    f32 = np.float32
    return Grid(
        np.empty(n, f32),
        np.empty(n, f32),
        np.empty(n, f32),
        np.empty(LANES, f32),
        np.empty(LANES, f32),
        np.empty(LANES, f32),
        np.empty(LANES, f32),
        np.empty(LANES, f32),
        np.empty(LANES, f32),
        np.empty(n, np.uint8),
    )


@inner
def read_group(source: NDArray[np.float32], block: int, n_blocks: int, grid: Grid) -> None:
    """Turn `GROUP` blocks from `block` on, fewer at the end of the source, into lanes; the rest are zero."""
    n_parts = min(GROUP, n_blocks - block) * PARTS
    start = block * PARTS * WEIGHTS
    for k in range(n_parts):
        for i in range(WEIGHTS):
            grid.x[i * LANES + k] = source[start + k * WEIGHTS + i]
    for k in range(n_parts, LANES):
        for i in range(WEIGHTS):
            grid.x[i * LANES + k] = _ZERO


@inner
def _weigh(grid: Grid) -> None:
    squares = spread(_ZERO)
    for i in range(WEIGHTS):
        x = load(grid.x, i * LANES)
        squares = squares + x * x
    rms = square_root(squares / spread(_COUNT))
    for i in range(WEIGHTS):
        store(grid.importance, i * LANES, rms + magnitude(load(grid.x, i * LANES)))


@inner
def _level(x: F32x32, slope: F32x32, origin: F32x32, top: F32x32) -> F32x32:
    zero = spread(_ZERO)
    level = nearest(slope * (x - origin))
    level = if_less(level, top, level, top)
    return if_greater(level, zero, level, zero)


@inner
def _error(grid: Grid, scale: F32x32, low: F32x32) -> F32x32:
    error = spread(_ZERO)
    for i in range(WEIGHTS):
        miss = scale * load(grid.levels, i * LANES) + low - load(grid.x, i * LANES)
        error = error + load(grid.importance, i * LANES) * (miss * miss)
    return error


@inner
def fit(grid: Grid, top: np.float32, first_stretch: np.float32, last_step: int) -> None:
    """Fill `scale`, `low`, `slope`, `origin` of the grid from its `x`: steps 0 … `last_step`."""
    _weigh(grid)
    zero = spread(_ZERO)
    tops = spread(top)
    x = load(grid.x, 0)
    weight = load(grid.importance, 0)
    low = x
    high = x
    sum_w = weight
    sum_x = weight * x
    for i in range(1, WEIGHTS):
        x = load(grid.x, i * LANES)
        weight = load(grid.importance, i * LANES)
        low = if_less(x, low, x, low)
        high = if_greater(x, high, x, high)
        sum_w = sum_w + weight
        sum_x = sum_x + weight * x
    low = if_greater(low, zero, zero, low)
    lowest = low

    slope = tops / (high - low)
    scale = spread(_ONE) / slope
    origin = low
    for i in range(WEIGHTS):
        store(grid.levels, i * LANES, _level(load(grid.x, i * LANES), slope, low, tops))
    best = _error(grid, scale, low)

    for step in range(last_step + 1):
        stretch = first_stretch + _DELTA * np.float32(step) + top
        new_slope = spread(stretch) / (high - low)
        sum_l = zero
        sum_l2 = zero
        sum_xl = zero
        for i in range(WEIGHTS):
            x = load(grid.x, i * LANES)
            level = _level(x, new_slope, low, tops)
            store(grid.levels, i * LANES, level)
            weighted = load(grid.importance, i * LANES) * level
            sum_l = sum_l + weighted
            sum_l2 = sum_l2 + weighted * level
            sum_xl = sum_xl + weighted * x
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        new_scale = if_greater(new_low, zero, sum_xl / sum_l2, new_scale)
        new_low = if_greater(new_low, zero, zero, new_low)
        error = _error(grid, new_scale, new_low)
        error = if_greater(determinant, zero, error, spread(_INFINITY))
        slope = if_less(error, best, new_slope, slope)
        origin = if_less(error, best, low, origin)
        scale = if_less(error, best, new_scale, scale)
        low = if_less(error, best, new_low, low)
        best = if_less(error, best, error, best)

    # A sub-block of one value ≤ 0 is its minimum, and nothing was to be searched.
    store(grid.scale, 0, if_equal(high, lowest, zero, scale))
    store(grid.low, 0, if_equal(high, lowest, lowest, low))
    store(grid.slope, 0, if_equal(high, lowest, zero, slope))
    store(grid.origin, 0, if_equal(high, lowest, lowest, origin))


@inner
def _six_bits(value: np.float32) -> np.uint32:
    """`nearest`, its low byte, at most 63."""
    bits = float_bits(value + np.float32(12582912.0)) & np.uint32(0x7FFFFF)
    return min((bits - np.uint32(0x400000)) & np.uint32(0xFF), np.uint32(63))


@inner
def write_scales(grid: Grid, part: int, out: NDArray[np.uint8], at: int) -> None:
    """Write a block's head (f16 d, f16 dmin, 12 bytes of 6-bit scales and minima) and fill `step`, `offset`.

    `part` is the block's first lane. Bytes 0-3 hold the low 6 bits of scales 0-3, 4-7 those of minima 0-3, 8-11 the
    low nibbles of scale and minimum 4-7, whose high two bits are on top of bytes 0-3 and 4-7.
    """
    max_scale = _ZERO
    max_min = _ZERO
    for k in range(part, part + PARTS):
        max_scale = max(max_scale, grid.scale[k])
        max_min = max(max_min, -grid.low[k])
    per_scale = _FINEST / max_scale if max_scale > _ZERO else _ZERO
    per_min = _FINEST / max_min if max_min > _ZERO else _ZERO
    d = store_half(max_scale / _FINEST, out, at)
    d_min = store_half(max_min / _FINEST, out, at + 2)
    for j in range(PARTS):
        scale = _six_bits(per_scale * grid.scale[part + j])
        minimum = _six_bits(per_min * -grid.low[part + j])
        grid.step[part + j] = d * np.float32(scale)
        grid.offset[part + j] = d_min * np.float32(minimum)
        if j < PARTS // 2:
            out[at + 4 + j] = np.uint8(scale)
            out[at + 8 + j] = np.uint8(minimum)
        else:
            out[at + 8 + j] = np.uint8((scale & np.uint32(15)) | ((minimum & np.uint32(15)) << np.uint32(4)))
            out[at + j] |= np.uint8((scale >> np.uint32(4)) << np.uint32(6))
            out[at + 4 + j] |= np.uint8((minimum >> np.uint32(4)) << np.uint32(6))


@inner
def encode(grid: Grid, top: np.float32) -> None:
    """Fill `codes` with the levels nearest to x on the stored grid; where its step is 0, those that the fit kept."""
    zero = spread(_ZERO)
    tops = spread(top)
    step = load(grid.step, 0)
    offset = load(grid.offset, 0)
    slope = load(grid.slope, 0)
    origin = load(grid.origin, 0)
    for i in range(WEIGHTS):
        x = load(grid.x, i * LANES)
        level = nearest(if_equal(step, zero, slope * (x - origin), (x + offset) / step))
        level = if_less(level, tops, level, tops)
        store_bytes(grid.codes, i * LANES, if_greater(level, zero, level, zero))
