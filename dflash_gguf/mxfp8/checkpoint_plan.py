"""The plan of an MXFP8 checkpoint: every tensor's place, every file, before a byte is written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_gguf.conversion.pairing import FP8, READABLE, TensorPair, pair_tensors
from dflash_gguf.errors import ModelError, UsageError
from dflash_gguf.formats.safetensors import EncodedSafetensors, SourceTensor, StoredTensor, encode_header
from dflash_gguf.model.checkpoint import INDEX, Checkpoint, Identity, read_config
from dflash_gguf.model.config import spec_from_config
from dflash_gguf.model.quantization import (
    BLOCK,
    HF_QUANT_CONFIG,
    SCALE_SUFFIX,
    hf_quant_config,
    is_excluded,
    quantization_config,
    read_quantization,
    scale_shape,
)

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
MANIFEST = "conversion_manifest.json"
#: modules that ModelOpt never quantizes
ALWAYS_EXCLUDED = ("lm_head",)
#: matrices that vLLM reads as one: all of them are quantized or none
_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass(frozen=True, slots=True)
class PlannedWeight:
    """One source tensor: where its bytes go, and (quantized) where its scales go."""

    source: SourceTensor
    stored: StoredTensor
    scale: StoredTensor | None


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """A whole MXFP8 checkpoint. `weights` are in file order; `copies` are the source's other files by their names."""

    identity: Identity
    header: EncodedSafetensors
    weights: tuple[PlannedWeight, ...]
    exclude: tuple[str, ...]
    config: bytes
    hf_quant_config: bytes
    copies: tuple[tuple[str, Path], ...]
    sources: tuple[tuple[str, Path], ...]

    @property
    def left_out(self) -> tuple[str, ...]:
        """The modules of `exclude` that this checkpoint has."""
        names = [weight.source.name for weight in self.weights]
        return tuple(pattern for pattern in self.exclude if any(is_excluded(name, [pattern]) for name in names))

    @property
    def source_bytes(self) -> int:
        """Bytes of tensor data that will be read."""
        return sum(weight.source.size for weight in self.weights)

    @property
    def output_bytes(self) -> int:
        """Bytes of the folder's files, but for the manifest."""
        written = self.header.file_size + len(self.config) + len(self.hf_quant_config)
        return written + sum(path.stat().st_size for _, path in self.copies)


def make_plan(checkpoint: Checkpoint, exclude: Sequence[str] = ()) -> CheckpointPlan:
    """Decide everything about writing `checkpoint` as MXFP8, but for the modules that `exclude` matches.

    Raises ModelError: no draft, quantized already, rows that blocks do not divide; UsageError: a pattern that
    matches nothing or divides matrices that vLLM reads as one.
    """
    folder = checkpoint.folder
    config = read_config(folder)
    spec = spec_from_config(config, None, where=str(folder / CONFIG)).spec
    if any(tensor.dtype == FP8 for tensor in checkpoint.tensors.values()) or read_quantization(folder, config):
        raise ModelError("is quantized already", where=str(folder), hint="start from the BF16 checkpoint")
    pairs = pair_tensors(spec, checkpoint.tensors, has_embed_tokens=True, quantization=None, where=str(folder)).pairs
    quantized = _quantized(pairs, exclude)
    kept = [pair.source.name.removesuffix(".weight") for pair in pairs if _left_out(pair, quantized)]
    excluded = tuple(dict.fromkeys((*ALWAYS_EXCLUDED, *kept)))
    sources = tuple(source_files(folder))
    return CheckpointPlan(
        Identity.of_folder(folder),
        *_lay_out(checkpoint.tensors, quantized),
        excluded,
        json_bytes({**config, "quantization_config": quantization_config(excluded)}),
        json_bytes(hf_quant_config(excluded)),
        tuple((name, path) for name, path in sources if _is_copied(name)),
        sources,
    )


def json_bytes(document: Mapping[str, Any]) -> bytes:
    """A JSON file as this room writes them; what UTF-8 has not stays the escape that it was."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


def source_files(folder: Path) -> list[tuple[str, Path]]:
    """Every file of a folder by its name within it, in order, but for hidden ones (.git, .cache, partial files)."""
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                found.append((path.relative_to(folder).as_posix(), path))
    return sorted(found)


def _is_copied(name: str) -> bool:
    return name not in {CONFIG, HF_QUANT_CONFIG, MANIFEST, INDEX} and not name.endswith(".safetensors")


def _left_out(pair: TensorPair, quantized: set[str]) -> bool:
    return pair.tensor.linear and pair.source.name not in quantized


def _quantized(pairs: Sequence[TensorPair], exclude: Sequence[str]) -> set[str]:
    """Names of the tensors that become MXFP8."""
    linears = {pair.source.name: pair for pair in pairs if pair.tensor.linear}
    modules = {name: name.removesuffix(".weight") for name in linears}
    for pattern in exclude:
        if pattern not in ALWAYS_EXCLUDED and not any(is_excluded(module, [pattern]) for module in modules.values()):
            raise UsageError(f"{pattern!r} matches no matrix of the draft", where="--exclude")
    quantized = {name for name, module in modules.items() if not is_excluded(module, exclude)}
    for group, left in split_shards(quantized, linears):
        raise UsageError(
            f"vLLM reads {group} as one matrix, and {left} would not be quantized",
            where="--exclude",
            hint="exclude all of them or none",
        )
    for name in sorted(quantized):
        source = linears[name].source
        if source.shape[-1] % BLOCK:
            raise ModelError(
                f"rows of {source.shape[-1]} inputs are no multiple of {BLOCK}",
                where=f"{source.source.name}: {name}",
                hint=f"--exclude {modules[name]} leaves it as it is",
            )
    return quantized


def split_shards(quantized: set[str], linears: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(matrices that vLLM reads as one, those of them that are not quantized) where only some of them are."""
    for name in linears:
        parent, _, last = name.removesuffix(".weight").rpartition(".")
        for group in _FUSED:
            shards = {f"{parent}.{shard}.weight" for shard in group}
            if last == group[0] and shards & quantized and not shards <= quantized:
                yield ", ".join(group), ", ".join(sorted(shards - quantized))


def _lay_out(
    sources: Mapping[str, SourceTensor], quantized: set[str]
) -> tuple[EncodedSafetensors, tuple[PlannedWeight, ...]]:
    tensors = []
    for name, source in sources.items():
        if source.dtype not in READABLE:
            raise ModelError(f"dtype {source.dtype} is not read", where=f"{source.source.name}: {name}")
        if name in quantized:
            tensors.append((name, FP8, source.shape))
            tensors.append((name + SCALE_SUFFIX, "U8", scale_shape(source.shape)))
        else:
            tensors.append((name, source.dtype, source.shape))
    header = encode_header(tensors)
    stored = {tensor.name: tensor for tensor in header.tensors}
    weights = [
        PlannedWeight(sources[tensor.name], tensor, stored[tensor.name + SCALE_SUFFIX] if tensor.dtype == FP8 else None)
        for tensor in header.tensors
        if tensor.name in sources
    ]
    return header, tuple(weights)
