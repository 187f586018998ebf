"""Attention of a block over the context and itself, and the cache that holds the context's keys and values."""

from __future__ import annotations

import math

import numpy as np

from dflash_gguf.executor.ops import F32, I64, Bool


def visible(queries: I64, keys: I64, *, causal: bool, window: int | None) -> Bool:
    """Which key positions each query position sees: (len(queries), len(keys)).

    Inside a block attention runs both ways unless `causal`; a sliding layer sees |q − k| < window.
    """
    distance = queries[:, None] - keys[None, :]
    seen = distance >= 0 if causal else np.ones(distance.shape, np.bool_)
    return seen if window is None else seen & (np.abs(distance) < window)


def attend(q: F32, k: F32, v: F32, seen: Bool, sinks: F32 | None = None) -> F32:
    """Grouped-query attention: q (T, heads, d), k and v (S, kv_heads, d), seen (T, S) → (T, heads · d).

    A sink is one more logit per head that takes its share of the softmax and has no value.
    """
    steps, heads, dims = q.shape
    kv_heads = k.shape[1]
    grouped = q.reshape(steps, kv_heads, heads // kv_heads, dims).transpose(1, 2, 0, 3)
    scores = grouped.reshape(kv_heads, -1, dims) @ k.transpose(1, 2, 0) * np.float32(1 / math.sqrt(dims))
    scores = scores.reshape(kv_heads, heads // kv_heads, steps, -1)
    scores = np.where(seen, scores, np.float32(-np.inf))
    peak = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        sink = sinks.reshape(kv_heads, -1, 1, 1)
        peak = np.maximum(peak, sink)
    weights = np.exp(scores - peak)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sink - peak)
    weights = weights / total
    mixed = weights.reshape(kv_heads, -1, weights.shape[-1]) @ v.transpose(1, 0, 2)
    out: F32 = mixed.reshape(kv_heads, heads // kv_heads, steps, dims).transpose(2, 0, 1, 3)
    return out.reshape(steps, heads * dims)


class KVCache:
    """Keys and values of one layer by position, (positions, kv_heads, d); room doubles as it fills."""

    def __init__(self, kv_heads: int, dims: int) -> None:
        self._room = np.empty((2, 64, kv_heads, dims), np.float32)
        self.length = 0

    @property
    def k(self) -> F32:
        return self._room[0, : self.length]

    @property
    def v(self) -> F32:
        return self._room[1, : self.length]

    def append(self, k: F32, v: F32) -> None:
        """Add the next positions."""
        end = self.length + len(k)
        if end > self._room.shape[1]:
            room = np.empty((2, max(end, 2 * self._room.shape[1]), *self._room.shape[2:]), np.float32)
            room[:, : self.length] = self._room[:, : self.length]
            self._room = room
        self._room[0, self.length : end], self._room[1, self.length : end] = k, v
        self.length = end

    def crop(self, length: int) -> None:
        """Forget every position from `length` on."""
        self.length = min(self.length, length)
