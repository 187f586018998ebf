"""What encoding costs, measured while it is done; every rounding in exact arithmetic; ModelOpt's own code."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from support.builders import bf16

from dflash_gguf.formats.blocks import mxfp8_block

Floats = NDArray[np.float32]


def encode(source: Floats) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    codes, scales = np.empty(source.size, np.uint8), np.empty(source.size // 32, np.uint8)
    mxfp8_block.encode(source, codes, scales)
    return codes, scales


def measure(source: Floats) -> dict[str, float]:
    codes, scales, sums = np.empty(source.size, np.uint8), np.empty(source.size // 32, np.uint8), np.empty(7)
    mxfp8_block.encode_measured(source, codes, scales, sums)
    plain = encode(source)
    assert (plain[0] == codes).all()
    assert (plain[1] == scales).all()
    return dict(zip(mxfp8_block.SUMS, sums.tolist(), strict=True))


def widened(bits: NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def decoded(source: Floats) -> Floats:
    codes, scales = encode(source)
    out = np.empty(codes.size, np.uint16)
    mxfp8_block.decode(codes, scales, out)
    return widened(out)


def e4m3_size(code: int) -> Fraction:
    """A code's value by the OCP 8-bit floating point specification; the code is below 0x7F."""
    return Fraction(code, 512) if code < 8 else (8 + code % 8) * Fraction(2) ** (code // 8 - 10)


@pytest.mark.parametrize("factor", [1.0, 2.0**-100, 2.0**100])
def test_every_tie_and_its_neighbours_round_to_even(factor: float) -> None:
    sizes = [float(e4m3_size(code)) for code in range(0x7F)]
    ties = [(low + high) / 2 for low, high in pairwise(sizes)]
    near = [np.nextafter(np.float32(tie), np.float32(side)) for tie in ties for side in (0, 512)]
    values = np.array([*sizes, *ties, *near], np.float32)
    blocks = np.zeros((values.size, 32), np.float32)
    blocks[:, 0] = 448  # the scale is 1
    blocks[:, 1], blocks[:, 2] = values, -values
    codes, _ = encode((blocks * np.float32(factor)).reshape(-1))
    expected = [
        min(range(0x7F), key=lambda code: (abs(e4m3_size(code) - Fraction(float(value))), code & 1)) for value in values
    ]
    assert codes.reshape(-1, 32)[:, 1].tolist() == expected
    assert codes.reshape(-1, 32)[:, 2].tolist() == [code | 0x80 for code in expected]


def test_nothing_saturates_at_any_exponent() -> None:
    edges = (0, 1, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFF)
    amax = np.array([exponent << 23 | edge for exponent in range(255) for edge in edges], np.uint32).view(np.float32)
    source = np.zeros((amax.size, 32), np.float32)
    source[np.arange(amax.size), np.arange(amax.size) % 32] = amax
    found = measure(source.reshape(-1))
    assert found["saturated"] == 0
    assert found["zero_blocks"] == 1
    assert found["amax"] == amax.max()


def test_blocks_of_zeros() -> None:
    assert measure(np.resize(np.array([0.0, -0.0], np.float32), 64)) == dict.fromkeys(mxfp8_block.SUMS, 0.0) | {
        "zero_blocks": 2
    }


@pytest.mark.parametrize("size", [1e-42, 1e-20, 1.0, 1e25])
def test_sums_are_those_of_float64(size: float) -> None:
    rng = np.random.default_rng(6)
    spread = 10.0 ** rng.integers(-6, 3, 1 << 14)
    source = (rng.standard_normal(1 << 14) * spread * size).astype(np.float32)
    source[64:128] = 0
    found, exact, near = measure(source), source.astype(np.float64), decoded(source).astype(np.float64)
    if size < 1e-40:  # BF16 does not hold what such weights are decoded to
        codes, scales = encode(source)
        near = mxfp8_block.E4M3[codes] * np.repeat(np.exp2(scales - 127.0), 32)
    assert found["squares"] == pytest.approx((exact**2).sum(), rel=1e-6, abs=0)
    assert found["decoded_squares"] == pytest.approx((near**2).sum(), rel=1e-6, abs=0)
    assert found["squared_error"] == pytest.approx(((exact - near) ** 2).sum(), rel=1e-6, abs=0)
    assert found["max_error"] == np.abs(exact - near).max()
    assert found["amax"] == np.abs(exact).max()
    assert found["zero_blocks"] == np.count_nonzero(np.abs(source).reshape(-1, 32).max(axis=1) == 0)
    assert found["saturated"] == 0


def test_gaussian_weights_lose_what_is_expected() -> None:
    source = widened(bf16(np.random.default_rng(7).standard_normal(1 << 20)))
    found = measure(source)
    assert 100 * math.sqrt(found["squared_error"] / found["squares"]) == pytest.approx(2.66, abs=0.05)


def test_sizes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="do not belong together"):
        mxfp8_block.encode_measured(
            np.zeros(32, np.float32), np.empty(32, np.uint8), np.empty(2, np.uint8), np.empty(7)
        )


@pytest.mark.filterwarnings("ignore")
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
        codes, scales = encode(widened(bits).reshape(-1))
        assert (scales == scale.numpy().reshape(-1)).all()
        assert (codes == theirs.numpy().reshape(-1)).all()
