"""Kernels against their readable definitions, against ggml itself, and on what callers hand them."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray
from support.blocks_reference import REFERENCE

from dflash_gguf.formats.blocks import DEQUANTIZABLE, QUANTIZABLE, bf16_to_f32, dequantize, quantize
from dflash_gguf.formats.gguf.types import BLOCK_SIZE, GGMLType

F32 = NDArray[np.float32]

BLOCKS = 1000
WIDTH = 256
TYPES = sorted(QUANTIZABLE)


def scattered(rng: np.random.Generator, low: float, high: float) -> F32:
    """Each block of 16 at a size of its own."""
    sizes = 10.0 ** rng.uniform(low, high, (BLOCKS * WIDTH // 16, 1))
    return (rng.standard_normal((BLOCKS * WIDTH // 16, 16)) * sizes).reshape(BLOCKS, WIDTH).astype(np.float32)


def one_outlier(rng: np.random.Generator) -> F32:
    x = rng.standard_normal((BLOCKS, WIDTH)) * 0.01
    x[np.arange(BLOCKS), rng.integers(0, WIDTH, BLOCKS)] = rng.choice([-50.0, 50.0], BLOCKS)
    return x.astype(np.float32)


def lone_values(rng: np.random.Generator) -> F32:
    x = np.zeros((BLOCKS, WIDTH), np.float32)
    x[np.arange(BLOCKS), rng.integers(0, WIDTH, BLOCKS)] = rng.standard_normal(BLOCKS)
    return x


def random_bits(rng: np.random.Generator) -> F32:
    x = rng.integers(0, 2**32, (BLOCKS, WIDTH), np.uint32).view(np.float32)
    return np.where(np.isfinite(x), x, np.float32(0))


FAMILIES: dict[str, Callable[[np.random.Generator], F32]] = {
    "gaussian": lambda rng: (rng.standard_normal((BLOCKS, WIDTH)) * 0.03).astype(np.float32),
    "heavy tails": lambda rng: rng.standard_cauchy((BLOCKS, WIDTH)).astype(np.float32),
    "constant": lambda rng: np.repeat(rng.standard_normal((BLOCKS, 1)), WIDTH, 1).astype(np.float32),
    "all zero": lambda _: np.zeros((BLOCKS, WIDTH), np.float32),
    "zeros of both signs": lambda rng: rng.choice(np.array([0.0, -0.0], np.float32), (BLOCKS, WIDTH)),
    "one outlier": one_outlier,
    "one weight": lone_values,
    "denormal": lambda rng: (rng.standard_normal((BLOCKS, WIDTH)) * 1e-40).astype(np.float32),
    "below f16": lambda rng: (rng.standard_normal((BLOCKS, WIDTH)) * 1e-7).astype(np.float32),
    "squares overflow": lambda rng: (rng.standard_normal((BLOCKS, WIDTH)) * 3e18).astype(np.float32),
    "huge": lambda rng: (rng.uniform(-3.4e38, 3.4e38, (BLOCKS, WIDTH))).astype(np.float32),
    "negative": lambda rng: -np.abs(rng.standard_normal((BLOCKS, WIDTH)) + 3).astype(np.float32),
    "positive": lambda rng: np.abs(rng.standard_normal((BLOCKS, WIDTH)) + 3).astype(np.float32),
    "alternating": lambda rng: (np.resize([1.0, -1.0], (BLOCKS, WIDTH)) * rng.uniform(0.1, 2, (BLOCKS, 1))).astype(
        np.float32
    ),
    "ties": lambda rng: (rng.integers(-8, 9, (BLOCKS, WIDTH)) * 0.5).astype(np.float32),
    "sizes that differ": lambda rng: scattered(rng, -8, 4),
    "sizes that differ wildly": lambda rng: scattered(rng, -44, 37),
    "any bits": random_bits,
}


def quantized(ggml_type: GGMLType, x: F32) -> NDArray[np.uint8]:
    per_block, size = BLOCK_SIZE[ggml_type]
    out = np.full(x.size // per_block * size, 0xAA, np.uint8)
    quantize(ggml_type, x.reshape(-1), out)
    return out


def expected(ggml_type: GGMLType, x: F32) -> NDArray[np.uint8]:
    with np.errstate(all="ignore"):
        return REFERENCE[ggml_type](x.reshape(-1, BLOCK_SIZE[ggml_type][0])).reshape(-1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda kind: kind.name)
def test_kernel_equals_its_definition(ggml_type: GGMLType, family: str) -> None:
    x = FAMILIES[family](np.random.default_rng(7))
    assert np.array_equal(quantized(ggml_type, x), expected(ggml_type, x))


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda kind: kind.name)
def test_every_count_of_blocks(ggml_type: GGMLType) -> None:
    per_block, size = BLOCK_SIZE[ggml_type]
    x = (np.random.default_rng(3).standard_normal(per_block * 11)).astype(np.float32)
    whole = quantized(ggml_type, x)
    for count in range(12):
        assert np.array_equal(quantized(ggml_type, x[: count * per_block]), whole[: count * size]), count


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda kind: kind.name)
def test_read_only_unaligned_and_threaded(ggml_type: GGMLType) -> None:
    x = (np.random.default_rng(4).standard_normal(256 * 64)).astype(np.float32)
    unaligned = np.frombuffer(b"?" + x.tobytes(), np.float32, offset=1)
    assert not unaligned.flags.writeable
    assert not unaligned.flags.aligned
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: quantized(ggml_type, unaligned), range(8)))
    for result in results:
        assert np.array_equal(result, expected(ggml_type, x))


def test_misuse_is_refused() -> None:
    x = np.zeros(256, np.float32)
    out = np.zeros(144, np.uint8)
    with pytest.raises(ValueError, match="256 weights of Q4_K do not fill 143 bytes"):
        quantize(GGMLType.Q4_K, x, out[:143])
    with pytest.raises(ValueError, match="255 weights"):
        quantize(GGMLType.Q4_K, x[:255], out)
    with pytest.raises(TypeError):
        quantize(GGMLType.Q4_K, np.zeros(512, np.float32)[::2], out)
    with pytest.raises(TypeError):
        quantize(GGMLType.Q4_K, x.astype(np.float64), out)
    with pytest.raises(ValueError, match="Q2_K"):
        quantize(GGMLType.Q2_K, x, np.zeros(84, np.uint8))
    with pytest.raises(ValueError, match="IQ4_NL"):
        dequantize(GGMLType.IQ4_NL, np.zeros(18, np.uint8))
    with pytest.raises(ValueError, match="143 bytes of Q4_K"):
        dequantize(GGMLType.Q4_K, out[:143])


@pytest.mark.parametrize("ggml_type", sorted(DEQUANTIZABLE), ids=lambda kind: kind.name)
def test_dequantized_is_gguf_pys(ggml_type: GGMLType) -> None:
    raw = np.random.default_rng(5).integers(0, 256, BLOCK_SIZE[ggml_type][1] * 64, np.uint8)
    with np.errstate(all="ignore"):
        theirs = quants.dequantize(raw, GGMLQuantizationType(int(ggml_type)))
    ours = dequantize(ggml_type, raw)
    assert ours.dtype == np.float32
    assert np.array_equal(ours, theirs.reshape(-1), equal_nan=True)


@pytest.mark.parametrize(
    ("ggml_type", "bound"),
    [
        ("F16", 2**-11),
        ("BF16", 2**-8),
        ("Q8_0", 0.006),
        ("Q6_K", 0.02),
        ("Q5_K", 0.04),
        ("Q5_0", 0.05),
        ("Q5_1", 0.05),
        ("Q4_K", 0.08),
        ("Q4_0", 0.1),
    ],
)
def test_a_round_trip_is_near(ggml_type: str, bound: float) -> None:
    x = FAMILIES["gaussian"](np.random.default_rng(6))
    back = dequantize(GGMLType[ggml_type], quantized(GGMLType[ggml_type], x)).reshape(x.shape)
    assert np.sqrt(((back - x) ** 2).sum() / (x**2).sum()) < bound


def test_halves_round_to_even_and_overflow() -> None:
    x = np.array([65519.996, 65520.0, -1e9, 2**-25, 3 * 2**-26, 1 + 2**-11, 1 + 3 * 2**-11, -0.0], np.float32)
    assert quantized(GGMLType.F16, x).view(np.uint16).tolist() == [
        0x7BFF,
        0x7C00,
        0xFC00,
        0x0000,
        0x0001,
        0x3C00,
        0x3C02,
        0x8000,
    ]
    assert quantized(GGMLType.BF16, np.array([3.4e38], np.float32)).view(np.uint16).tolist() == [0x7F80]


def test_every_bf16_widens_exactly() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = np.empty(bits.size, np.float32)
    bf16_to_f32(bits, wide)
    assert np.array_equal(wide.view(np.uint32), bits.astype(np.uint32) << 16)


def ggml() -> ctypes.CDLL:
    """A build of ggml: DFLASH_GGML_LIB, or the one inside the engine's package."""
    found = importlib.util.find_spec("xllamacpp")
    path = os.environ.get("DFLASH_GGML_LIB")
    if path is None and found and found.submodule_search_locations:
        path = f"{found.submodule_search_locations[0]}/xllamacpp.abi3.so"
    if path is None or not os.path.exists(path):
        pytest.skip("no build of ggml is at hand (DFLASH_GGML_LIB)")
    library = ctypes.CDLL(path)
    if not hasattr(library, "quantize_row_q4_K_ref"):
        pytest.skip("this build of ggml does not export its quantizers")
    return library


@pytest.mark.engine
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ggml_type", TYPES[1:], ids=lambda kind: kind.name)
def test_kernel_equals_ggml(ggml_type: GGMLType, family: str) -> None:
    x = FAMILIES[family](np.random.default_rng(8))
    name = {GGMLType.F16: "ggml_fp32_to_fp16_row", GGMLType.BF16: "ggml_fp32_to_bf16_row_ref"}.get(
        ggml_type, f"quantize_row_{ggml_type.name.replace('Q', 'q')}_ref"
    )
    function = getattr(ggml(), name)
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    function.restype = None
    ours = quantized(ggml_type, x)
    theirs = np.empty_like(ours)
    function(x.ctypes.data, theirs.ctypes.data, x.size)
    assert np.array_equal(ours, theirs)


@pytest.mark.engine
@pytest.mark.parametrize("ggml_type", sorted(DEQUANTIZABLE - {GGMLType.F32, GGMLType.F16, GGMLType.BF16}))
def test_dequantized_is_ggmls(ggml_type: GGMLType) -> None:
    function = getattr(ggml(), f"dequantize_row_{ggml_type.name.replace('Q', 'q')}")
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    function.restype = None
    per_block, size = BLOCK_SIZE[ggml_type]
    raw = np.random.default_rng(9).integers(0, 256, size * 64, np.uint8)
    theirs = np.empty(per_block * 64, np.float32)
    function(raw.ctypes.data, theirs.ctypes.data, theirs.size)
    assert np.array_equal(dequantize(ggml_type, raw), theirs, equal_nan=True)
