"""Weights of a file in parts, and another quantizer's version of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dflash_gguf.formats.blocks import dequantize, quantize
from dflash_gguf.formats.gguf.types import GGMLType, tensor_bytes
from support.builders_gguf import Parts
from support.faults import Workshop

_FLOATS = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


def decoded(parts: Parts, name: str) -> NDArray[np.float32]:
    """A tensor's weights, flat."""
    kind, _, raw = parts.tensors[name]
    return dequantize(kind, np.frombuffer(raw, np.uint8).copy())


def requantized(parts: Parts, shop: Workshop, *, wobble: float) -> Parts:
    """`parts`, its quantized tensors made from the source's weights moved by `wobble` times the type's own error."""
    rng = np.random.default_rng(3)
    for name, (kind, ne, raw) in list(parts.tensors.items()):
        if kind in _FLOATS:
            continue
        weights = decoded(shop.good, name)
        error = float(np.abs(decoded(parts, name) - weights).mean())
        moved = weights + np.float32(wobble * error) * rng.standard_normal(weights.size).astype(np.float32)
        out = np.empty(tensor_bytes(kind, moved.size), np.uint8)
        quantize(kind, moved, out)
        parts.tensors[name] = (kind, ne, out.tobytes())
        assert len(raw) == out.size
    return parts
