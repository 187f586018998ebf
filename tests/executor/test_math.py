"""The formulas, on numbers small enough to work out by hand, and against definitions written as loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.executor_builders import tiny

from dflash_gguf.errors import ModelError
from dflash_gguf.executor.attention import KVCache, attend, visible
from dflash_gguf.executor.ops import F32, dynamic_conv, rms_norm, silu, softcap
from dflash_gguf.executor.rope import draft_rope, linear, llama3, plain, with_factors, yarn
from dflash_gguf.model.spec import RopeScaling

RNG = np.random.default_rng(3)


def normal(*shape: int) -> F32:
    return RNG.standard_normal(shape, dtype=np.float32)


def test_rms_norm_by_hand() -> None:
    x = np.array([[3.0, 4.0]], np.float32)  # mean square 12.5
    got = rms_norm(x, np.array([1.0, 2.0], np.float32), 0.0)
    assert got == pytest.approx(np.array([[3 / math.sqrt(12.5), 8 / math.sqrt(12.5)]]), rel=1e-6)


def test_silu_does_not_overflow() -> None:
    got = silu(np.array([-1000.0, 0.0, 1.0, 1000.0], np.float32))
    assert got == pytest.approx([0.0, 0.0, 1 / (1 + math.exp(-1)), 1000.0], rel=1e-6)


def test_softcap_by_hand() -> None:
    assert softcap(np.array([0.0, 30.0, -1e9], np.float32), 30.0) == pytest.approx([0.0, 30 * math.tanh(1), -30.0])


def test_conv_is_the_formula() -> None:
    steps, width, taps, group = 5, 12, 3, 4
    x, base, dynamic = normal(steps, width), normal(taps, width), normal(steps, taps, width // group)
    expected = np.zeros((steps, width))
    for t in range(steps):
        for tap in range(taps):
            for c in range(width):
                if t - tap >= 0:
                    expected[t, c] += (base[tap, c] + dynamic[t, tap, c // group]) * x[t - tap, c]
    assert dynamic_conv(x, base, dynamic) == pytest.approx(expected, abs=1e-5)


def test_conv_first_step_sees_tap_0_only() -> None:
    x = np.array([[1.0, 2.0], [10.0, 20.0]], np.float32)
    base = np.array([[1.0, 1.0], [5.0, 5.0]], np.float32)
    dynamic = np.zeros((2, 2, 1), np.float32)
    dynamic[0, 1] = 1000.0  # tap 1 of step 0 has nothing to read
    dynamic[1] = [[0.5], [1.0]]
    assert dynamic_conv(x, base, dynamic).tolist() == [[1.0, 2.0], [1.5 * 10 + 6 * 1, 1.5 * 20 + 6 * 2]]


def test_conv_with_more_taps_than_steps() -> None:
    assert dynamic_conv(
        np.ones((1, 2), np.float32), np.full((4, 2), 3, np.float32), np.zeros((1, 4, 1), np.float32)
    ).tolist() == [[3.0, 3.0]]


def test_visible() -> None:
    at = np.arange(4)
    assert visible(at[2:], at, causal=False, window=None).all()
    assert visible(at[2:], at, causal=True, window=None).tolist() == [[True, True, True, False], [True] * 4]
    assert visible(at[1:2], at, causal=False, window=2).tolist() == [[True, True, True, False]]
    assert visible(at[3:], at, causal=True, window=2).tolist() == [[False, False, True, True]]


def test_attention_is_the_formula() -> None:
    steps, keys, heads, kv, dims = 3, 5, 4, 2, 6
    q, k, v, sinks = normal(steps, heads, dims), normal(keys, kv, dims), normal(keys, kv, dims), normal(heads)
    seen = visible(np.arange(2, 5), np.arange(keys), causal=True, window=3)
    expected = np.zeros((steps, heads, dims))
    for t in range(steps):
        for h in range(heads):
            scores = [math.exp(q[t, h] @ k[s, h // 2] / math.sqrt(dims)) if seen[t, s] else 0.0 for s in range(keys)]
            total = sum(scores) + math.exp(sinks[h])
            expected[t, h] = sum(scores[s] / total * v[s, h // 2] for s in range(keys))
    assert attend(q, k, v, seen, sinks) == pytest.approx(expected.reshape(steps, -1), abs=1e-6)


def test_a_huge_sink_takes_everything() -> None:
    q, k, v = normal(1, 2, 4), normal(3, 1, 4), normal(3, 1, 4)
    out = attend(q, k, v, np.ones((1, 3), np.bool_), np.array([1e4, -1e4], np.float32))
    assert out[0, :4].tolist() == [0.0] * 4
    assert out[0, 4:] == pytest.approx(attend(q, k, v, np.ones((1, 3), np.bool_))[0, 4:])


def test_cache_grows_and_forgets() -> None:
    cache = KVCache(1, 2)
    rows = normal(100, 1, 2)
    cache.append(rows[:3], rows[:3] + 1)
    cache.append(rows[3:], rows[3:] + 1)
    assert (cache.k == rows).all()
    assert (cache.v == rows + 1).all()
    cache.crop(4)
    cache.append(rows[:1], rows[:1])
    assert cache.length == 5
    assert (cache.k[3:] == rows[[3, 0]]).all()


def test_rope_turns_halves() -> None:
    x = np.array([[[1.0, 0.0, 0.0, 1.0]]], np.float32)  # d = 4: pairs (0, 2) and (1, 3)
    got = plain(100.0, 4).turn(x, np.array([2]))[0, 0]
    a, b = 2.0, 2.0 * 100 ** (-0.5)
    assert got == pytest.approx([math.cos(a), -math.sin(b), math.sin(a), math.cos(b)], abs=1e-6)


def test_partial_rotary_leaves_the_rest() -> None:
    x = normal(3, 2, 8)
    got = draft_rope(tiny(rope_dimension_count=4)).turn(x, np.arange(3))
    assert (got[..., 4:] == x[..., 4:]).all()
    assert got[..., :4] == pytest.approx(plain(10000.0, 4).turn(x[..., :4], np.arange(3)))


def test_mrope_sections_change_nothing_for_text() -> None:
    x = normal(3, 2, 8)
    plain_rope, sections = draft_rope(tiny()), draft_rope(tiny(rope_dimension_sections=(4, 0, 0, 0)))
    assert (plain_rope.turn(x, np.arange(3)) == sections.turn(x, np.arange(3))).all()


def engine_yarn_angle(position: int, pair: int, dims: int, base: float, scaling: RopeScaling) -> tuple[float, float]:
    """Angle and magnitude by llama.cpp's way of putting it: interpolated and extrapolated angle, mixed by a ramp."""
    original = scaling.original_context_length or 0

    def correction(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(0, math.floor(correction(scaling.yarn_beta_fast or 32.0)))
    high = min(dims - 1, math.ceil(correction(scaling.yarn_beta_slow or 1.0)))
    mix = 1 - min(1, max(0, (pair - low) / max(0.001, high - low)))
    extrapolated = position * base ** (-2 * pair / dims)
    return extrapolated / scaling.factor * (1 - mix) + extrapolated * mix, 1 + 0.1 * math.log(scaling.factor)


@pytest.mark.parametrize(("fast", "slow"), [(32.0, 1.0), (None, None), (8.0, 2.0)])
def test_yarn_is_the_engines(fast: float | None, slow: float | None) -> None:
    dims, base = 64, 50000.0
    scaling = RopeScaling("yarn", 64.0, 4096, yarn_beta_fast=fast, yarn_beta_slow=slow)
    rope = yarn(base, dims, scaling, 262144)
    x = np.zeros((1, 1, dims), np.float32)
    x[..., : dims // 2] = 1.0
    got = rope.turn(x, np.array([7]))[0, 0]
    for pair in range(dims // 2):
        angle, magnitude = engine_yarn_angle(7, pair, dims, base, scaling)
        assert got[pair] == pytest.approx(math.cos(angle) * magnitude, abs=2e-6)
        assert got[dims // 2 + pair] == pytest.approx(math.sin(angle) * magnitude, abs=2e-6)


def test_yarn_keys_that_change_the_magnitude() -> None:
    grown = 1 + 0.1 * math.log(64.0)
    for fields, expected in (
        ({}, grown),
        ({"yarn_attn_factor": 0.5}, grown * 0.5),
        ({"yarn_log_multiplier": 1.0}, 1.0),
        ({"yarn_log_multiplier": 0.5}, grown / (1 + 0.05 * math.log(64.0))),
    ):
        assert yarn(1e4, 64, RopeScaling("yarn", 64.0, 4096, **fields), 4096).magnitude == pytest.approx(expected)
    none = yarn(1e4, 64, RopeScaling("yarn", 64.0, 4096, yarn_ext_factor=0.0), 4096)
    assert none.inv_freq == pytest.approx(plain(1e4, 64).inv_freq / 64, rel=1e-6)


def test_other_scalings() -> None:
    base = plain(1e4, 8)
    assert linear(base, 4.0).inv_freq == pytest.approx(base.inv_freq / 4)
    assert with_factors(base, np.array([1, 2, 4, 8], np.float32)).inv_freq == pytest.approx(
        base.inv_freq / [1, 2, 4, 8]
    )
    # turns within the original context of 8192: far above 4, between, far below 1
    got = llama3(500000.0, 128, 8.0, 1.0, 4.0, 8192.0).inv_freq / plain(500000.0, 128).inv_freq
    assert got[0] == pytest.approx(1)
    assert got[-1] == pytest.approx(1 / 8)
    assert np.all(np.diff(got) <= 1e-6)
    assert draft_rope(tiny(rope_scaling=RopeScaling("linear", 2.0))).inv_freq == pytest.approx(base.inv_freq / 2)


def test_an_unknown_scaling_is_refused() -> None:
    with pytest.raises(ModelError, match="'longrope' is not implemented"):
        draft_rope(tiny(rope_scaling=RopeScaling("longrope", 2.0)))
