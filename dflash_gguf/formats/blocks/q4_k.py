"""Q4_K: 256 weights in 144 bytes: f16 d, f16 dmin, 12 bytes of scales and minima, 128 bytes of levels 0 … 15."""

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

_SIZE = 144
_TOP = np.float32(15)
_FIRST_STRETCH = np.float32(-1)
_LAST_STEP = 20


@kernel(F32_SOURCE, U8_TARGET)
def quantize(source: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    """Level i of sub-blocks 2p and 2p + 1 are the low and high nibble of byte 16 + 32p + i."""
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
            for p in range(PARTS // 2):
                for i in range(WEIGHTS):
                    code = i * LANES + b * PARTS + 2 * p
                    out[at + WEIGHTS * p + i] = grid.codes[code] | (grid.codes[code + 1] << np.uint8(4))
