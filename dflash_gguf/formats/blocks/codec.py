"""Weights to and from the blocks of every tensor type that drafts use. Importing this module costs nothing.

Quantizing gives the bytes of ggml's `quantize_row_*_ref`, which is what llama-quantize calls for these types when
it has no importance matrix. Dequantizing is gguf-py's, exact and fast enough: 90-170 M weights/s a core.
All functions may be called from several threads at once: they keep no state and leave the GIL to others.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from dflash_gguf.formats.gguf.types import BLOCK_SIZE, GGMLType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

#: Types that `quantize` writes.
QUANTIZABLE: frozenset[GGMLType] = frozenset(
    {
        GGMLType.F32,
        GGMLType.F16,
        GGMLType.BF16,
        GGMLType.Q8_0,
        GGMLType.Q4_0,
        GGMLType.Q5_0,
        GGMLType.Q5_1,
        GGMLType.Q4_K,
        GGMLType.Q5_K,
        GGMLType.Q6_K,
    }
)

#: Types that `dequantize` reads.
DEQUANTIZABLE: frozenset[GGMLType] = QUANTIZABLE | {
    GGMLType.Q4_1,
    GGMLType.Q2_K,
    GGMLType.Q3_K,
}

_TWO_BYTE_FLOATS = frozenset({GGMLType.F16, GGMLType.BF16})


@cache
def _kernel(ggml_type: GGMLType) -> Callable[[Any, Any], None]:
    """Import the type's kernel, which loads it from numba's cache or compiles it (a few seconds a type)."""
    match ggml_type:
        case GGMLType.Q4_K:
            from dflash_gguf.formats.blocks import q4_k

            return q4_k.quantize
        case GGMLType.Q5_K:
            from dflash_gguf.formats.blocks import q5_k

            return q5_k.quantize
        case GGMLType.Q6_K:
            from dflash_gguf.formats.blocks import q6_k

            return q6_k.quantize
        case GGMLType.Q8_0:
            from dflash_gguf.formats.blocks import q8_0

            return q8_0.quantize
        case GGMLType.Q5_0 | GGMLType.Q5_1 | GGMLType.Q4_0:
            from dflash_gguf.formats.blocks import simple

            return {
                GGMLType.Q5_0: simple.quantize_q5_0,
                GGMLType.Q5_1: simple.quantize_q5_1,
                GGMLType.Q4_0: simple.quantize_q4_0,
            }[ggml_type]
        case GGMLType.F16 | GGMLType.BF16:
            from dflash_gguf.formats.blocks import floats

            return floats.to_f16 if ggml_type is GGMLType.F16 else floats.to_bf16
        case _:
            msg = f"no kernel writes {ggml_type.name}"
            raise ValueError(msg)


@contextmanager
def announced(on_compile: Callable[[], None]) -> Iterator[None]:
    """Call `on_compile` once if anything is compiled within: the first run on a machine, which takes seconds."""
    from numba.core import event

    waiting = True

    class Listener(event.Listener):  # type: ignore[misc]  # numba has no type information
        def on_start(self, _event: Any) -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                on_compile()

        def on_end(self, _event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        yield


def warm_up(types: Iterable[GGMLType], on_compile: Callable[[], None]) -> None:
    """Make the kernels of `types` ready; `on_compile` is called as by `announced`.

    Call it before threads start: they would wait for each other's compiling without a word.
    """
    wanted = [ggml_type for ggml_type in types if ggml_type is not GGMLType.F32]
    if not wanted:  # numba need not even be imported
        return
    with announced(on_compile):
        for ggml_type in wanted:
            _kernel(ggml_type)


def quantize(ggml_type: GGMLType, source: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    """Write `source` (1-D, contiguous, finite; a multiple of the type's block) into `out` as `ggml_type`.

    `source` may be read-only and unaligned. What becomes of a block with a NaN or infinity is not defined.
    Raises ValueError for a type not in `QUANTIZABLE` or an `out` of another size than the blocks
    need, TypeError for other dtypes or arrays that are not contiguous.
    """
    import numpy as np

    per_block, size = BLOCK_SIZE[ggml_type]
    if source.size % per_block or out.size != source.size // per_block * size:
        msg = f"{source.size} weights of {ggml_type.name} do not fill {out.size} bytes"
        raise ValueError(msg)
    if ggml_type is GGMLType.F32:
        out[:] = source.view(np.uint8)
    else:
        _kernel(ggml_type)(source, out.view(np.uint16) if ggml_type in _TWO_BYTE_FLOATS else out)


def dequantize(ggml_type: GGMLType, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Weights of whole blocks `raw` (1-D, contiguous). F32 shares its memory.

    Raises ValueError for a type not in `DEQUANTIZABLE` and for a part of a block.
    """
    import numpy as np

    _, size = BLOCK_SIZE[ggml_type]
    if ggml_type not in DEQUANTIZABLE or raw.size % size:
        msg = f"cannot dequantize {raw.size} bytes of {ggml_type.name}"
        raise ValueError(msg)
    if ggml_type is GGMLType.F32:
        return raw.view(np.float32)
    if ggml_type is GGMLType.F16:
        return raw.view(np.float16).astype(np.float32)
    if ggml_type is GGMLType.BF16:
        out = np.empty(raw.size // 2, np.float32)
        bf16_to_f32(raw.view(np.uint16), out)
        return out
    from gguf import GGMLQuantizationType, quants

    with np.errstate(all="ignore"):  # a file may hold infinite scales
        weights: NDArray[np.float32] = quants.dequantize(raw, GGMLQuantizationType(int(ggml_type)))
    return weights


def bf16_to_f32(bits: NDArray[np.uint16], out: NDArray[np.float32]) -> None:
    """Widen BF16 `bits` into `out` (same shape, contiguous): 5 G weights/s, so kernels take float32 alone."""
    import numpy as np

    np.left_shift(bits, np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)
