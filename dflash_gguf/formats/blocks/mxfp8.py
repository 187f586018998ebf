"""MXFP8: 32 weights of a row are E4M3FN codes times one E8M0 scale, as ModelOpt writes them.

The scale is the smallest power of two that lets the largest weight fit: 2^ceil(log2(amax / 448)), so the scaled amax
lies in (224, 448] and nothing saturates. With amax = m · 2^x, 1 ≤ m < 2, the exponent is x − 8, one more where m > 1.75.
E4M3FN has no infinities; 0x7F and 0xFF are NaN. E8M0 code s is 2^(s − 127); 255 is NaN.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numba import types

from dflash_gguf.formats.blocks.half import bits_float, float_bits
from dflash_gguf.formats.blocks.jit import F32_SOURCE, U8_SOURCE, U8_TARGET, U16_SOURCE, U16_TARGET, kernel
from dflash_gguf.formats.blocks.lanes import largest, load, spread, total

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Weights that share a scale.
BLOCK = 32
#: Largest E4M3FN value, and the codes that are no number.
E4M3_MAX = 448.0
E4M3_NAN = (0x7F, 0xFF)
E8M0_NAN = 255
#: BF16 bits that stand for "no such value" in what `decode` writes.
NO_VALUE = 0x7FC0

_F64_TARGET = types.Array(types.float64, 1, "C")
_BF16_LARGEST = float(np.uint32(0x7F7F0000).view(np.float32))
_BF16_STEP = 2.0**-133  # of the smallest (subnormal) values


def e4m3_values() -> NDArray[np.float64]:
    """The 256 values of E4M3FN by code: 1 sign, 4 exponent bits (bias 7), 3 mantissa bits, subnormals, no infinities."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    sizes = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * np.exp2(exponent - 10.0))
    values = np.where(codes & 0x80, -sizes, sizes)
    values[list(E4M3_NAN)] = np.nan
    return values


def e8m0_values() -> NDArray[np.float64]:
    """The 256 values of E8M0 by code: powers of two from 2⁻¹²⁷ to 2¹²⁷."""
    values = np.exp2(np.arange(256) - 127.0)
    values[E8M0_NAN] = np.nan
    return values


@cache
def decode_table() -> NDArray[np.uint16]:
    """BF16 bits of every product, at [scale · 256 + code]; `NO_VALUE` where there is none that BF16 holds exactly."""
    with np.errstate(all="ignore"):
        products = e8m0_values()[:, None] * e4m3_values()
        wide = products.astype(np.float32).view(np.uint32)
        # Four significant bits always fit: only the ends of the exponent's range can fail.
        exact = (np.abs(products) <= _BF16_LARGEST) & (products % _BF16_STEP == 0)
    return np.where(exact, wide >> 16, NO_VALUE).astype(np.uint16).reshape(-1)


def why_no_value(code: int, scale: int) -> str:
    """What is wrong with a code and its scale that `decode` found no value for."""
    if scale == E8M0_NAN:
        return "its scale is E8M0 code 255, which is NaN"
    if code in E4M3_NAN:
        return f"E4M3FN code 0x{code:02X} is NaN"
    return f"{e4m3_values()[code]:g} · 2^{scale - 127} is a product that BF16 cannot hold"


def decode(codes: NDArray[np.uint8], scales: NDArray[np.uint8], out: NDArray[np.uint16]) -> None:
    """Write the exact BF16 bits of `codes` (whole blocks, 1-D) with one scale a block into `out`.

    Where there is no exact value, `NO_VALUE` is written: a NaN, to be found by whoever checks for those. Raises
    ValueError where sizes do not match.
    """
    if codes.size != BLOCK * scales.size or out.size != codes.size:
        msg = f"{codes.size} codes, {scales.size} scales, {out.size} values"
        raise ValueError(msg)
    _decode(codes, scales, decode_table(), out)


def encode(
    source: NDArray[np.float32], codes: NDArray[np.uint8], scales: NDArray[np.uint8], sums: NDArray[np.float64]
) -> None:
    """Encode `source` (1-D, whole blocks, finite), and write what it cost into `sums`, in the order of `SUMS`.

    Raises ValueError where sizes do not match. Source of the rule: ModelOpt 0.47.0's MXFP8 tensor.
    """
    if source.size != BLOCK * scales.size or codes.size != source.size or sums.size != len(SUMS):
        msg = f"{source.size} weights, {codes.size} codes, {scales.size} scales, {sums.size} sums"
        raise ValueError(msg)
    _encode(source, codes, scales, _SCALE_VALUES, sums)


#: What `encode` reports: Σw², Σw'², Σ(w − w')², max |w − w'|, max |w|, blocks of zeros, weights beyond 448 · scale.
SUMS = ("squares", "decoded_squares", "squared_error", "max_error", "amax", "zero_blocks", "saturated")

_SCALE_VALUES = np.exp2(np.arange(256) - 127.0)
_SIZE = np.uint32(0x7FFFFFFF)
_SMALLEST_NORMAL = np.uint32(0x3C800000)  # 2⁻⁶
_REBIAS = np.uint32((127 - 7) << 3)


@kernel(U8_SOURCE, U8_SOURCE, U16_SOURCE, U16_TARGET)
def _decode(
    codes: NDArray[np.uint8], scales: NDArray[np.uint8], table: NDArray[np.uint16], out: NDArray[np.uint16]
) -> None:
    for block in range(scales.size):
        row = np.intp(scales[block]) * 256
        at = block * BLOCK
        for i in range(BLOCK):
            out[at + i] = table[row + np.intp(codes[at + i])]


@kernel(F32_SOURCE, U8_TARGET, U8_TARGET, types.Array(types.float64, 1, "C", readonly=True), _F64_TARGET)
def _encode(
    source: NDArray[np.float32],
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    scale_values: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    """Sums of a block are of scaled weights, in float32, so that no size of weights under- or overflows them."""
    scaled = np.empty(BLOCK, np.float32)
    rounded = np.empty(BLOCK, np.float32)
    squares = decoded_squares = squared_error = max_error = amax = 0.0
    zero_blocks = saturated = 0
    for block in range(scales.size):
        at = block * BLOCK
        top = np.uint32(0)
        for i in range(BLOCK):
            top = max(top, float_bits(source[at + i]) & _SIZE)
        exponent = np.int32((top + np.uint32(0x1FFFFF)) >> np.uint32(23)) - np.int32(8)
        scale = np.uint32(max(exponent, np.int32(0)))
        scales[block] = np.uint8(scale)
        inverse = bits_float(np.uint32((np.uint32(254) - scale) << np.uint32(23)))
        for i in range(BLOCK):
            bits = float_bits(source[at + i])
            y = bits_float(np.uint32(bits & _SIZE)) * inverse
            size = float_bits(y)
            normal = (size + np.uint32(0x7FFFF) + ((size >> np.uint32(20)) & np.uint32(1))) >> np.uint32(20)
            # Below 2⁻⁶ the codes are multiples of 2⁻⁹, which is what a float32 sum in [2¹⁴, 2¹⁵) is rounded to.
            tiny = y + np.float32(16384)
            is_tiny = size < _SMALLEST_NORMAL
            code = float_bits(tiny) - np.uint32(0x46800000) if is_tiny else normal - _REBIAS
            codes[at + i] = np.uint8(code | ((bits >> np.uint32(24)) & np.uint32(0x80)))
            scaled[i] = y
            rounded[i] = tiny - np.float32(16384) if is_tiny else bits_float(np.uint32(normal << np.uint32(20)))
        y = load(scaled, 0)
        q = load(rounded, 0)
        miss = y - q
        unit = scale_values[scale]
        squares += np.float64(total(y * y)) * unit * unit
        decoded_squares += np.float64(total(q * q)) * unit * unit
        squared_error += np.float64(total(miss * miss)) * unit * unit
        max_error = max(max_error, np.float64(max(largest(miss), largest(spread(np.float32(0)) - miss))) * unit)
        amax = max(amax, np.float64(bits_float(top)))
        zero_blocks += top == np.uint32(0)
        if bits_float(top) * inverse > np.float32(E4M3_MAX):
            for i in range(BLOCK):
                saturated += scaled[i] > np.float32(E4M3_MAX)
    sums[0] = squares
    sums[1] = decoded_squares
    sums[2] = squared_error
    sums[3] = max_error
    sums[4] = amax
    sums[5] = zero_blocks
    sums[6] = saturated
