"""Q5_K: 256 weights in 176 bytes: f16 d, f16 dmin, 12 bytes of scales and minima, 32 bytes of fifth bits, 128 bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dflash_gguf.formats.blocks.affine import (
    GROUP,
    PARTS,
    WEIGHTS,
    encode,
    fit,
    new_grid,
    read_group,
    write_scales,
)
from dflash_gguf.formats.blocks.jit import F32_SOURCE, U8_TARGET, kernel
from dflash_gguf.formats.blocks.lanes import LANES

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIZE = 176
_TOP = np.float32(31)
_FIRST_STRETCH = np.float32(-0.5)
_LAST_STEP = 15


@kernel(F32_SOURCE, U8_TARGET)
def quantize(source: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    """Low four bits of level i as in Q4_K, from byte 48 on; the fifth of sub-block j is bit j of byte 16 + i."""
    n_blocks = out.size // _SIZE
    grid = new_grid()
    for first in range(0, n_blocks, GROUP):
        read_group(source, first, n_blocks, grid)
        fit(grid, _TOP, _FIRST_STRETCH, _LAST_STEP)
        n = min(GROUP, n_blocks - first)
        for b in range(n):
            write_scales(grid, b * PARTS, out, (first + b) * _SIZE)
        encode(grid, _TOP)
        for b in range(n):
            at = (first + b) * _SIZE + 16
            for i in range(WEIGHTS):
                high = np.uint8(0)
                for p in range(PARTS // 2):
                    code = i * LANES + b * PARTS + 2 * p
                    even = grid.codes[code]
                    odd = grid.codes[code + 1]
                    out[at + WEIGHTS + WEIGHTS * p + i] = (even & np.uint8(15)) | ((odd & np.uint8(15)) << np.uint8(4))
                    high |= (even >> np.uint8(4)) << np.uint8(2 * p)
                    high |= (odd >> np.uint8(4)) << np.uint8(2 * p + 1)
                out[at + i] = high
