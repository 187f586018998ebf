"""Tensors of a GGUF or of a checkpoint folder as float32 rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dflash_gguf.errors import ModelError
from dflash_gguf.formats.blocks.codec import DEQUANTIZABLE, dequantize
from dflash_gguf.formats.gguf.types import GGMLType, tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dflash_gguf.executor.ops import F32
    from dflash_gguf.formats.gguf.layout import TensorInfo
    from dflash_gguf.formats.safetensors import SourceTensor
    from dflash_gguf.storage.files import ByteFile

#: safetensors dtypes whose bytes are those of a ggml type
_SAME_BYTES = {"F32": GGMLType.F32, "F16": GGMLType.F16, "BF16": GGMLType.BF16}


class GGUFTensors:
    """The tensors of a GGUF; see weights.TensorSource. `shapes` has numpy's order."""

    def __init__(self, source: ByteFile, tensors: Mapping[str, TensorInfo]) -> None:
        self.name = source.name
        self.shapes = {name: info.shape[::-1] for name, info in tensors.items()}
        self._source, self._tensors = source, tensors

    def read_rows(self, tensor: str, first: int, last: int) -> F32:
        """Rows first … last − 1, dequantized. Raises ModelError for a type that cannot be."""
        info = self._tensors[tensor]
        if info.type not in DEQUANTIZABLE:
            raise ModelError(
                f"type {info.type.name} is not dequantized here",
                where=f"{self.name}: {tensor}",
                hint="give the file in another type",
            )
        width, size = info.shape[0], tensor_bytes(info.type, info.shape[0])
        raw = self._source.read(info.offset + first * size, (last - first) * size)
        return dequantize(info.type, np.frombuffer(raw, np.uint8)).reshape(last - first, width)


class CheckpointTensors:
    """Tensors of safetensors files under other names (`names`: ours → the checkpoint's)."""

    def __init__(self, name: str, tensors: Mapping[str, SourceTensor], names: Mapping[str, str]) -> None:
        self.name = name
        self._tensors = {ours: tensors[theirs] for ours, theirs in names.items()}
        self.shapes = {ours: tensor.shape for ours, tensor in self._tensors.items()}

    def read_rows(self, tensor: str, first: int, last: int) -> F32:
        """Rows first … last − 1 as float32. Raises ModelError for a dtype other than F32, F16 and BF16."""
        held = self._tensors[tensor]
        ggml_type = _SAME_BYTES.get(held.dtype)
        if ggml_type is None:
            raise ModelError(
                f"dtype {held.dtype} is not read here",
                where=f"{self.name}: {held.name}",
                hint="give a target in BF16, F16 or F32, or its GGUF",
            )
        width = held.shape[-1]
        size = tensor_bytes(ggml_type, width)
        raw = held.source.read(held.offset + first * size, (last - first) * size)
        return dequantize(ggml_type, np.frombuffer(raw, np.uint8)).reshape(last - first, width)
