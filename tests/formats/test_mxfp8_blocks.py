"""MXFP8 arithmetic: every code, every scale, every exponent, and the rule that picks a block's scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dflash_gguf.formats.blocks.mxfp8_block import BLOCK, E4M3, E8M0, decode, encode, first_fault

F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def e4m3_value(code: int) -> float:
    """One code by the book: sign, four bits of exponent, three of fraction."""
    sign, exponent, fraction = code >> 7, code >> 3 & 15, code & 7
    if exponent == 15 and fraction == 7:
        return math.nan
    size = fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
    return -size if sign else size


def encoded(x: F32) -> tuple[Bytes, Bytes]:
    codes, scales = np.full(x.size, 0xAA, np.uint8), np.full(x.size // BLOCK, 0xAA, np.uint8)
    encode(x.reshape(-1), codes, scales)
    return codes, scales


def values(codes: Bytes, scales: Bytes) -> NDArray[np.float64]:
    exact: NDArray[np.float64] = np.ldexp(
        E4M3[codes].astype(np.float64), np.repeat(scales.astype(np.int64) - 127, BLOCK)
    )
    return exact


def expected(x: F32) -> tuple[Bytes, Bytes]:
    """The definition in float64, where all of it is exact: ceil(log2(amax / 448)), then the nearest, even code."""
    blocks = x.reshape(-1, BLOCK).astype(np.float64)
    fraction, exponent = np.frexp(np.abs(blocks).max(-1) / 448)
    e = np.where(fraction == 0.5, exponent - 1, exponent)  # ceil(log2)
    e = np.where(fraction == 0, -127, np.clip(e, -127, 127))
    sizes = np.abs(np.ldexp(blocks, -e[:, None])).reshape(-1)
    magnitudes = np.array([e4m3_value(code) for code in range(127)])
    above = np.clip(np.searchsorted(magnitudes, sizes), 1, 126)
    middle = (magnitudes[above - 1] + magnitudes[above]) / 2
    up = (sizes > middle) | ((sizes == middle) & (above % 2 == 0))
    codes = np.where(up, above, above - 1) | np.signbit(x.reshape(-1)) << 7
    return codes.astype(np.uint8), (e + 127).astype(np.uint8)


def test_every_code_and_scale() -> None:
    for code in range(256):
        assert np.array_equal(E4M3[code], np.float32(e4m3_value(code)), equal_nan=True)
    assert (E4M3[0x7E], E4M3[0x08], E4M3[0x01], E4M3[0xFE]) == (448, 2**-6, 2**-9, -448)
    assert np.signbit(E4M3[0x80])
    assert [float(E8M0[s]) for s in (0, 127, 254)] == [2.0**-127, 1.0, 2.0**127]
    assert np.isnan(E8M0[255])
    assert np.isnan(E4M3).nonzero()[0].tolist() == [0x7F, 0xFF]


def test_every_product_is_exact_or_a_fault() -> None:
    codes = np.tile(np.arange(256, dtype=np.uint8), 256)
    scales = np.repeat(np.arange(256, dtype=np.uint8), 256 // BLOCK)
    out = np.empty(codes.size, np.uint16)
    decode(codes, scales, out)
    exact = values(codes, scales)
    exact[np.repeat(scales, BLOCK) == 255] = np.nan
    same = (out.astype(np.uint32) << 16).view(np.float32) == exact
    assert np.array_equal(np.signbit(exact[same]), (out[same] >> 15).astype(bool))
    ends = (*range(5), 127, *range(245, 256))
    for index in (256 * scale + code for scale in ends for code in range(256)):
        fault = first_fault(np.full(BLOCK, codes[index]), scales[index // BLOCK : index // BLOCK + 1])
        assert (fault is None) == same[index], (codes[index], scales[index // BLOCK])


@pytest.mark.parametrize(
    ("code", "scale", "what"),
    [
        (0x7F, 127, "code 0x7F is NaN"),
        (0xFF, 127, "code 0xFF is NaN"),
        (0x00, 255, "scale 255 is NaN"),
        (0x01, 2, "0.00195312 · 2^-125 does not fit BF16"),
        (0xFE, 247, "-448 · 2^120 does not fit BF16"),
    ],
)
def test_faults_are_placed_and_named(code: int, scale: int, what: str) -> None:
    codes, scales = np.full(BLOCK * 3, 0x38, np.uint8), np.full(3, 127, np.uint8)
    assert first_fault(codes, scales) is None
    codes[BLOCK + 5 :], scales[1:] = code, scale
    found = first_fault(codes, scales)
    assert found is not None
    index, message = found
    assert message == what
    assert index == (BLOCK if scale == 255 else BLOCK + 5)


def with_amax(amax: F32, rng: np.random.Generator) -> F32:
    """Blocks whose largest weight is `amax`, anywhere and of any sign; the rest spread over 40 powers of two."""
    rest = rng.standard_normal((amax.size, BLOCK)) * np.exp2(rng.uniform(-40, 0, (amax.size, BLOCK)))
    x = np.clip(rest, -1, 1) * amax[:, None].astype(np.float64)
    x[np.arange(amax.size), rng.integers(0, BLOCK, amax.size)] = amax * rng.choice([-1, 1], amax.size)
    return x.astype(np.float32)


def test_every_exponent_and_both_sides_of_the_bound() -> None:
    exponents = np.arange(-149, 128)
    bound = np.ldexp(1.75, exponents).astype(np.float32)
    amax = np.concatenate(
        [
            np.ldexp(1.0, exponents).astype(np.float32),
            bound,
            np.nextafter(bound, np.float32(0)),
            np.minimum(np.nextafter(bound, np.float32(np.inf)), np.finfo(np.float32).max),
        ]
    )
    x = with_amax(amax, np.random.default_rng(1))
    codes, scales = encoded(x)
    assert np.array_equal(codes, expected(x)[0])
    assert np.array_equal(scales, expected(x)[1])
    at_bound = scales[len(exponents) : 2 * len(exponents)]
    beyond = scales[3 * len(exponents) :]
    assert np.array_equal(beyond[30:] - at_bound[30:], np.ones(len(exponents) - 30))  # 448 · 2^k and one ulp more


SHAPE = (1000, BLOCK)
FAMILIES: dict[str, Callable[[np.random.Generator], NDArray[Any]]] = {
    "gaussian": lambda rng: rng.standard_normal(SHAPE),
    "heavy tails": lambda rng: rng.standard_cauchy(SHAPE),
    "ties": lambda rng: rng.integers(-4096, 4097, SHAPE) / 64,
    "denormal": lambda rng: rng.standard_normal(SHAPE) * 1e-40,
    "huge": lambda rng: rng.uniform(-3.4e38, 3.4e38, SHAPE),
    "any bits": lambda rng: np.nan_to_num(
        rng.integers(0, 2**32, SHAPE, np.uint32).view(np.float32), posinf=0, neginf=0
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_encoder_equals_its_definition(name: str) -> None:
    x = FAMILIES[name](np.random.default_rng(2)).astype(np.float32)
    codes, scales = encoded(x)
    assert np.array_equal(codes, expected(x)[0])
    assert np.array_equal(scales, expected(x)[1])
    assert (codes & 0x7F).max() <= 0x7E
    assert scales.max() < 255
    largest = np.abs(E4M3[codes]).reshape(-1, BLOCK).max(-1)
    assert (largest[scales > 0] >= 224).all()  # nothing saturates, and no bit is wasted


def test_zeros_keep_their_sign() -> None:
    codes, scales = encoded(np.resize(np.array([0.0, -0.0], np.float32), 64))
    assert codes.tolist() == [0, 0x80] * 32
    assert scales.tolist() == [0, 0]


def test_error_and_a_second_quantization() -> None:
    x = np.random.default_rng(3).standard_normal(1 << 18).astype(np.float32)
    codes, scales = encoded(x)
    bits = np.empty(x.size, np.uint16)
    decode(codes, scales, bits)
    assert first_fault(codes, scales) is None
    once = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(once, values(codes, scales))
    assert math.sqrt(((x - once) ** 2).sum() / (x**2).sum()) == pytest.approx(0.0266, abs=0.0005)
    assert (np.abs(x - once).reshape(-1, BLOCK).max(-1) <= np.abs(x).reshape(-1, BLOCK).max(-1) / 16).all()
    again = encoded(once)
    assert np.array_equal(values(*again), once)
    assert (again[1] != scales).any()  # blocks whose largest was rounded down to 224 take the next scale


def test_sizes_that_do_not_belong_together_are_refused() -> None:
    x, codes, scales = np.zeros(64, np.float32), np.zeros(64, np.uint8), np.zeros(1, np.uint8)
    with pytest.raises(ValueError, match="64 weights, 64 codes and 1 scales"):
        encode(x, codes, scales)
    with pytest.raises(ValueError, match="32 weights, 64 codes and 1 scales"):
        decode(codes, scales, np.zeros(32, np.uint16))
