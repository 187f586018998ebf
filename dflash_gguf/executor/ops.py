"""The float32 operations a DFlash block is made of. T steps of a block, H hidden size, V vocabulary.

Everything stays in float32, as in the reference: float16 activations overflow in these models.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

F32: TypeAlias = NDArray[np.float32]
I64: TypeAlias = NDArray[np.int64]
Bool: TypeAlias = NDArray[np.bool_]


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """`x / sqrt(mean(x²) + eps) · weight` over the last axis."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    return np.divide(x, np.sqrt(mean_square + np.float32(eps))) * weight


def silu(x: F32) -> F32:
    """`x · sigmoid(x)`; written with the negative half's exponential so that it cannot overflow."""
    e = np.exp(-np.abs(x))
    return x * np.divide(np.where(x >= 0, np.float32(1), e), np.float32(1) + e)


def softcap(x: F32, cap: float) -> F32:
    """Squash into (−cap, cap): `cap · tanh(x / cap)`."""
    capped: F32 = np.tanh(x / np.float32(cap)) * np.float32(cap)
    return capped


def dynamic_conv(x: F32, base: F32, dynamic: F32) -> F32:
    """One side of a grouped dynamic causal convolution over a block.

    `out[t, c] = Σ_tap (base[tap, c] + dynamic[t, tap, group of c]) · x[t − tap, c]`, zero before the block's
    first step, so step 0 sees tap 0 only and nothing leaks in from an earlier block.
    Shapes: x (T, H); base (taps, H), learned; dynamic (T, taps, groups), computed from the block itself.
    """
    steps, width = x.shape
    _, taps, groups = dynamic.shape
    out = np.zeros_like(x)
    for tap in range(min(taps, steps)):
        kernel = base[tap] + np.repeat(dynamic[tap:, tap], width // groups, axis=1)
        out[tap:] += kernel * x[: steps - tap]
    return out
