"""MXFP8 blocks against their definition in exact arithmetic: all codes, all exponents, every tie and its neighbours."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from builders import bf16
from numpy.typing import NDArray

from dflash_gguf.formats.blocks import mxfp8

Floats = NDArray[np.float32]


def e4m3(code: int) -> Fraction | None:
    """A code's value by the OCP 8-bit floating point specification; None for NaN."""
    exponent, fraction = code >> 3 & 15, code & 7
    if exponent == 15 and fraction == 7:
        return None
    size = Fraction(fraction, 512) if exponent == 0 else (8 + fraction) * Fraction(2) ** (exponent - 10)
    return -size if code & 0x80 else size


def bf16_value(bits: int) -> Fraction:
    return Fraction(float(np.uint32(bits << 16).view(np.float32)))


BF16_VALUES = {bf16_value(bits) for bits in range(0x7F80)}


def encode(source: Floats) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    codes, scales = np.empty(source.size, np.uint8), np.empty(source.size // 32, np.uint8)
    mxfp8.encode(source, codes, scales)
    return codes, scales


def measure(source: Floats) -> dict[str, float]:
    codes, scales, sums = np.empty(source.size, np.uint8), np.empty(source.size // 32, np.uint8), np.empty(7)
    mxfp8.encode_measured(source, codes, scales, sums)
    plain = encode(source)
    assert (plain[0] == codes).all()
    assert (plain[1] == scales).all()
    return dict(zip(mxfp8.SUMS, sums.tolist(), strict=True))


def decode(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint16]:
    out = np.empty(codes.size, np.uint16)
    mxfp8.decode(codes, scales, out)
    return out


def test_every_product_of_codes() -> None:
    """65,536 pairs: decoded exactly, or refused for the right reason."""
    codes = np.arange(256, dtype=np.uint8)
    for scale in range(256):
        decoded = decode(codes, np.full(8, scale, np.uint8)).tolist()
        for code in range(256):
            one = np.zeros(32, np.uint8)
            one[7] = code
            fault = mxfp8.first_fault(one, np.array([scale], np.uint8)) if scale < 4 or scale > 245 else None
            value = e4m3(code)
            if scale == 255:
                assert fault == (0, "scale 255 is NaN")
            elif value is None:
                assert fault is None or fault == (7, f"code 0x{code:02X} is NaN")
            elif abs(exact := value * Fraction(2) ** (scale - 127)) not in BF16_VALUES:
                assert fault is not None
                assert fault[0] == 7
                assert "does not fit BF16" in fault[1]
            else:
                assert fault is None
                assert bf16_value(decoded[code] & 0x7FFF) == abs(exact)
                assert decoded[code] >> 15 == code >> 7  # the sign of a zero too


@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize("scale", [0, 3, 127, 246, 254])
def test_nan_codes_are_found_at_every_scale(code: int, scale: int) -> None:
    codes, scales = np.zeros(96, np.uint8), np.full(3, scale, np.uint8)
    codes[77] = code
    assert mxfp8.first_fault(codes, scales) == (77, f"code 0x{code:02X} is NaN")


def scale_by_definition(amax: float) -> int:
    """The least e ≥ −127 with amax ≤ 448 · 2^e, biased."""
    exponent = -127
    if amax:
        mantissa, power = math.frexp(amax)  # amax = mantissa · 2^power, mantissa in [0.5, 1)
        exponent = power - 9 + (Fraction(mantissa) > Fraction(7, 8))
    return max(exponent, -127) + 127


SIZES = [e4m3(code) or Fraction(0) for code in range(0x7F)]


@cache
def code_by_definition(size: Fraction) -> int:
    """Nearest of the codes 0 … 0x7E, ties to the even code."""
    return min(range(0x7F), key=lambda code: (abs(SIZES[code] - size), code & 1))


def check_by_definition(source: Floats) -> None:
    codes, scales = encode(source)
    for number, block in enumerate(source.reshape(-1, 32).tolist()):
        scale = scale_by_definition(max(map(abs, block)))
        assert scales[number] == scale
        for at, weight in enumerate(block):
            size = abs(Fraction(weight)) / Fraction(2) ** (scale - 127)
            assert size <= 448
            expected = code_by_definition(size) | (0x80 if math.copysign(1, weight) < 0 else 0)
            assert codes[32 * number + at] == expected, (weight, scale)


def float_of(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)


def test_scales_of_every_exponent_and_its_edges() -> None:
    """amax with all 255 exponents (subnormals too) and every mantissa around 1, 1.75 and 2, one ulp apart."""
    edges = (0, 1, 2, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFE, 0x7FFFFF)
    amax = np.array([exponent << 23 | edge for exponent in range(255) for edge in edges], np.uint32).view(np.float32)
    source = np.zeros((amax.size, 32), np.float32)
    source[np.arange(amax.size), np.arange(amax.size) % 32] = amax * np.where(np.arange(amax.size) % 3, 1, -1)
    codes, scales = encode(source.reshape(-1))
    assert scales.tolist() == [scale_by_definition(float(size)) for size in amax]
    assert measure(source.reshape(-1))["saturated"] == 0
    sizes = mxfp8.E4M3[codes & 0x7F].reshape(-1, 32).max(axis=1)
    clear = scales > 0
    assert ((sizes >= 224) & (sizes <= 448))[clear].all()


@pytest.mark.parametrize("power", [-120, -20, 0, 3, 119])
def test_448_exactly_and_one_ulp_beside(power: int) -> None:
    exact = np.float32(448 * 2.0**power)
    for size, scale in (
        (exact, power),
        (np.nextafter(exact, np.float32(0)), power),
        (np.nextafter(exact, np.float32(np.inf)), power + 1),
    ):
        block = np.full(32, size, np.float32)
        codes, scales = encode(block)
        assert scales.tolist() == [scale + 127]
        assert set(codes.tolist()) == {0x7E if scale == power else 0x76}


def test_every_tie_and_its_neighbours_round_to_even() -> None:
    values = [float(size) for size in SIZES]
    ties = [(low + high) / 2 for low, high in pairwise(values)]
    near = [
        step(np.float32(tie), np.float32(side))
        for tie in ties
        for side, step in ((0, np.nextafter), (512, np.nextafter))
    ]
    sizes = np.array([*values, *ties, *near], np.float32)
    blocks = np.zeros((sizes.size, 32), np.float32)
    blocks[:, 0] = 448  # the scale is 1
    blocks[:, 1], blocks[:, 2] = sizes, -sizes
    for factor in (1, 2.0**-100, 2.0**100):
        check_by_definition((blocks * np.float32(factor)).reshape(-1))


def test_zeros_keep_their_sign_and_have_scale_0() -> None:
    block = np.zeros(64, np.float32)
    block[::2] = -0.0
    codes, scales = encode(block)
    assert scales.tolist() == [0, 0]
    assert codes.tolist() == [0x80, 0] * 32
    assert measure(block) == dict.fromkeys(mxfp8.SUMS, 0.0) | {"zero_blocks": 2}


@pytest.mark.parametrize("size", [1e-45, 1e-40, 1e-30, 1.0, 1e30, 3e38])
def test_random_blocks_by_definition(size: float) -> None:
    rng = np.random.default_rng(3)
    with np.errstate(over="ignore"):
        source = (rng.standard_normal(96) * size).clip(-3.4e38, 3.4e38).astype(np.float32)
    check_by_definition(source)


def test_random_bits_by_definition() -> None:
    bits = np.random.default_rng(4).integers(0, 1 << 32, 512, dtype=np.uint32)
    source = bits.view(np.float32)
    source[~np.isfinite(source)] = 0
    check_by_definition(source)


def test_a_second_quantization_keeps_every_value() -> None:
    rng = np.random.default_rng(5)
    source = (rng.standard_normal(1 << 16) * 0.02).astype(np.float32)
    once = decode(*encode(source))
    wide = (once.astype(np.uint32) << 16).view(np.float32)
    again = decode(*encode(wide))
    assert (once == again).all()
    assert (encode(source)[0] != encode(wide)[0]).any()  # though codes may differ where amax was rounded down to 224


def test_sums_are_those_of_float64() -> None:
    rng = np.random.default_rng(6)
    source = (rng.standard_normal(1 << 14) * 10.0 ** rng.integers(-6, 3, 1 << 14)).astype(np.float32)
    source[64:128] = 0
    found = measure(source)
    wide = (decode(*encode(source)).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    exact = source.astype(np.float64)
    assert found["squares"] == pytest.approx((exact**2).sum(), rel=1e-6)
    assert found["decoded_squares"] == pytest.approx((wide**2).sum(), rel=1e-6)
    assert found["squared_error"] == pytest.approx(((exact - wide) ** 2).sum(), rel=1e-6)
    assert found["max_error"] == np.abs(exact - wide).max()
    assert found["amax"] == np.abs(exact).max()
    assert found["zero_blocks"] == 2
    assert found["saturated"] == 0


def test_gaussian_weights_lose_what_is_expected() -> None:
    source = np.random.default_rng(7).standard_normal(1 << 20).astype(np.float32)
    source = (bf16(source).astype(np.uint32) << 16).view(np.float32)
    found = measure(source)
    assert 100 * math.sqrt(found["squared_error"] / found["squares"]) == pytest.approx(2.66, abs=0.05)
    blocks, wide = (
        source.reshape(-1, 32),
        (decode(*encode(source)).astype(np.uint32) << 16).view(np.float32).reshape(-1, 32),
    )
    assert (np.abs(blocks - wide).max(axis=1) <= np.abs(blocks).max(axis=1) / 16).all()


def test_sizes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="do not belong together"):
        mxfp8.encode_measured(np.zeros(32, np.float32), np.empty(32, np.uint8), np.empty(2, np.uint8), np.empty(7))
    with pytest.raises(ValueError, match="do not belong together"):
        mxfp8.decode(np.zeros(32, np.uint8), np.zeros(1, np.uint8), np.empty(64, np.uint16))


def test_modelopt_gives_the_same_bytes() -> None:
    torch = pytest.importorskip("torch")
    tensor = pytest.importorskip("modelopt.torch.quantization.qtensor.mxfp8_tensor").MXFP8QTensor
    rng = np.random.default_rng(8)
    exponents = rng.integers(1, 254, (256, 1)) * (1 << 23)
    wild = ((rng.integers(0, 1 << 32, (256, 256), dtype=np.uint32) & 0x803FFFFF) + exponents).astype(np.uint32)
    for values in (rng.standard_normal((256, 256), dtype=np.float32), wild.view(np.float32), np.zeros((1, 64))):
        bits = bf16(values.astype(np.float32))
        weight = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
        scale = tensor.get_weights_scaling_factor(weight)
        theirs = tensor.quantize_with_scale(weight, scale).view(torch.uint8)
        codes, scales = encode((bits.astype(np.uint32) << 16).view(np.float32).reshape(-1))
        assert (scales == scale.numpy().reshape(-1)).all()
        assert (codes == theirs.numpy().reshape(-1)).all()
