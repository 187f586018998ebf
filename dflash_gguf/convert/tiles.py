"""One tile of weights: read once, then encoded for each output."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dflash_gguf.errors import ModelError
from dflash_gguf.formats.gguf.types import GGMLType, tensor_bytes

if TYPE_CHECKING:
    from dflash_gguf.convert.plan import PlannedTensor

_Bits: TypeAlias = NDArray[np.uint16] | NDArray[np.uint32]

_NUMPY = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32}
_EXPONENT = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}
_RAW = {"BF16": GGMLType.BF16, "F16": GGMLType.F16, "F32": GGMLType.F32}


class TileReader:
    """Buffers of one thread; `read` fills them, `encode` gives the same tile in any type."""

    def __init__(self, head: int) -> None:
        self.head = head
        self._buffer = np.empty(0, np.uint8)
        self._bits: _Bits = np.empty(0, np.uint16)
        self._dtype = "BF16"
        self._float: NDArray[np.float32] | None = None
        self._where = ""

    def read(self, tensor: PlannedTensor, first: int, rows: int) -> int:
        """Read rows [first, first + rows) and check that every weight is finite; returns source bytes read."""
        source = tensor.source
        row = source.shape[-1]
        size = rows * row * source.size // source.n_weights
        if self._buffer.size < size:
            self._buffer = np.empty(size, np.uint8)
        raw = self._buffer[:size]
        source.source.read_into(source.offset + first * size // rows, raw.data)
        self._dtype, self._float, self._where = source.dtype, None, f"{source.source.name}: {source.name}"
        self._bits = raw.view(_NUMPY[source.dtype])
        self._check_finite(first * row)
        if tensor.permuted:
            self._bits = _evens_first(self._bits, self.head, row if len(source.shape) > 1 else 1)
        return size

    def encode(self, ggml_type: GGMLType) -> NDArray[np.uint8]:
        """The tile in `ggml_type`; valid until the next `read`."""
        if ggml_type is _RAW[self._dtype]:
            return self._bits.view(np.uint8)
        from dflash_gguf.formats.blocks.codec import quantize

        values = self.values()
        out = np.empty(tensor_bytes(ggml_type, values.size), np.uint8)
        quantize(ggml_type, values, out)
        return out

    def values(self) -> NDArray[np.float32]:
        """The tile as float32."""
        if self._float is None:
            if self._dtype == "BF16":
                self._float = (self._bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
            elif self._dtype == "F16":
                self._float = self._bits.view(np.float16).astype(np.float32)
            else:
                self._float = self._bits.view(np.float32)
        return self._float

    def _check_finite(self, first_weight: int) -> None:
        """A NaN or an infinity has all exponent bits set."""
        mask = self._bits.dtype.type(_EXPONENT[self._dtype])
        masked = self._bits & mask
        if masked.max(initial=0) == mask:
            position = first_weight + int(np.argmax(masked == mask))
            raise ModelError(
                f"weight {position:,} is NaN or infinite", where=self._where, hint="the checkpoint is damaged"
            )


def _evens_first(bits: _Bits, head: int, row: int) -> _Bits:
    """Rows of interleaved-rope heads in NeoX order: per head, even dims first, then odd."""
    pairs = bits.reshape(-1, head // 2, 2, row).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(pairs).reshape(-1).view(bits.dtype)
