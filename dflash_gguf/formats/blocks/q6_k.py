"""Q6_K: 256 weights in 210 bytes: 128 bytes of low nibbles, 64 of high bit pairs, 16 i8 scales, f16 d.

A sub-block of 16 weights is scale · level, level in −32 … 31. From the scale that maps the largest weight to −32,
eighteen steps stretch the grid a little and fit the scale by least squares, a weight counting as its square.
Definition: ggml's `make_qx_quants` as `quantize_row_q6_K_ref` calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dflash_gguf.formats.blocks.half import float_bits, store_half
from dflash_gguf.formats.blocks.jit import F32_SOURCE, U8_TARGET, inner, kernel
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
    store,
    store_bytes,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIZE = 210
_WEIGHTS = 16
_PARTS = 16
_GROUP = LANES // _PARTS
_HIGH = 128
_SCALES = 192
_D = 208

_ZERO = np.float32(0)
_ONE = np.float32(1)
_LOWEST = np.float32(-32)
_HIGHEST = np.float32(31)
_DELTA = np.float32(0.1)
_STEPS = 9
_NEVER = np.float32(-np.inf)
#: Sub-blocks and blocks with nothing larger than this are written as zero.
_NOTHING = np.float32(1e-15)


class _Grid(NamedTuple):
    """Scratch of one group. Rows of `LANES` sub-blocks: weight i of sub-block k is at [i · LANES + k]."""

    x: NDArray[np.float32]
    square: NDArray[np.float32]
    cube: NDArray[np.float32]
    scale: NDArray[np.float32]
    #: What gave the kept levels: level = nearest(slope · x).
    slope: NDArray[np.float32]
    #: Scale as the file holds it.
    step: NDArray[np.float32]
    largest: NDArray[np.float32]
    codes: NDArray[np.uint8]


@inner
def _new_grid() -> _Grid:
    n = _WEIGHTS * LANES
    f32 = np.float32
    return _Grid(
        np.empty(n, f32),
        np.empty(n, f32),
        np.empty(n, f32),
        np.empty(LANES, f32),
        np.empty(LANES, f32),
        np.empty(LANES, f32),
        np.empty(LANES, f32),
        np.empty(n, np.uint8),
    )


@inner
def _read_group(source: NDArray[np.float32], block: int, n_blocks: int, grid: _Grid) -> None:
    n_parts = min(_GROUP, n_blocks - block) * _PARTS
    start = block * _PARTS * _WEIGHTS
    for k in range(n_parts):
        for i in range(_WEIGHTS):
            grid.x[i * LANES + k] = source[start + k * _WEIGHTS + i]
    for k in range(n_parts, LANES):
        for i in range(_WEIGHTS):
            grid.x[i * LANES + k] = _ZERO


@inner
def _level(x: F32x32, slope: F32x32) -> F32x32:
    level = nearest(slope * x)
    level = if_less(level, spread(_HIGHEST), level, spread(_HIGHEST))
    return if_greater(level, spread(_LOWEST), level, spread(_LOWEST))


@inner
def _sums(grid: _Grid, slope: F32x32) -> tuple[F32x32, F32x32]:
    """Σ x²·x·level and Σ x²·level²."""
    sum_xl = spread(_ZERO)
    sum_l2 = spread(_ZERO)
    for i in range(_WEIGHTS):
        level = _level(load(grid.x, i * LANES), slope)
        sum_xl = sum_xl + load(grid.cube, i * LANES) * level
        sum_l2 = sum_l2 + load(grid.square, i * LANES) * level * level
    return sum_xl, sum_l2


@inner
def _fit(grid: _Grid) -> None:
    """Fill `scale`, `slope` and `largest` of the grid from its `x`."""
    zero = spread(_ZERO)
    size = zero
    peak = zero
    for i in range(_WEIGHTS):
        x = load(grid.x, i * LANES)
        peak = if_greater(magnitude(x), size, x, peak)
        size = if_greater(magnitude(x), size, magnitude(x), size)
        square = x * x
        store(grid.square, i * LANES, square)
        store(grid.cube, i * LANES, square * x)
    slope = spread(_LOWEST) / peak
    sum_xl, sum_l2 = _sums(grid, slope)
    scale = if_equal(sum_l2, zero, zero, sum_xl / sum_l2)
    best = scale * sum_xl
    for step in range(-_STEPS, _STEPS + 1):
        if step == 0:
            continue
        stretch = -(-_LOWEST + _DELTA * np.float32(step))
        new_slope = spread(stretch) / peak
        sum_xl, sum_l2 = _sums(grid, new_slope)
        # Better: Σxl²/Σl² grew, where Σl² > 0.
        gain = if_greater(sum_l2, zero, sum_xl * sum_xl, spread(_NEVER))
        bar = best * sum_l2
        new_scale = sum_xl / sum_l2
        slope = if_greater(gain, bar, new_slope, slope)
        scale = if_greater(gain, bar, new_scale, scale)
        best = if_greater(gain, bar, new_scale * sum_xl, best)
    nothing = spread(_NOTHING)
    store(grid.scale, 0, if_less(size, nothing, zero, scale))
    store(grid.slope, 0, slope)
    store(grid.largest, 0, size)


@inner
def _nearest_int(value: np.float32) -> int:
    return int(float_bits(value + np.float32(12582912.0)) & np.uint32(0x7FFFFF)) - 0x400000


@inner
def _write_scales(grid: _Grid, part: int, out: NDArray[np.uint8], at: int) -> bool:
    """Write d and the scales and fill `step`; False where the block holds nothing and is written as zeros."""
    top = _ZERO
    size = _ZERO
    for k in range(part, part + _PARTS):
        if abs(grid.scale[k]) > size:
            size = abs(grid.scale[k])
            top = grid.scale[k]
    if size < _NOTHING:
        out[at : at + _SIZE] = 0
        return False
    per_scale = np.float32(-128) / top
    d = store_half(_ONE / per_scale, out, at + _D)
    for j in range(_PARTS):
        scale = np.int8(min(127, _nearest_int(per_scale * grid.scale[part + j])))
        out[at + _SCALES + j] = np.uint8(scale)
        grid.step[part + j] = d * np.float32(scale)
    return True


@inner
def _encode(grid: _Grid) -> None:
    """Fill `codes` with level + 32 nearest to x / step; where the step is 0, those that the fit kept."""
    zero = spread(_ZERO)
    bias = spread(-_LOWEST)
    step = load(grid.step, 0)
    slope = load(grid.slope, 0)
    size = load(grid.largest, 0)
    # Where a sub-block has nothing, its levels were never set: they are 0 before the bias is added.
    unset = if_less(size, spread(_NOTHING), zero, spread(_ONE))
    for i in range(_WEIGHTS):
        x = load(grid.x, i * LANES)
        kept = (_level(x, slope) + bias) * unset
        stored = nearest(x / step)
        stored = if_less(stored, spread(_HIGHEST), stored, spread(_HIGHEST))
        stored = if_greater(stored, spread(_LOWEST), stored, spread(_LOWEST)) + bias
        store_bytes(grid.codes, i * LANES, if_equal(step, zero, kept, stored))


@inner
def _pack(grid: _Grid, part: int, out: NDArray[np.uint8], at: int) -> None:
    """Weight e of each half is in byte e % 64 of its 64 low bytes (low nibble e < 64), its high bits in e % 32."""
    for half in range(2):
        for i in range(32):
            code = (i % _WEIGHTS) * LANES + part + half * 8 + i // _WEIGHTS
            a = grid.codes[code]
            b = grid.codes[code + 2]
            c = grid.codes[code + 4]
            d = grid.codes[code + 6]
            out[at + 64 * half + i] = (a & np.uint8(15)) | ((c & np.uint8(15)) << np.uint8(4))
            out[at + 64 * half + 32 + i] = (b & np.uint8(15)) | ((d & np.uint8(15)) << np.uint8(4))
            high = (a >> np.uint8(4)) | ((b >> np.uint8(4)) << np.uint8(2))
            high |= ((c >> np.uint8(4)) << np.uint8(4)) | ((d >> np.uint8(4)) << np.uint8(6))
            out[at + _HIGH + 32 * half + i] = high


@kernel(F32_SOURCE, U8_TARGET)
def quantize(source: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    n_blocks = out.size // _SIZE
    grid = _new_grid()
    filled = np.empty(_GROUP, np.bool_)
    for first in range(0, n_blocks, _GROUP):
        _read_group(source, first, n_blocks, grid)
        _fit(grid)
        n = min(_GROUP, n_blocks - first)
        for b in range(n):
            filled[b] = _write_scales(grid, b * _PARTS, out, (first + b) * _SIZE)
        _encode(grid)
        for b in range(n):
            if filled[b]:
                _pack(grid, b * _PARTS, out, (first + b) * _SIZE)
