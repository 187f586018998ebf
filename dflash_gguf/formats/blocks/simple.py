"""Q5_0, Q5_1 and Q4_0: 32 weights of a block are f16 d · level, without any search. One weight a lane.

Definition: ggml's `quantize_row_q5_0_ref`, `_q5_1_ref`, `_q4_0_ref`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dflash_gguf.formats.blocks.half import inverse, store_half
from dflash_gguf.formats.blocks.jit import F32_SOURCE, U8_TARGET, inner, kernel
from dflash_gguf.formats.blocks.lanes import (
    LANES,
    F32x32,
    if_less,
    largest,
    load,
    magnitude,
    spread,
    store_bytes,
    truncate,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ZERO = np.float32(0)
_ONE = np.float32(1)
_HALF = np.float32(0.5)
_Q5_0_SIZE = 22
_Q5_1_SIZE = 24
_Q4_0_SIZE = 18


@inner
def _peak(source: NDArray[np.float32], at: int) -> np.float32:
    """The first of the weights that are largest in size; +0 where all are zeros of any sign."""
    x = load(source, at)
    size = largest(magnitude(x))
    if size == _ZERO:
        return _ZERO
    if largest(x) < size:
        return -size
    if -largest(spread(_ZERO) - x) > -size:
        return size
    first = 0
    while first < LANES - 1 and abs(source[at + first]) != size:
        first += 1
    return np.float32(source[at + first])


@inner
def _unsigned_levels(x: F32x32, d: np.float32, top: np.float32) -> F32x32:
    """Levels 0 … top of x, whose largest became level 0."""
    middle = (top + _ONE) / np.float32(2) + _HALF
    level = truncate(x * spread(inverse(d)) + spread(middle))
    return if_less(level, spread(top), level, spread(top))


@inner
def _store_five_bits(levels: NDArray[np.uint8], out: NDArray[np.uint8], at: int) -> None:
    """Bytes 0-3: fifth bit of weight i is bit i; 4-19: low nibbles of weights i and i + 16."""
    high = np.uint32(0)
    for i in range(LANES):
        high |= np.uint32(levels[i] >> np.uint8(4)) << np.uint32(i)
    for i in range(4):
        out[at + i] = np.uint8((high >> np.uint32(8 * i)) & np.uint32(0xFF))
    for i in range(LANES // 2):
        out[at + 4 + i] = (levels[i] & np.uint8(15)) | ((levels[i + LANES // 2] & np.uint8(15)) << np.uint8(4))


@kernel(F32_SOURCE, U8_TARGET)
def quantize_q5_0(source: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    """Bytes 0-1: d; 2-5: fifth bit of weight i is bit i; 6-21: low nibbles of weights i and i + 16."""
    levels = np.empty(LANES, np.uint8)
    for block in range(out.size // _Q5_0_SIZE):
        at = block * _Q5_0_SIZE
        d = _peak(source, block * LANES) / np.float32(-16)
        store_half(d, out, at)
        store_bytes(levels, 0, _unsigned_levels(load(source, block * LANES), d, np.float32(31)))
        _store_five_bits(levels, out, at + 2)


@inner
def _lowest(source: NDArray[np.float32], at: int) -> np.float32:
    """The smallest weight; of zeros of both signs the first."""
    low = -largest(spread(_ZERO) - load(source, at))
    if low == _ZERO:
        for i in range(LANES):
            if source[at + i] == _ZERO:
                return np.float32(source[at + i])
    return low


@kernel(F32_SOURCE, U8_TARGET)
def quantize_q5_1(source: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    """Bytes 0-1: d; 2-3: the block's minimum; then levels above it as in Q5_0."""
    levels = np.empty(LANES, np.uint8)
    for block in range(out.size // _Q5_1_SIZE):
        at = block * _Q5_1_SIZE
        low = _lowest(source, block * LANES)
        x = load(source, block * LANES)
        high = largest(x)
        d = (high - low) / np.float32(31) if high > low else _ZERO  # not −0 for zeros of both signs
        store_half(d, out, at)
        store_half(low, out, at + 2)
        store_bytes(levels, 0, truncate((x - spread(low)) * spread(inverse(d)) + spread(_HALF)))
        _store_five_bits(levels, out, at + 4)


@kernel(F32_SOURCE, U8_TARGET)
def quantize_q4_0(source: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    """Bytes 0-1: d; 2-17: weights i and i + 16 in the low and high nibble."""
    levels = np.empty(LANES, np.uint8)
    for block in range(out.size // _Q4_0_SIZE):
        at = block * _Q4_0_SIZE
        d = _peak(source, block * LANES) / np.float32(-8)
        store_half(d, out, at)
        store_bytes(levels, 0, _unsigned_levels(load(source, block * LANES), d, np.float32(15)))
        for i in range(LANES // 2):
            out[at + 2 + i] = levels[i] | (levels[i + LANES // 2] << np.uint8(4))
