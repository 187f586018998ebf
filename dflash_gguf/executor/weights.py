"""Weights on their way from a file to a matrix product: read and dequantized in tiles, kept as far as memory allows."""

from __future__ import annotations

from math import prod
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dflash_gguf.errors import ModelError, UsageError
from dflash_gguf.executor.blas_threads import pool
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dflash_gguf.executor.ops import F32, I64

#: float32 bytes of one tile; a product works on a tile that the processor's cache still holds.
TILE_BYTES = 8 << 20
#: what a process takes besides the weights it keeps: measured 140 MB at full size on two cores
RESERVE = 192 << 20


class TensorSource(Protocol):
    """Named tensors whose rows can be read as float32; the last dimension is a row, all others are folded."""

    @property
    def name(self) -> str:
        """The file, for messages."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes in numpy's order (GGUF's `ne` reversed)."""

    def read_rows(self, tensor: str, first: int, last: int) -> F32:
        """Rows first … last − 1 of `tensor`, dequantized: (last − first, row length)."""


class Budget:
    """Bytes that the process may take, shared by everything that is loaded; weights stay dequantized in what is left.

    RESERVE is set aside for the interpreter, the weights in flight and the activations of a block. Raises UsageError
    when nothing would be left.
    """

    def __init__(self, total: int) -> None:
        if total <= RESERVE:
            raise UsageError(
                f"a memory budget of {counted(total, 'byte')} is too small to work in",
                where="--memory",
                hint=f"give more than {RESERVE >> 20}M",
            )
        self._left = total - RESERVE
        self._lock = Lock()

    def take(self, size: int) -> bool:
        """Whether `size` more bytes may stay. First come, first kept: a cycle over the layers defeats LRU."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True


class Weights:
    """What a model does with its tensors: `vector`, `linear`, `rows`. `used` names those that were asked for.

    Tiles have the same rows whether they are kept or read again, so the budget never changes a result. With
    `row_by_row`, each row of x is multiplied on its own: BLAS sums a row in another order when it has company,
    and a target has to predict the same for a token alone as for the same token within a block.
    """

    def __init__(self, source: TensorSource, budget: Budget, *, row_by_row: bool = False) -> None:
        self.source = source
        self.used: set[str] = set()
        self._budget = budget
        self._row_by_row = row_by_row
        self._tiles: dict[tuple[str, int], F32] = {}
        self._vectors: dict[str, F32] = {}
        self._finite: set[str] = set()

    def __contains__(self, tensor: str) -> bool:
        return tensor in self.source.shapes

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The shape of `tensor`, slowest dim first; raises ModelError when the file has none."""
        shape = self.source.shapes.get(tensor)
        if shape is None:
            raise ModelError("the file has no such tensor", where=f"{self.source.name}: {tensor}")
        return shape

    def vector(self, tensor: str) -> F32:
        """The whole of a small tensor, in its shape; always kept."""
        if tensor not in self._vectors:
            shape = self.shape(tensor)
            self.used.add(tensor)
            self._vectors[tensor] = self._read(tensor, 0, self._n_rows(tensor)).reshape(shape)
        return self._vectors[tensor]

    def linear(self, tensor: str, x: F32) -> F32:
        """`x @ W.T` for x (T, in) and W (out, in)."""
        self.used.add(tensor)
        out = np.empty((len(x), self._n_rows(tensor)), np.float32)

        def multiply(first: int) -> None:
            tile = self._tile(tensor, first)
            part = out[:, first : first + len(tile)]
            if self._row_by_row:
                for i, row in enumerate(x):
                    part[i] = tile @ row
            else:
                part[:] = x @ tile.T

        self._for_each_tile(tensor, multiply)
        return out

    def rows(self, tensor: str, ids: I64) -> F32:
        """Rows of an embedding or a codebook by token id: ids of any shape S → (*S, row length)."""
        self.used.add(tensor)
        height, (n_rows, width) = self._tile_height(tensor), self.shape(tensor)
        out = np.empty((ids.size, width), np.float32)
        for i, token in enumerate(ids.flat):
            if not 0 <= token < n_rows:
                raise ModelError(f"token {token} is outside its {counted(n_rows, 'row')}", where=self._where(tensor))
            at = int(token)
            tile = self._tiles.get((tensor, at - at % height))
            out[i] = tile[at % height] if tile is not None else self._read(tensor, at, at + 1)[0]
        return out.reshape(*ids.shape, width)

    def require_finite(self, tensor: str) -> None:
        """Read all of a tensor whose rows are only looked up; raises ModelError at a NaN or Inf."""
        if tensor not in self._finite:
            self._for_each_tile(tensor, lambda first: self._tile(tensor, first))
            self._finite.add(tensor)

    def require_all_used(self) -> None:
        """Raise ModelError when the file holds a tensor that nothing asked for."""
        unused = sorted(self.source.shapes.keys() - self.used)
        if unused:
            raise ModelError(
                f"{counted(len(unused), 'tensor')} of the file not used: {', '.join(unused[:10])}",
                where=self.source.name,
                hint="a draft computed without them would not be this file's draft",
            )

    def _for_each_tile(self, tensor: str, work: Callable[[int], object]) -> None:
        firsts = range(0, self._n_rows(tensor), self._tile_height(tensor))
        for _ in pool().map(work, firsts) if len(firsts) > 1 else map(work, firsts):
            pass

    def _tile(self, tensor: str, first: int) -> F32:
        tile = self._tiles.get((tensor, first))
        if tile is None:
            tile = self._read(tensor, first, min(first + self._tile_height(tensor), self._n_rows(tensor)))
            if self._budget.take(tile.nbytes):
                self._tiles[tensor, first] = tile
        return tile

    def _read(self, tensor: str, first: int, last: int) -> F32:
        rows = self.source.read_rows(tensor, first, last)
        with np.errstate(over="ignore", invalid="ignore"):
            total = rows.sum()  # a finite sum has finite terms, and costs a fraction of looking at each
        if not np.isfinite(total) and not np.isfinite(rows).all():
            row = first + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            raise ModelError(
                f"NaN or Inf in row {row}",
                where=self._where(tensor),
                hint="`dflash-gguf check --data` lists every bad tensor; convert the checkpoint again",
            )
        return rows

    def _n_rows(self, tensor: str) -> int:
        return prod(self.shape(tensor)[:-1])

    def _tile_height(self, tensor: str) -> int:
        return max(1, TILE_BYTES // (4 * self.shape(tensor)[-1]))

    def _where(self, tensor: str) -> str:
        return f"{self.source.name}: {tensor}"
