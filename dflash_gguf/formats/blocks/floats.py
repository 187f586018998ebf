"""float32 to F16 and BF16, nearest with ties to even. A NaN stays one (F16 0x7E00, BF16 quiet), as ggml writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dflash_gguf.formats.blocks.half import float_bits, half_bits
from dflash_gguf.formats.blocks.jit import F32_SOURCE, U16_TARGET, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray


@kernel(F32_SOURCE, U16_TARGET)
def to_f16(source: NDArray[np.float32], out: NDArray[np.uint16]) -> None:
    for i in range(out.size):
        out[i] = np.uint16(half_bits(source[i]))


@kernel(F32_SOURCE, U16_TARGET)
def to_bf16(source: NDArray[np.float32], out: NDArray[np.uint16]) -> None:
    for i in range(out.size):
        bits = float_bits(source[i])
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        quiet = (bits >> np.uint32(16)) | np.uint32(64)
        is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        out[i] = np.uint16(quiet if is_nan else rounded)
