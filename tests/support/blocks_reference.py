"""The quantizers, written to be read: what the bytes of each type are defined to be.

Plain numpy in float32. Many blocks go side by side, but every sum runs over a block's weights one after another, and
each operation is rounded on its own. Shapes: x is (blocks, weights of a block).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dflash_gguf.formats.gguf.types import GGMLType

F32: TypeAlias = NDArray[np.float32]
Int: TypeAlias = NDArray[np.int32]
Bytes: TypeAlias = NDArray[np.uint8]

f32 = np.float32


def nearest(x: F32) -> Int:
    """Round half to even, by adding 1.5 · 2²³ and reading the mantissa (which says odd things beyond ±2²²)."""
    bits = (x + f32(12582912)).view(np.int32)
    return (bits & 0x7FFFFF) - 0x400000


def choose(condition: NDArray[np.bool_], yes: F32 | np.float32, no: F32 | np.float32) -> F32:
    chosen: F32 = np.where(condition, yes, no)
    return chosen


def ordered_sum(terms: F32) -> F32:
    """Sums over the last axis, first to last."""
    total = np.zeros(terms.shape[:-1], f32)
    for i in range(terms.shape[-1]):
        total = total + terms[..., i]
    return total


def first_largest(x: F32) -> F32:
    """Of each row the first of the weights that are largest in size; +0 for zeros of any sign."""
    return np.take_along_axis(x, np.abs(x).argmax(-1, keepdims=True), -1)[..., 0] + f32(0)


def half(x: F32) -> Bytes:
    return x.astype("<f2").view(np.uint8).reshape(*x.shape, 2)


def half_value(x: F32) -> F32:
    return x.astype(np.float16).astype(f32)


def nibbles(low: Int, high: Int) -> Bytes:
    return (low | high << 4).astype(np.uint8)


def levels_of(x: F32) -> Int:
    """To integers, towards zero; what overflowed, in a block whose scale is too small to invert, becomes 0."""
    return np.where(np.abs(x) < 2**31, x, 0).astype(np.int32)


# Types without a search: 32 weights, d · level.


def inverse(d: F32) -> F32:
    return choose(d != 0, f32(1) / d, f32(0))


def q8_0(x: F32) -> Bytes:
    d = np.abs(x).max(-1) / f32(127)
    scaled = x * inverse(d)[:, None]
    away = np.where(np.isfinite(scaled), np.trunc(scaled.astype(np.float64) + np.copysign(0.5, scaled)), 0)
    return np.concatenate([half(d), away.astype(np.int8).view(np.uint8)], -1)


def unsigned(x: F32, top: int) -> tuple[F32, Int]:
    """Scale and levels 0 … top: the largest weight becomes 0, zero becomes (top + 1) / 2."""
    middle = (top + 1) // 2
    d = first_largest(x) / f32(-middle)
    levels = levels_of(x * inverse(d)[:, None] + f32(middle + 0.5))
    return d, np.minimum(levels, top)


def q4_0(x: F32) -> Bytes:
    d, levels = unsigned(x, 15)
    return np.concatenate([half(d), nibbles(levels[:, :16], levels[:, 16:])], -1)


def five_bits(levels: Int) -> tuple[Bytes, Bytes]:
    """The fifth bits, then the nibbles."""
    fifth = np.packbits((levels >> 4).astype(bool), axis=-1, bitorder="little")
    return fifth, nibbles(levels[:, :16] & 15, levels[:, 16:] & 15)


def q5_0(x: F32) -> Bytes:
    d, levels = unsigned(x, 31)
    return np.concatenate([half(d), *five_bits(levels)], -1)


def q5_1(x: F32) -> Bytes:
    """Level 0 is the block's minimum (of zeros of both signs the first)."""
    low = np.take_along_axis(x, x.argmin(-1, keepdims=True), -1)[..., 0]
    d = (x.max(-1) - low) / f32(31) + f32(0)
    levels = levels_of((x - low[:, None]) * inverse(d)[:, None] + f32(0.5))
    return np.concatenate([half(d), half(low), *five_bits(levels)], -1)


# Q4_K and Q5_K: 8 sub-blocks of 32 weights, scale · level − minimum, scales and minima in six bits.


def affine_fit(x: F32, top: int, first_stretch: float, steps: int) -> tuple[F32, F32, Int]:
    """Scale, minimum (≤ 0) and levels of each sub-block, from the grid with the least weighted squared error."""
    weight = np.sqrt(ordered_sum(x * x) / f32(32))[:, None] + np.abs(x)
    sum_w, sum_x = ordered_sum(weight), ordered_sum(weight * x)
    lowest: F32 = np.minimum(x.min(-1), f32(0))
    low, high = lowest, x.max(-1)
    constant = high == low

    def levels_at(slope: F32) -> Int:
        return nearest(slope[:, None] * (x - low[:, None])).clip(0, top)

    def error_of(scale: F32, minimum: F32, levels: Int) -> F32:
        miss = scale[:, None] * levels.astype(f32) + minimum[:, None] - x
        return ordered_sum(weight * (miss * miss))

    slope = f32(top) / (high - low)
    scale: F32 = f32(1) / slope
    levels = levels_at(slope)
    best = error_of(scale, low, levels)
    for step in range(steps):
        # The range starts at the minimum that an earlier step kept.
        trial = levels_at((f32(first_stretch) + f32(0.1) * f32(step) + f32(top)) / (high - low))
        level = trial.astype(f32)
        sum_l = ordered_sum(weight * level)
        sum_l2 = ordered_sum(weight * level * level)
        sum_xl = ordered_sum(weight * level * x)
        determinant: F32 = sum_w * sum_l2 - sum_l * sum_l
        new_scale: F32 = np.divide(sum_w * sum_xl - sum_x * sum_l, determinant)
        new_low: F32 = np.divide(sum_l2 * sum_x - sum_l * sum_xl, determinant)
        new_scale = choose(new_low > 0, sum_xl / sum_l2, new_scale)
        new_low = choose(new_low > 0, f32(0), new_low)
        error = error_of(new_scale, new_low, trial)
        better = (determinant > 0) & (error < best)
        best = choose(better, error, best)
        scale = choose(better, new_scale, scale)
        low = choose(better, new_low, low)
        levels = np.where(better[:, None], trial, levels)
    return (
        choose(constant, f32(0), scale),
        choose(constant, lowest, low),
        np.where(constant[:, None], 0, levels),
    )


def affine_blocks(x: F32, top: int, first_stretch: float, steps: int) -> tuple[Bytes, Int]:
    """Heads (16 bytes) and levels (blocks, 8, 32)."""
    parts = x.reshape(-1, 32)
    scale, low, levels = affine_fit(parts, top, first_stretch, steps)
    scale, minimum = scale.reshape(-1, 8), -low.reshape(-1, 8)
    max_scale, max_minimum = (np.fmax(values.max(-1), f32(0)) for values in (scale, minimum))
    packed = []
    for values, largest in ((scale, max_scale), (minimum, max_minimum)):
        per = choose(largest > 0, f32(63) / largest, f32(0))
        packed.append(np.minimum(nearest(per[:, None] * values) & 0xFF, 63))
    s, m = packed
    d, d_min = max_scale / f32(63), max_minimum / f32(63)
    head = np.concatenate(
        [
            half(d),
            half(d_min),
            (s[:, :4] | (s[:, 4:] >> 4) << 6).astype(np.uint8),
            (m[:, :4] | (m[:, 4:] >> 4) << 6).astype(np.uint8),
            nibbles(s[:, 4:] & 15, m[:, 4:] & 15),
        ],
        -1,
    )
    step = (half_value(d)[:, None] * s.astype(f32)).reshape(-1, 1)
    offset = (half_value(d_min)[:, None] * m.astype(f32)).reshape(-1, 1)
    stored = nearest((parts + offset) / step).clip(0, top)
    return head, np.where(step == 0, levels, stored).reshape(-1, 8, 32)


def q4_k(x: F32) -> Bytes:
    head, levels = affine_blocks(x, 15, -1.0, 21)
    return np.concatenate([head, nibbles(levels[:, ::2], levels[:, 1::2]).reshape(-1, 128)], -1)


def q5_k(x: F32) -> Bytes:
    head, levels = affine_blocks(x, 31, -0.5, 16)
    low = levels & 15
    fifth = np.packbits((levels >> 4).astype(bool), axis=1, bitorder="little").reshape(-1, 32)
    return np.concatenate([head, fifth, nibbles(low[:, ::2], low[:, 1::2]).reshape(-1, 128)], -1)


# Q6_K: 16 sub-blocks of 16 weights, scale · level, scales in eight bits.

NOTHING = f32(1e-15)


def symmetric_fit(x: F32) -> tuple[F32, Int]:
    """Scale and level + 32 of each sub-block."""
    peak = first_largest(x)
    square = x * x

    def trial(stretch: np.float32) -> tuple[F32, F32, Int]:
        levels = nearest((-stretch / peak)[:, None] * x).clip(-32, 31)
        level = levels.astype(f32)
        return ordered_sum(square * x * level), ordered_sum(square * level * level), levels

    sum_xl, sum_l2, levels = trial(f32(32))
    scale = choose(sum_l2 != 0, sum_xl / sum_l2, f32(0))
    best = scale * sum_xl
    for step in (*range(-9, 0), *range(1, 10)):
        sum_xl, sum_l2, new_levels = trial(f32(32) + f32(0.1) * f32(step))
        better = (sum_l2 > 0) & (sum_xl * sum_xl > best * sum_l2)
        scale = choose(better, sum_xl / sum_l2, scale)
        best = choose(better, scale * sum_xl, best)
        levels = np.where(better[:, None], new_levels, levels)
    nothing = np.abs(x).max(-1) < NOTHING
    return choose(nothing, f32(0), scale), np.where(nothing[:, None], 0, levels + 32)


def q6_k(x: F32) -> Bytes:
    parts = x.reshape(-1, 16)
    scale, levels = symmetric_fit(parts)
    scale = scale.reshape(-1, 16)
    top = first_largest(np.where(np.isnan(scale), f32(0), scale))
    per = f32(-128) / top
    scales = np.minimum(nearest(per[:, None] * scale), 127).astype(np.int8)
    d = f32(1) / per
    step = (half_value(d)[:, None] * scales.astype(f32)).reshape(-1, 1)
    stored = nearest(parts / step).clip(-32, 31) + 32
    # Weight e of each half of 128: four quarters share bytes.
    code = np.where(step == 0, levels, stored).reshape(-1, 2, 4, 32)
    low, high = code & 15, code >> 4
    low_bytes = nibbles(low[:, :, :2], low[:, :, 2:]).reshape(-1, 128)
    pairs = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    blocks = np.concatenate([low_bytes, pairs.astype(np.uint8).reshape(-1, 64), scales.view(np.uint8), half(d)], -1)
    blocks[np.abs(top) < NOTHING] = 0
    return blocks


# Floats.


def f16(x: F32) -> Bytes:
    return half(x)


def bf16(x: F32) -> Bytes:
    """The nearer of the two neighbours that keep the upper half of the bits; the even one of two equally near."""
    bits = x.view(np.uint32).astype(np.uint64)
    down, rest = bits >> 16, bits & 0xFFFF
    up = (rest > 0x8000) | ((rest == 0x8000) & (down % 2 == 1))
    return np.asarray((down + up).astype("<u2")).view(np.uint8)


def f32_bytes(x: F32) -> Bytes:
    return x.astype("<f4").view(np.uint8)


REFERENCE: dict[GGMLType, Callable[[F32], Bytes]] = {
    GGMLType.F32: f32_bytes,
    GGMLType.F16: f16,
    GGMLType.BF16: bf16,
    GGMLType.Q8_0: q8_0,
    GGMLType.Q4_0: q4_0,
    GGMLType.Q5_0: q5_0,
    GGMLType.Q5_1: q5_1,
    GGMLType.Q4_K: q4_k,
    GGMLType.Q5_K: q5_k,
    GGMLType.Q6_K: q6_k,
}
