"""A probe in every operation: it stops at the first NaN or Inf, and keeps what it saw when a trace is wanted.

Names in a trace, all float32 unless said otherwise; N context positions, T steps of the block, S = T − 1 slots,
C candidates a slot, and for `block.L.` each layer L:

    context.features          (N, taps · H)   what the target was tapped for
    context.fused             (N, H)          after fc and the encoder's norm
    context.L.k, context.L.v  (N, kv, d)      keys (normed, turned) and values that go into the cache
    block.tokens              (T,) int64      the anchor, then masks
    block.embedding           (T, H)
    block.L.attn_norm         (T, H)          and so on in the order of the computation:
    block.L.attn_conv_dynamic (T, 2, taps, groups), attn_conv_in (T, H), q (T, heads, d), k, v (T, kv, d),
    attn (T, heads · d), attn_out (T, H), attn_conv_out, attn_residual, ffn_norm, ffn_conv_dynamic, ffn_conv_in,
    ffn_gate, ffn_up (T, ffn), ffn_out (T, H), ffn_conv_out, out
    block.hidden              (S, H)          after the final norm, the slots only
    block.logits              (S, vocab)
    selector.gate             (S, rank)
    selector.candidates       (S, C) int64    by logit, then id
    selector.unary            (S, C)          their logits
    selector.scores           (S, C, C)       [slot, predecessor candidate, candidate]; slot 0's rows are the anchor's

In a whole decode the names start with `block0/`, `block1/`, …, by block.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dflash_gguf.errors import ModelError, OutputError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_Array = TypeVar("_Array", bound="NDArray[Any]")


class Probe:
    """Call it with a name and an array: the array comes back, or ModelError names the operation.

    With `keep`, copies are held in `seen`; with `numbered`, their names begin with the block's number.
    """

    def __init__(self, *, keep: bool = False, numbered: bool = False) -> None:
        self.seen: dict[str, NDArray[Any]] = {}
        self._keep = keep
        self._blocks = count() if numbered else None
        self._prefix = ""

    def next_block(self) -> None:
        """What comes now belongs to the next block: first the context that it sees more than the last one."""
        if self._blocks is not None:
            self._prefix = f"block{next(self._blocks)}/"

    def __call__(self, name: str, array: _Array) -> _Array:
        if not np.isfinite(array).all():
            raise ModelError(
                f"operation {self._prefix}{name} gave NaN or Inf",
                where=name,
                hint="`dflash-gguf check --data` finds bad weights; the features may hold huge values",
            )
        if self._keep:
            self.seen[self._prefix + name] = array.copy()
        return array

    def save(self, path: Path) -> None:
        """Write everything seen as one .npz (zip of .npy), names as above. Raises OutputError."""
        try:
            self._write(path)
        except OSError as error:
            raise OutputError(f"cannot be written: {error.strerror}", where=str(path)) from error

    def _write(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **self.seen)  # type: ignore[arg-type]  # numpy's stub takes the keyword allow_pickle for one
