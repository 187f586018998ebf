"""IEEE half precision and bfloat16 in integer arithmetic, one number at a time, for use inside kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dflash_gguf.formats.blocks.jit import inner

_SIGN = np.uint32(0x8000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_HALF = np.float32(0.5)
_ZERO = np.float32(0)
_ONE = np.float32(1)


def _float_bits(_context: Any, _value: Any) -> Any:
    def generate(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), generate


def _bits_float(_context: Any, _value: Any) -> Any:
    def generate(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


#: The 32 bits of a float32, and the float32 of 32 bits.
float_bits: Callable[[np.float32], np.uint32] = cast("Any", intrinsic(_float_bits))
bits_float: Callable[[np.uint32], np.float32] = cast("Any", intrinsic(_bits_float))


@inner
def half_bits(value: np.float32) -> np.uint32:
    """Bits of the nearest half (ties to even); from 65520 on infinity, NaN becomes 0x7E00. Written to vectorize."""
    bits = float_bits(value)
    size = bits & _MAGNITUDE
    normal = (size + np.uint32(0x0FFF) + ((size >> np.uint32(13)) & np.uint32(1)) - np.uint32(0x38000000)) >> np.uint32(
        13
    )
    # Below 2⁻¹⁴ halves are multiples of 2⁻²⁴, which is what a float32 sum in [0.5, 1) is rounded to.
    tiny = float_bits(bits_float(np.uint32(size)) + _HALF) - np.uint32(0x3F000000)
    result = tiny if size < np.uint32(0x38800000) else normal
    result = np.uint32(0x7C00) if size >= np.uint32(0x47800000) else result
    result = np.uint32(0x7E00) if size > np.uint32(0x7F800000) else result
    return result | ((bits >> np.uint32(16)) & _SIGN)


@inner
def half_value(bits: np.uint32) -> np.float32:
    """Value of finite or infinite half `bits` (the low 16)."""
    size = bits & np.uint32(0x7FFF)
    if size >= np.uint32(0x7C00):
        wide = np.uint32(0x7F800000)
    elif size >= np.uint32(0x0400):
        wide = (size << np.uint32(13)) + np.uint32(0x38000000)
    else:
        wide = float_bits(np.float32(size) * np.float32(2.0**-24))
    return bits_float(np.uint32(wide | ((bits & _SIGN) << np.uint32(16))))


@inner
def store_half(value: np.float32, out: NDArray[np.uint8], at: int) -> np.float32:
    """Write `value` as a half at byte `at`; returns what was written."""
    bits = half_bits(value)
    out[at] = np.uint8(bits & np.uint32(0xFF))
    out[at + 1] = np.uint8(bits >> np.uint32(8))
    return half_value(bits)


@inner
def inverse(d: np.float32) -> np.float32:
    """1 / d, and 0 for 0: a block of zeros has levels of zero."""
    return np.float32(_ONE / d) if d != _ZERO else _ZERO
