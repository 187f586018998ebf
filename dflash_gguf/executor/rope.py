"""Rotary position embedding, NeoX layout: dimension i turns with dimension i + n/2.

M-RoPE sections do not appear here: a draft's are [n/2, 0, 0, 0], and text has one position per token, so
they change nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dflash_gguf.errors import ModelError

if TYPE_CHECKING:
    from dflash_gguf.executor.ops import F32, I64
    from dflash_gguf.executor.sampling import F64
    from dflash_gguf.model.spec import DraftSpec, RopeScaling

#: llama.cpp's values where the file has none.
BETA_FAST, BETA_SLOW = 32.0, 1.0


@dataclass(frozen=True, slots=True)
class Rope:
    """`inv_freq` (n/2,) in radians per position; cos and sin are multiplied by `magnitude` (YaRN)."""

    inv_freq: F32
    magnitude: float = 1.0

    def turn(self, x: F32, positions: I64) -> F32:
        """Rotate the first n dimensions of `x` (T, heads, head_dim) by its `positions` (T,); the rest pass."""
        angle = positions.astype(np.float32)[:, None, None] * self.inv_freq
        cos, sin = (f(angle) * np.float32(self.magnitude) for f in (np.cos, np.sin))
        half = self.inv_freq.size
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        turned: F32 = np.concatenate((a * cos - b * sin, b * cos + a * sin, rest), axis=-1)
        return turned


def _frequencies(base: float, dims: int) -> F64:
    """`base ** (−2i / dims)`."""
    result: F64 = base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
    return result


def plain(base: float, dims: int) -> Rope:
    """No scaling."""
    return Rope(_frequencies(base, dims).astype(np.float32))


def linear(rope: Rope, factor: float) -> Rope:
    """Positions divided by `factor`."""
    return Rope(rope.inv_freq / np.float32(factor))


def with_factors(rope: Rope, factors: F32) -> Rope:
    """Each frequency divided by its own factor (a GGUF's rope_freqs)."""
    return Rope(rope.inv_freq / factors)


def llama3(base: float, dims: int, factor: float, low: float, high: float, original: float) -> Rope:
    """Llama 3.1: wavelengths beyond `original / low` are stretched by `factor`, those below `original / high` kept."""
    frequency = _frequencies(base, dims)
    turns = original * frequency / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return Rope((frequency * (keep + (1 - keep) / factor)).astype(np.float32))


def yarn(base: float, dims: int, scaling: RopeScaling, context_length: int) -> Rope:
    """YaRN: low frequencies are interpolated by the factor, high ones kept, a ramp in between.

    The ramp runs between the dimensions that turn `beta_fast` and `beta_slow` times within the original
    context (floor and ceiling); cos and sin grow by `0.1 ln(factor) + 1`. Source: arXiv 2309.00071, with
    llama.cpp's meaning of the keys `yarn_ext_factor`, `yarn_attn_factor` and `yarn_log_multiplier`.
    """
    original = scaling.original_context_length or context_length
    fast, slow = (
        dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (scaling.yarn_beta_fast or BETA_FAST, scaling.yarn_beta_slow or BETA_SLOW)
    )
    low, high = max(math.floor(fast), 0), min(math.ceil(slow), dims - 1)
    ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 0.001), 0, 1)
    keep = (1 - ramp) * (1.0 if scaling.yarn_ext_factor is None else scaling.yarn_ext_factor)
    frequency = _frequencies(base, dims)
    mixed = frequency / scaling.factor * (1 - keep) + frequency * keep
    return Rope(mixed.astype(np.float32), yarn_magnitude(scaling))


def yarn_magnitude(scaling: RopeScaling) -> float:
    """What cos and sin are multiplied by."""

    def growth(multiplier: float) -> float:
        return 0.1 * multiplier * math.log(scaling.factor) + 1 if scaling.factor > 1 else 1.0

    shrink = growth(scaling.yarn_log_multiplier) if scaling.yarn_log_multiplier else 1.0
    attention_factor = 1.0 if scaling.yarn_attn_factor is None else scaling.yarn_attn_factor
    return growth(1.0) / shrink * attention_factor


def scaled_rope(base: float, dims: int, scaling: RopeScaling, context_length: int) -> Rope:
    """The rope of a scaling; raises ModelError for a type that has no formula here."""
    if scaling.type == "yarn":
        return yarn(base, dims, scaling, context_length)
    if scaling.type == "linear":
        return linear(plain(base, dims), scaling.factor)
    raise ModelError(
        f"rope scaling {scaling.type!r} is not implemented",
        where="rope scaling",
        hint="the executor knows yarn and linear",
    )


def draft_rope(spec: DraftSpec) -> Rope:
    """The draft's one rope, for sliding and full layers alike."""
    dims = spec.rope_dimension_count or spec.key_length
    if spec.rope_scaling is None:
        return plain(spec.rope_freq_base, dims)
    return scaled_rope(spec.rope_freq_base, dims, spec.rope_scaling, spec.context_length)
