"""MXFP8: 32 weights of a row share a power of two (E8M0) and are E4M3FN numbers themselves.

The scale is the least power of two at which no weight exceeds 448, E4M3's largest: ceil(log2(amax / 448)), at least
2⁻¹²⁷. So scaled weights are rounded (to nearest, ties to even) and never clamped. Source: ModelOpt's MXFP8 quantizer;
formats: OCP Microscaling Formats v1.0, 5.3.1 and 5.4.1. Importing this module loads or compiles its kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import types

from dflash_gguf.formats.blocks.half import bits_float, float_bits
from dflash_gguf.formats.blocks.jit import F32_SOURCE, U8_SOURCE, U8_TARGET, U16_TARGET, inner, kernel
from dflash_gguf.formats.blocks.lanes import largest, load, magnitude, total

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Weights that share a scale.
BLOCK = 32
#: The scale that is no number, and the magnitude of the weight codes that are none.
NAN_SCALE = 255
NAN_CODE = 0x7F

_BIAS = 127
#: Scales at which every code fits BF16: the least code is 2⁻⁹ and BF16's least bit 2⁻¹³³, the largest is 448 < 2⁹.
_EXACT = range(3, 247)


def _e4m3_values() -> NDArray[np.float32]:
    """Value of each of the 256 codes: sign, 4 bits of exponent (bias 7, 0 is subnormal), 3 of fraction; no infinity."""
    magnitude = np.arange(128)
    exponent, fraction = magnitude >> 3, magnitude & 7
    normal = np.ldexp(8.0 + fraction, exponent - 10)
    values = np.where(exponent == 0, np.ldexp(1.0 * fraction, -9), normal)
    values[NAN_CODE] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


def _e8m0_values() -> NDArray[np.float32]:
    """Value of each of the 256 scales: 2^(s − 127); 255 is NaN."""
    values = np.ldexp(1.0, np.arange(256) - _BIAS)
    values[NAN_SCALE] = np.nan
    return values.astype(np.float32)


E4M3 = _e4m3_values()
E8M0 = _e8m0_values()
_POWERS = E8M0.astype(np.float64)

#: What `encode_measured` reports: Σw², Σw'², Σ(w − w')², max|w − w'|, max|w|, blocks of zeros, weights > 448 · scale.
SUMS = ("squares", "decoded_squares", "squared_error", "max_error", "amax", "zero_blocks", "saturated")


@inner
def _scale(amax_bits: np.uint32) -> int:
    """Biased exponent of the block's scale from its largest magnitude m · 2^x: x − 8, one more where m > 1.75."""
    exponent = int(amax_bits >> np.uint32(23)) - 8
    if (amax_bits & np.uint32(0x7FFFFF)) > np.uint32(0x600000):
        exponent += 1
    return max(exponent, 0)


@inner
def _e4m3_code(value: np.float32) -> np.uint32:
    """Code nearest to |value| ≤ 448. Written to vectorize."""
    bits = float_bits(value)
    size = bits & np.uint32(0x7FFFFFFF)
    normal = ((size + np.uint32(0x7FFFF) + ((size >> np.uint32(20)) & np.uint32(1))) >> np.uint32(20)) - np.uint32(960)
    # Below 2⁻⁶ codes are multiples of 2⁻⁹, which is what a float32 sum in [2¹⁴, 2¹⁵) is rounded to.
    tiny = float_bits(bits_float(np.uint32(size)) + np.float32(16384)) - np.uint32(0x46800000)
    code = tiny if size < np.uint32(0x3C800000) else normal
    return code | ((bits >> np.uint32(24)) & np.uint32(0x80))


@kernel(F32_SOURCE, U8_TARGET, U8_TARGET)
def _encode(source: NDArray[np.float32], codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> None:
    for block in range(scales.size):
        at = block * BLOCK
        scale = _scale(float_bits(largest(magnitude(load(source, at)))))
        scales[block] = scale
        inverse = bits_float(np.uint32((254 - scale) << 23))
        for i in range(BLOCK):
            codes[at + i] = np.uint8(_e4m3_code(source[at + i] * inverse))


@inner
def _e4m3_size(code: np.uint32) -> np.float32:
    """Value of a code without its sign, below 0x7F."""
    normal = bits_float(np.uint32((code + np.uint32(960)) << np.uint32(20)))
    return np.float32(code) * np.float32(2.0**-9) if code < np.uint32(8) else normal


@kernel(F32_SOURCE, U8_TARGET, U8_TARGET, types.Array(types.float64, 1, "C"))
def _encode_measured(
    source: NDArray[np.float32], codes: NDArray[np.uint8], scales: NDArray[np.uint8], sums: NDArray[np.float64]
) -> None:
    """A block's sums are of its scaled weights, so that float32 neither under- nor overflows."""
    scaled = np.empty(BLOCK, np.float32)
    rounded = np.empty(BLOCK, np.float32)
    squares = decoded_squares = squared_error = max_error = amax = 0.0
    zero_blocks = saturated = 0
    for block in range(scales.size):
        at = block * BLOCK
        top = largest(magnitude(load(source, at)))
        scale = _scale(float_bits(top))
        scales[block] = scale
        inverse = bits_float(np.uint32((254 - scale) << 23))
        for i in range(BLOCK):
            value = source[at + i] * inverse
            code = _e4m3_code(value)
            codes[at + i] = np.uint8(code)
            scaled[i] = abs(value)
            rounded[i] = _e4m3_size(np.uint32(code & np.uint32(0x7F)))
        w = load(scaled, 0)
        q = load(rounded, 0)
        miss = w - q
        unit = np.float64(_POWERS[scale])
        squares += np.float64(total(w * w)) * (unit * unit)
        decoded_squares += np.float64(total(q * q)) * (unit * unit)
        squared_error += np.float64(total(miss * miss)) * (unit * unit)
        max_error = max(max_error, np.float64(largest(magnitude(miss))) * unit)
        amax = max(amax, np.float64(top))
        zero_blocks += top == np.float32(0)
        if top * inverse > np.float32(448):
            for i in range(BLOCK):
                saturated += scaled[i] > np.float32(448)
    sums[0] = squares
    sums[1] = decoded_squares
    sums[2] = squared_error
    sums[3] = max_error
    sums[4] = amax
    sums[5] = zero_blocks
    sums[6] = saturated


@kernel(U8_SOURCE, U8_SOURCE, U16_TARGET)
def _decode(codes: NDArray[np.uint8], scales: NDArray[np.uint8], out: NDArray[np.uint16]) -> None:
    for block in range(scales.size):
        at = block * BLOCK
        scale = E8M0[scales[block]]
        for i in range(BLOCK):
            out[at + i] = np.uint16(float_bits(E4M3[codes[at + i]] * scale) >> np.uint32(16))


def encode(source: NDArray[np.float32], codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> None:
    """Write `source` (1-D, contiguous, finite; whole blocks) as one code a weight and one scale a block.

    A zero keeps its sign; a block of zeros has scale 0. Raises ValueError when the sizes do not belong together.
    """
    _check_sizes(source.size, codes.size, scales.size)
    _encode(source, codes, scales)


def encode_measured(
    source: NDArray[np.float32], codes: NDArray[np.uint8], scales: NDArray[np.uint8], sums: NDArray[np.float64]
) -> None:
    """`encode`, and write into `sums` (in the order of `SUMS`) what became of the weights w, decoded to w'."""
    _check_sizes(source.size, codes.size, scales.size)
    _encode_measured(source, codes, scales, sums)


def decode(codes: NDArray[np.uint8], scales: NDArray[np.uint8], out: NDArray[np.uint16]) -> None:
    """Write the weights as BF16 bits, exactly where `first_fault` finds nothing. Raises ValueError as `encode`."""
    _check_sizes(out.size, codes.size, scales.size)
    _decode(codes, scales, out)


def first_fault(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> tuple[int, str] | None:
    """Index of the first weight that BF16 cannot hold, and what is wrong with it: NaN, too large, too small."""
    nan = (codes & np.uint8(NAN_CODE)) == NAN_CODE
    ends = (scales < _EXACT.start) | (scales >= _EXACT.stop)
    if not ends.any() and not nan.any():
        return None
    with np.errstate(over="ignore"):
        wide = (E4M3[codes].reshape(-1, BLOCK) * E8M0[scales][:, None]).reshape(-1).view(np.uint32)
    lost = ((wide & np.uint32(0xFFFF)) != 0) | ((wide & np.uint32(0x7F800000)) == 0x7F800000)
    if not lost.any():
        return None
    index = int(lost.argmax())
    code, scale = int(codes[index]), int(scales[index // BLOCK])
    if scale == NAN_SCALE:
        return index, "scale 255 is NaN"
    if nan[index]:
        return index, f"code 0x{code:02X} is NaN"
    return index, f"{E4M3[code]:g} · 2^{scale - _BIAS} does not fit BF16"


def _check_sizes(n_weights: int, n_codes: int, n_scales: int) -> None:
    if not n_weights == n_codes == n_scales * BLOCK:
        msg = f"{n_weights} weights, {n_codes} codes and {n_scales} scales do not belong together"
        raise ValueError(msg)
