"""How a checkpoint says that it is MXFP8, and how its tensors show it.

Two shapes of quantization config are in use, ModelOpt's nested one (hf_quant_config.json, or the same inside
config.json) and the flat one of config.json, with four names for the list of modules that stay as they were.
Whether a weight is quantized its tensors decide: it has a scale beside it or not. Source: what vLLM's ModelOpt
MXFP8 reader accepts, and ModelOpt 0.47.0's export.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import ceil, prod
from pathlib import Path
from typing import Any

from dflash_gguf.errors import ModelError
from dflash_gguf.formats.safetensors import SourceTensor
from dflash_gguf.model.checkpoint import read_json

HF_QUANT_CONFIG = "hf_quant_config.json"
ALGORITHM = "MXFP8"
BLOCK = 32
SCALE_SUFFIX = "_scale"
SCALE_DTYPES = ("U8", "F8_E8M0")
EXCLUDE_KEYS = ("exclude_modules", "ignore", "ignored_layers", "modules_to_not_convert")
#: vLLM reads a nested config only when it names this producer
PRODUCER = {"name": "modelopt", "version": "0.47.0"}


@dataclass(frozen=True, slots=True)
class Mxfp8Config:
    """A quantization config that says MXFP8: the modules it leaves alone, and the files it stands in."""

    exclude: tuple[str, ...]
    files: tuple[str, ...]


def read_quantization(folder: Path, config: Mapping[str, Any]) -> Mxfp8Config | None:
    """What `config` and the folder's hf_quant_config.json say of quantization; None where they say nothing.

    Raises ModelError naming any other scheme, FormatError for a file that is no JSON.
    """
    found = []
    inner = config.get("quantization_config")
    if inner is not None:
        found.append((str(folder / "config.json"), inner))
    path = folder / HF_QUANT_CONFIG
    if path.is_file():
        found.append((str(path), read_json(path)))
    if not found:
        return None
    excluded = [name for where, shape in found for name in _exclude_list(shape, where)]
    return Mxfp8Config(tuple(dict.fromkeys(excluded)), tuple(where for where, _ in found))


def _exclude_list(shape: Any, where: str) -> list[str]:
    """The modules that one config leaves alone, after making sure that it says MXFP8."""
    if not isinstance(shape, Mapping):
        raise ModelError(f"quantization_config is {shape!r}, expected an object", where=where)
    nested = shape.get("quantization")
    inner = nested if isinstance(nested, Mapping) else shape
    if scheme := _other_scheme(shape, inner):
        raise ModelError(f"is quantized as {scheme}: only MXFP8 is read", where=where, hint="convert the BF16 draft")
    names: list[str] = []
    for key in EXCLUDE_KEYS:
        value = inner.get(key) or []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ModelError(f"{key} is {value!r}, expected a list of module names", where=where)
        names += value
    return names


def _other_scheme(shape: Mapping[str, Any], inner: Mapping[str, Any]) -> str:
    """The name of a scheme that is not MXFP8, or ""."""
    method, algorithm = str(shape.get("quant_method", "modelopt")).lower(), inner.get("quant_algo")
    block = inner.get("weight_block_size")
    if method == "mxfp8" or (method.startswith("modelopt") and str(algorithm).upper() == ALGORITHM):
        size = inner.get("group_size", BLOCK)
        fits = block in (None, [1, BLOCK]) and size == BLOCK
        return "" if fits else f"{ALGORITHM} with blocks of {block or size}"
    if isinstance(block, list) and block:
        return f"{algorithm or method} with {'×'.join(map(str, block))} blocks"
    known = {
        "FP8": "FP8 with one scale a tensor",
        "FP8_PER_CHANNEL_PER_TOKEN": "FP8 with one scale a channel",
        "FP8_PB_WO": "FP8 with 128×128 blocks",
    }
    if algorithm is not None:
        return known.get(str(algorithm).upper(), str(algorithm))
    scheme = inner.get("format") or ("FP8 with one scale a tensor" if method == "fp8" else "")
    return f"{method}: {scheme}" if scheme and method != "fp8" else str(scheme or method)


def is_excluded(module: str, patterns: Iterable[str]) -> bool:
    """Whether vLLM would leave `module` alone: a pattern is a part of its name, or a wildcard that matches it whole."""
    names = (module, f"model.{module.removeprefix('model.')}")
    return any(pattern in name or fnmatchcase(name, pattern) for pattern in patterns if pattern for name in names)


def scale_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Shape of the scales of a weight [out, in]: one for 32 inputs of a row."""
    return (*shape[:-1], shape[-1] // BLOCK)


def check_scale(weight: SourceTensor, scale: SourceTensor) -> None:
    """Raise ModelError unless `weight` and `scale` are an MXFP8 pair; another scheme is named where it shows."""
    where = f"{weight.source.name}: {weight.name}"
    if scheme := _scheme_of(weight, scale):
        raise ModelError(f"is quantized as {scheme}: only MXFP8 is read", where=where, hint="convert the BF16 draft")
    if weight.dtype != "F8_E4M3":
        raise ModelError(f"has a scale but is {weight.dtype}, expected F8_E4M3", where=where)
    if len(weight.shape) != 2 or weight.shape[-1] % BLOCK:
        raise ModelError(
            f"shape {list(weight.shape)}: no matrix with rows of a multiple of {BLOCK} inputs", where=where
        )
    expected = scale_shape(weight.shape)
    if scale.shape != expected:
        found = f"{scale.name} has shape {list(scale.shape)}{_layout(scale.shape, expected)}"
        raise ModelError(f"{found}, expected {list(expected)}", where=where)
    if scale.dtype not in SCALE_DTYPES:
        raise ModelError(f"{scale.name} is {scale.dtype}, expected {' or '.join(SCALE_DTYPES)}", where=where)


def _scheme_of(weight: SourceTensor, scale: SourceTensor) -> str:
    """The scheme that a weight and its scale belong to where that is another one, else ""."""
    if scale.name.endswith("_scale_inv"):
        blocks = " with 128×128 blocks" if len(scale.shape) == 2 else ""
        return f"FP8{blocks} (weight_scale_inv)"
    if weight.dtype == "U8" and scale.dtype == "F8_E4M3":
        return "NVFP4 (packed 4-bit weights, E4M3 scales)"
    if weight.dtype == "U8" and scale.dtype in SCALE_DTYPES:
        return "MXFP4 (packed 4-bit weights)"
    if weight.dtype not in ("F8_E4M3", "BF16", "F16", "F32"):
        return f"{weight.dtype} weights with {scale.dtype} scales"
    if weight.dtype != "F8_E4M3" or scale.dtype in SCALE_DTYPES:
        return ""
    rows = weight.shape[0] if weight.shape else 0
    if scale.n_weights == 1:
        return "FP8 with one scale a tensor"
    if scale.n_weights == rows:
        return "FP8 with one scale a channel"
    if scale.shape == tuple(ceil(dim / 128) for dim in weight.shape):
        return "FP8 with 128×128 blocks"
    return ""


def _layout(found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """What may have happened to scales of the wrong shape."""
    if found == expected[::-1]:
        return " (transposed)"
    rows, columns = 128 * ceil(expected[0] / 128), 4 * ceil(expected[1] / 4)
    size = prod(found)
    return " (flat, or swizzled for a kernel)" if size in (rows * columns, expected[0] * expected[1]) else ""


def quantization_config(exclude: Sequence[str]) -> dict[str, Any]:
    """The flat config, as it stands in config.json."""
    group = {"dynamic": True, "group_size": BLOCK, "num_bits": 8, "type": "float"}
    return {
        "quant_method": "modelopt",
        "quant_algo": ALGORITHM,
        "ignore": list(exclude),
        "config_groups": {
            "group_0": {"input_activations": group, "weights": {**group, "dynamic": False}, "targets": ["Linear"]}
        },
        "producer": PRODUCER,
    }


def hf_quant_config(exclude: Sequence[str]) -> dict[str, Any]:
    """The nested config, as it stands in hf_quant_config.json; vLLM wants both of its last two keys."""
    return {
        "producer": PRODUCER,
        "quantization": {
            "quant_algo": ALGORITHM,
            "kv_cache_quant_algo": None,
            "group_size": BLOCK,
            "exclude_modules": list(exclude),
        },
    }


def vllm_faults(folder: Path, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(file, what is wrong) where vLLM would not take a config that `read_quantization` takes."""
    faults = []
    inner, path = config.get("quantization_config"), folder / HF_QUANT_CONFIG
    shapes = [(folder / "config.json", inner)] if inner is not None else []
    shapes += [(path, read_json(path))] if path.is_file() else []
    for file, shape in shapes:
        nested = shape.get("quantization")
        if isinstance(nested, Mapping):
            absent = [key for key in ("kv_cache_quant_algo", "exclude_modules") if key not in nested]
            faults += [(str(file), f"has no {key}, which vLLM wants in this shape of config") for key in absent]
        name = (shape.get("producer") or {}).get("name")
        if file == path and name != PRODUCER["name"]:
            faults.append((str(file), f"names the producer {name!r}: vLLM reads {PRODUCER['name']!r} only"))
    if not shapes:
        faults.append((str(folder), f"neither config.json nor {HF_QUANT_CONFIG} says that it is {ALGORITHM}"))
    return faults
