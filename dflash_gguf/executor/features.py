"""Target features from a file: .npy, .safetensors, or random ones for a smoke run."""

from __future__ import annotations

from io import BytesIO
from math import prod
from pathlib import Path

import numpy as np

from dflash_gguf.bytesio.source import LocalFile
from dflash_gguf.errors import FormatError, ModelError, UsageError
from dflash_gguf.executor.ops import F32
from dflash_gguf.executor.sources import CheckpointTensors
from dflash_gguf.formats.safetensors import read_header

_MAX_NPY_HEADER = 10_000


def load_features(text: str, width: int) -> F32:
    """Features (N, width) from `random:N[:SEED]` or a file; width is taps · H.

    A .safetensors file holds them as its only tensor, or as one named `features`. Nothing is unpickled, and no
    declared size is believed before it is compared with the file's. Raises UsageError, FormatError or ModelError.
    """
    if text.startswith("random:"):
        return _random(text, width)
    path = Path(text)
    if path.suffix not in (".npy", ".safetensors"):
        raise UsageError(
            f"{text!r} is neither .npy, .safetensors nor random:N[:SEED]",
            where="--features",
            hint="np.save writes .npy",
        )
    with LocalFile(path) as file:
        features = _npy(file) if path.suffix == ".npy" else _safetensors(file)
    if features.ndim != 2 or features.shape[1] != width or len(features) == 0:
        raise ModelError(
            f"shape {list(features.shape)}, expected [positions, {width}]",
            where=text,
            hint="one row a context position: the hidden states of all taps, one behind another",
        )
    return features


def _random(text: str, width: int) -> F32:
    parts = text.split(":")[1:]
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() for part in parts) or int(parts[0]) < 1:
        raise UsageError(f"{text!r}, expected random:N or random:N:SEED with N ≥ 1", where="--features")
    rng = np.random.default_rng(int(parts[1]) if len(parts) == 2 else 0)
    return rng.standard_normal((int(parts[0]), width), dtype=np.float32)


def _npy(file: LocalFile) -> F32:
    """The format of numpy, versions 1 to 3, float16, float32 or float64. Source: numpy.lib.format."""
    head = BytesIO(file.read(0, min(file.size, _MAX_NPY_HEADER + 12)))
    try:
        version = np.lib.format.read_magic(head)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(head, max_header_size=_MAX_NPY_HEADER)
    except ValueError as error:
        raise FormatError(f"not a .npy file: {error}", where=file.name) from None
    if dtype.kind != "f" or dtype.itemsize > 8 or fortran:
        order = "Fortran order" if fortran else f"dtype {dtype}"
        raise FormatError(
            f"{order}, expected float32 in C order", where=file.name, hint="np.ascontiguousarray(x, np.float32)"
        )
    start, size = head.tell(), prod(shape) * dtype.itemsize
    if size != file.size - start:
        raise FormatError(
            f"shape {list(shape)} takes {size:,} bytes, the file holds {file.size - start:,}", where=file.name
        )
    with np.errstate(over="ignore"):
        return np.frombuffer(file.read(start, size), dtype).reshape(shape).astype(np.float32)


def _safetensors(file: LocalFile) -> F32:
    tensors = read_header(file)
    name = next(iter(tensors), "") if len(tensors) == 1 else "features"
    if name not in tensors or len(tensors[name].shape) != 2:
        held = ", ".join(list(tensors)[:5]) or "none"
        raise ModelError(f"no matrix named features (tensors: {held})", where=file.name)
    source = CheckpointTensors(file.name, tensors, {name: name})
    return source.read_rows(name, 0, tensors[name].shape[0])
