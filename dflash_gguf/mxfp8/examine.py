"""What can be told of an MXFP8 checkpoint without its source: structure, values, checksums, the manifest's claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash_gguf.conversion.pairing import TensorPair, pair_tensors
from dflash_gguf.conversion.tiles import TileReader
from dflash_gguf.conversion.workers import share
from dflash_gguf.errors import ModelError
from dflash_gguf.formats.safetensors import SourceTensor
from dflash_gguf.model.checkpoint import Checkpoint, read_config
from dflash_gguf.model.config import spec_from_config
from dflash_gguf.model.quantization import is_excluded, read_quantization, vllm_faults
from dflash_gguf.mxfp8.checkpoint_plan import CONFIG, MANIFEST, source_files, split_shards
from dflash_gguf.mxfp8.digest import sha256_of
from dflash_gguf.mxfp8.encode import TILE
from dflash_gguf.mxfp8.manifest import FORMAT
from dflash_gguf.mxfp8.report import Record

#: keys of a manifest that say something of the tensors
CLAIMS = frozenset({"format", "coverage", "weights"})


@dataclass(frozen=True, slots=True)
class PairedCheckpoint:
    """A checkpoint of sound structure."""

    pairs: tuple[TensorPair, ...]
    tensors: Mapping[str, SourceTensor]
    exclude: tuple[str, ...]

    @property
    def quantized(self) -> list[tuple[SourceTensor, SourceTensor]]:
        """Every quantized weight and its scales."""
        return [(pair.source, pair.scale) for pair in self.pairs if pair.scale]


@dataclass(frozen=True, slots=True)
class Contents:
    """What was read of all bytes: sha256 by file name, least and greatest scale by weight."""

    sha256: Mapping[str, str]
    scales: Mapping[str, tuple[int, int]]


def examine_structure(checkpoint: Checkpoint, record: Record) -> PairedCheckpoint:
    """Pair tensors as a conversion would, and be stricter where vLLM is. Raises ModelError or FormatError."""
    folder = checkpoint.folder
    config = read_config(folder)
    spec = spec_from_config(config, None, where=str(folder / CONFIG)).spec
    quantization = read_quantization(folder, config)
    for where, message in vllm_faults(folder, config):
        record.wrong(where, message)
    pairing = pair_tensors(
        spec, checkpoint.tensors, has_embed_tokens=True, quantization=quantization, where=str(folder)
    )
    exclude = quantization.exclude if quantization else ()
    subject = PairedCheckpoint(pairing.pairs, checkpoint.tensors, exclude)
    if not subject.quantized:
        raise ModelError("no weight is quantized", where=str(folder))
    linears = [pair.source.name for pair in subject.pairs if pair.tensor.linear]
    for group, left in split_shards({weight.name for weight, _ in subject.quantized}, linears):
        record.wrong(str(folder), f"vLLM reads {group} as one matrix, and {left} is not quantized")
    for weight, scale in subject.quantized:
        where = f"{weight.source.name}: {weight.name}"
        if is_excluded(weight.name.removesuffix(".weight"), exclude):
            record.wrong(where, "is quantized although the config excludes it")
        if scale.dtype != "U8":
            record.wrong(where, f"its scale is {scale.dtype}: vLLM reads U8")
    return subject


def read_contents(
    folder: Path, subject: PairedCheckpoint | None, record: Record, on_bytes: Callable[[int], None]
) -> Contents:
    """Read every file, and every weight where the structure allows it; values that are none are noted."""
    sha256: dict[str, str] = {}
    scales: dict[str, tuple[int, int]] = {}
    faulty: dict[str, ModelError] = {}

    def hashing(name: str, path: Path) -> Callable[[TileReader], None]:
        return lambda _: sha256.update({name: sha256_of(path, lambda piece: on_bytes(len(piece)))})

    def reading(pair: TensorPair, first: int, rows: int) -> Callable[[TileReader], None]:
        def read(reader: TileReader) -> None:
            try:
                on_bytes(reader.read_source(pair.source, first, rows, scale=pair.scale))
            except ModelError as error:
                faulty.setdefault(pair.source.name, error)

        return read

    def jobs() -> Iterator[Callable[[TileReader], None]]:
        for name, path in source_files(folder):
            yield hashing(name, path)
        for pair in subject.pairs if subject else ():
            row = pair.source.shape[-1]
            total, rows = pair.source.n_weights // row, max(1, TILE // row)
            for first in range(0, total, rows):
                yield reading(pair, first, min(rows, total - first))

    def new_worker() -> Callable[[Callable[[TileReader], None]], None]:
        reader = TileReader(1)
        return lambda job: job(reader)

    share(jobs(), new_worker)
    if subject:
        with record.step("values"):
            for name in sorted(faulty):
                record.wrong(faulty[name].where, faulty[name].message)
        for weight, scale in subject.quantized:
            codes = np.frombuffer(scale.source.read(scale.offset, scale.size), np.uint8)
            scales[weight.name] = int(codes.min()), int(codes.max())
    return Contents(sha256, scales)


def examine_checksums(folder: Path, document: Mapping[str, Any], contents: Contents, record: Record) -> None:
    """Every file is listed, every listed one is there, and all are what they were."""
    listed = document.get("output_files_sha256")
    if not isinstance(listed, Mapping):
        record.wrong(str(folder / MANIFEST), "has no output_files_sha256")
        return
    for name in sorted({*listed, *contents.sha256} - {MANIFEST}):
        found = contents.sha256.get(name)
        if name not in listed:
            record.wrong(str(folder / name), "is not in the manifest")
        elif found is None:
            record.wrong(str(folder / name), "is in the manifest, but not there")
        elif found != listed[name]:
            record.wrong(str(folder / name), f"has sha256 {found}, the manifest says {listed[name]}")


def examine_manifest(
    folder: Path, document: Mapping[str, Any], subject: PairedCheckpoint, contents: Contents, record: Record
) -> None:
    """Compare what the manifest says of the tensors with the tensors; what it does not say is not missed."""
    where = str(folder / MANIFEST)
    claims: dict[str, dict[str, Any]] = {"format": FORMAT, "coverage": _coverage(subject)}
    for key, truth in claims.items():
        told = document.get(key)
        if not isinstance(told, Mapping):
            continue
        for name, value in truth.items():
            if told.get(name, value) != value:
                record.wrong(where, f"{key}.{name} is {told[name]!r}, found {value!r}")
    exclude = document.get("exclude_modules", list(subject.exclude))
    if exclude != list(subject.exclude):
        record.wrong(where, f"exclude_modules is {exclude!r}, the config says {list(subject.exclude)!r}")
    if isinstance(weights := document.get("weights"), Mapping):
        _examine_weights(where, weights, subject, contents, record)


def _examine_weights(
    where: str, weights: Mapping[str, Any], subject: PairedCheckpoint, contents: Contents, record: Record
) -> None:
    for weight, _ in subject.quantized:
        told = weights.get(weight.name)
        if not isinstance(told, Mapping):
            record.wrong(where, f"weights does not hold {weight.name}")
            continue
        low, high = contents.scales[weight.name]
        for name, value in (("shape", list(weight.shape)), ("scale_min", low), ("scale_max", high)):
            if told.get(name, value) != value:
                record.wrong(where, f"weights.{weight.name}.{name} is {told[name]!r}, found {value!r}")
    for name in sorted(set(weights) - {weight.name for weight, _ in subject.quantized}):
        record.wrong(where, f"weights holds {name}, which is not quantized")


def _coverage(subject: PairedCheckpoint) -> dict[str, int]:
    quantized = [weight.n_weights for weight, _ in subject.quantized]
    scales = {scale.name for _, scale in subject.quantized}
    elements = [tensor.n_weights for name, tensor in subject.tensors.items() if name not in scales]
    return {
        "tensors": len(elements),
        "quantized": len(quantized),
        "kept": len(elements) - len(quantized),
        "elements_quantized": sum(quantized),
        "elements_kept": sum(elements) - sum(quantized),
    }
