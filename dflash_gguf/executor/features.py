"""Target features from a file: .npy, .safetensors, or random ones for a smoke run."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

import numpy as np

from dflash_gguf.errors import FormatError, ModelError, UsageError
from dflash_gguf.executor.ops import F32
from dflash_gguf.executor.tensor_rows import CheckpointTensors
from dflash_gguf.formats.safetensors import read_header
from dflash_gguf.storage.files import LocalFile
from dflash_gguf.wording import counted

_MAX_NPY_HEADER = 10_000
_NPY_VERSIONS = (b"\x01", b"\x02", b"\x03")
_NPY_DTYPES = {f"{order}f{size}" for order in "<>" for size in (2, 4, 8)}
_NPY_HEADER = re.compile(
    r"\{'descr': '([^']{1,40})', 'fortran_order': (True|False), 'shape': \(([0-9, ]{0,100})\), ?\} *\n"
)


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
    """A .npy file of format 1 to 3 with float16, float32 or float64. Source: numpy's format page."""
    head = file.read(0, min(file.size, 12 + _MAX_NPY_HEADER))
    long = head[6:7] in (b"\x02", b"\x03")
    start = (12 if long else 10) + int.from_bytes(head[8 : 12 if long else 10], "little")
    if head[:6] != b"\x93NUMPY" or head[6:7] not in _NPY_VERSIONS or start > len(head):
        raise FormatError("not a .npy file", where=file.name, hint="np.save(path, x) writes one")
    match = _NPY_HEADER.fullmatch(head[12 if long else 10 : start].decode("latin-1"))
    if match is None:
        raise FormatError(
            "its .npy header is not that of one array", where=file.name, hint="save a plain float32 array"
        )
    descr, fortran, dims = match.groups()
    if descr not in _NPY_DTYPES or fortran == "True":
        order = "Fortran order" if fortran == "True" else f"dtype {descr}"
        hint = "save np.ascontiguousarray(x, np.float32)"
        raise FormatError(f"{order}, expected float32 in C order", where=file.name, hint=hint)
    shape = [int(dim) for dim in re.findall(r"\d+", dims)]
    size = prod(shape) * int(descr[-1])
    if size != file.size - start:
        held = f"the file holds {file.size - start:,}"
        raise FormatError(f"shape {shape} takes {counted(size, 'byte')}, {held}", where=file.name, hint="truncated?")
    with np.errstate(over="ignore"):  # a float64 beyond float32 is an Inf, which the draft refuses
        return np.frombuffer(file.read(start, size), descr).reshape(shape).astype(np.float32)


def _safetensors(file: LocalFile) -> F32:
    tensors = read_header(file)
    name = next(iter(tensors), "") if len(tensors) == 1 else "features"
    if name not in tensors or len(tensors[name].shape) != 2:
        held = ", ".join(list(tensors)[:5]) or "none"
        raise ModelError(f"no matrix named features (tensors: {held})", where=file.name)
    source = CheckpointTensors(file.name, tensors, {name: name})
    return source.read_rows(name, 0, tensors[name].shape[0])
