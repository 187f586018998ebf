"""One tile of weights: read once, then encoded for each output."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dflash_gguf.errors import ModelError
from dflash_gguf.formats.blocks import bf16_to_f32, dequantize, quantize
from dflash_gguf.formats.gguf.types import GGMLType, tensor_bytes
from dflash_gguf.formats.safetensors import SourceTensor

if TYPE_CHECKING:
    from dflash_gguf.conversion.plan import PlannedTensor

_Bits: TypeAlias = NDArray[np.uint16] | NDArray[np.uint32] | NDArray[np.uint64]

_NUMPY = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32, "I64": np.uint64}
_RAW = {"BF16": GGMLType.BF16, "F16": GGMLType.F16, "F32": GGMLType.F32, "I64": GGMLType.I64}
#: bits of the largest size each dtype may have: one less than infinity's
_FINITE = {"BF16": 0x7F7F, "F16": 0x7BFF, "F32": 0x7F7FFFFF}
#: no type's scales or values overflow below F16's largest number
_HARMLESS = np.float32(65504)


class TileReader:
    """Buffers of one thread; `read` fills them, `encode` gives the same tile in any type."""

    def __init__(self, head: int) -> None:
        self.head = head
        self._buffer = np.empty(0, np.uint8)
        self._wide = np.empty(0, np.float32)
        self._decoded = np.empty(0, np.uint16)
        self._bits: _Bits = np.empty(0, np.uint16)
        self._dtype = "BF16"
        self._values: NDArray[np.float32] | None = None
        self._large = False
        self._where = ""

    def read(self, tensor: PlannedTensor, first: int, rows: int) -> int:
        """`read_source` of a planned tensor."""
        return self.read_source(tensor.source, first, rows, scale=tensor.scale, permuted=tensor.permuted)

    def read_source(
        self, source: SourceTensor, first: int, rows: int, *, scale: SourceTensor | None = None, permuted: bool = False
    ) -> int:
        """Read rows [first, first + rows) and check that every weight is finite; returns source bytes read.

        With a `scale` the source is MXFP8 and becomes BF16, exactly. `permuted` rows change from interleaved to NeoX
        order. Raises ModelError for a weight that is NaN or infinite or that BF16 cannot hold.
        """
        row = source.shape[-1]
        self._values, self._where = None, f"{source.source.name}: {source.name}"
        if scale is None:
            raw = self._read(source, first, rows)
            size = raw.size
            self._dtype, self._bits = source.dtype, raw.view(_NUMPY[source.dtype])
        else:
            size = self._decode(source, scale, first, rows)
            self._dtype = "BF16"
        self._check_finite(first * row)
        if permuted:
            self._bits = _evens_first(self._bits, self.head, row if len(source.shape) > 1 else 1)
        return size

    def _read(self, source: SourceTensor, first: int, rows: int, behind: int = 0) -> NDArray[np.uint8]:
        """Bytes of rows of `source`, kept in the buffer `behind` others."""
        size = rows * source.shape[-1] * source.size // source.n_weights
        if self._buffer.size < behind + size:
            grown = np.empty(behind + size, np.uint8)
            grown[:behind] = self._buffer[:behind]
            self._buffer = grown
        raw = self._buffer[behind : behind + size]
        source.source.read_into(source.offset + first * size // rows, raw.data)
        return raw

    def _decode(self, source: SourceTensor, scale: SourceTensor, first: int, rows: int) -> int:
        from dflash_gguf.formats.blocks import mxfp8_block

        n_codes = self._read(source, first, rows).size
        scales = self._read(scale, first, rows, behind=n_codes)
        codes = self._buffer[:n_codes]
        if fault := mxfp8_block.first_fault(codes, scales):
            index, reason = fault
            position = first * source.shape[-1] + index
            raise ModelError(f"weight {position:,}: {reason}", where=self._where, hint="the checkpoint is damaged")
        if self._decoded.size < n_codes:
            self._decoded = np.empty(n_codes, np.uint16)
        self._bits = self._decoded[:n_codes]
        mxfp8_block.decode(codes, scales, self._bits)
        return n_codes + scales.size

    def raw(self) -> NDArray[np.uint8]:
        """The tile's bytes as they were read, or decoded; valid until the next `read`."""
        return self._bits.view(np.uint8)

    def encode(self, ggml_type: GGMLType) -> NDArray[np.uint8]:
        """The tile in `ggml_type`; valid until the next `read`. Raises ModelError for what the type cannot hold."""
        if ggml_type is _RAW[self._dtype]:
            return self.raw()
        values = self.floats()
        out = np.empty(tensor_bytes(ggml_type, values.size), np.uint8)
        quantize(ggml_type, values, out)
        if self._large and not np.isfinite(dequantize(ggml_type, out)).all():
            raise ModelError(
                f"a weight of {np.abs(values).max():g} is too large for {ggml_type.name}",
                where=self._where,
                hint="--tensor-type gives it a wider type",
            )
        return out

    def floats(self) -> NDArray[np.float32]:
        """The tile as float32; valid until the next `read`."""
        if self._values is None:
            if self._dtype == "BF16":
                if self._wide.size < self._bits.size:
                    self._wide = np.empty(self._bits.size, np.float32)
                self._values = self._wide[: self._bits.size]
                bf16_to_f32(self._bits.view(np.uint16), self._values)
            elif self._dtype == "F16":
                self._values = self._bits.view(np.float16).astype(np.float32)
            else:
                self._values = self._bits.view(np.float32)
        return self._values

    def _check_finite(self, first_weight: int) -> None:
        """Sizes order as their bits do: the largest tells whether all are finite, and whether any is large."""
        if self._dtype == "I64":
            self._large = False
            return
        kind = self._bits.dtype.type
        sizes = self._bits & kind((1 << 8 * self._bits.itemsize - 1) - 1)
        largest = sizes.max(initial=0)
        if largest > _FINITE[self._dtype]:
            position = first_weight + int(np.argmax(sizes > _FINITE[self._dtype]))
            raise ModelError(
                f"weight {position:,} is NaN or infinite", where=self._where, hint="the checkpoint is damaged"
            )
        bits = np.array([int(largest) << 16 if self._dtype == "BF16" else int(largest)], np.uint32)
        self._large = self._dtype != "F16" and bool(bits.view(np.float32)[0] > _HARMLESS)


def _evens_first(bits: _Bits, head: int, row: int) -> _Bits:
    """Rows of interleaved-rope heads in NeoX order: per head, even dims first, then odd."""
    pairs = bits.reshape(-1, head // 2, 2, row).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(pairs).reshape(-1).view(bits.dtype)
