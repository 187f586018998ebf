"""Q8_0: 32 weights of a block are f16 d · i8 level, without any search. One weight a lane.

Definition: ggml's `quantize_row_q8_0_ref`. A module of its own, because importing one compiles or loads its kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dflash_gguf.formats.blocks.half import inverse, store_half
from dflash_gguf.formats.blocks.jit import F32_SOURCE, U8_TARGET, inner, kernel
from dflash_gguf.formats.blocks.lanes import (
    LANES,
    F32x32,
    if_greater,
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
_TOO_LARGE = np.float32(2.0**23)
_Q8_0_SIZE = 34


@inner
def _round_half_away(x: F32x32) -> F32x32:
    """C's `roundf`; 0 for what overflowed, whose conversion to a byte gives 0 in x86 code."""
    x = if_less(magnitude(x), spread(_TOO_LARGE), x, spread(_ZERO))
    whole = truncate(x)
    rest = x - whole
    half = spread(_HALF)
    up = if_less(rest, half, spread(_ZERO), spread(_ONE))
    down = if_greater(rest, spread(-_HALF), spread(_ZERO), spread(_ONE))
    return whole + up - down


@kernel(F32_SOURCE, U8_TARGET)
def quantize(source: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    """Bytes 0-1: d = max|x| / 127; then 32 i8 levels, rounded half away from zero."""
    for block in range(out.size // _Q8_0_SIZE):
        at = block * _Q8_0_SIZE
        x = load(source, block * LANES)
        d = largest(magnitude(x)) / np.float32(127)
        store_half(d, out, at)
        store_bytes(out, at + 2, _round_half_away(x * spread(inverse(d))))
