"""Whether an MXFP8 checkpoint follows from its source: everything is made again, and compared byte by byte."""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_gguf.errors import ModelError, UsageError
from dflash_gguf.formats.safetensors import SourceTensor, StoredTensor
from dflash_gguf.model.checkpoint import Checkpoint, Identity
from dflash_gguf.model.quantization import HF_QUANT_CONFIG
from dflash_gguf.mxfp8.checkpoint_plan import CONFIG, MANIFEST, WEIGHTS, CheckpointPlan, json_bytes, make_plan
from dflash_gguf.mxfp8.digest import sha256_of
from dflash_gguf.mxfp8.encode import Statistics, stream_weights
from dflash_gguf.mxfp8.examine import Contents, PairedCheckpoint
from dflash_gguf.mxfp8.manifest import manifest
from dflash_gguf.mxfp8.report import Record

OURS = "dflash-gguf"


@dataclass(frozen=True, slots=True)
class Remade:
    """What the source gives: its files' sha256, and statistics of the weights."""

    sources: Mapping[str, str]
    weights: Mapping[str, Statistics]
    aggregate: Statistics


def reproduce_tensors(
    plan: CheckpointPlan, subject: PairedCheckpoint, record: Record, on_bytes: Callable[[int], None]
) -> Remade | None:
    """Encode the source again and compare every tensor's bytes; None where the tensors are not the same ones."""
    expected = {tensor.name: tensor for tensor in plan.header.tensors}
    for name in sorted(expected.keys() ^ subject.tensors.keys()):
        record.wrong(name, "is missing" if name in expected else "does not come from the source")
    for name in sorted(expected.keys() & subject.tensors.keys()):
        want, found = expected[name], subject.tensors[name]
        if (want.shape, want.size) != (found.shape, found.size):
            record.wrong(
                name, f"is {found.dtype} {list(found.shape)}, the source gives {want.dtype} {list(want.shape)}"
            )
            return None
    if expected.keys() != subject.tensors.keys():
        return None
    comparison = _Comparison(plan.header.tensors, subject.tensors)
    sources: dict[str, str] = {}

    def hashing(name: str, path: Path) -> Callable[[], None]:
        return lambda: sources.update({name: sha256_of(path)})

    jobs = [hashing(name, path) for name, path in plan.sources]
    weights, aggregate = stream_weights(plan, comparison.compare, first=jobs, on_bytes=on_bytes)
    for name, position in sorted(comparison.differing.items()):
        record.wrong(name, f"byte {position:,} is not what the source gives")
    return Remade(sources, weights, aggregate)


class _Comparison:
    """A sink that compares with the tensors of a file, wherever they lie in it."""

    def __init__(self, expected: tuple[StoredTensor, ...], found: Mapping[str, SourceTensor]) -> None:
        self._expected, self._found = expected, found
        self._starts = [tensor.offset for tensor in expected]
        self._lock = threading.Lock()
        self.differing: dict[str, int] = {}

    def compare(self, offset: int, data: memoryview) -> None:
        tensor = self._expected[bisect_right(self._starts, offset) - 1]
        found, within = self._found[tensor.name], offset - tensor.offset
        there = found.source.read(found.offset + within, len(data))
        if there != data:
            first = next(i for i, (a, b) in enumerate(zip(there, data, strict=True)) if a != b)
            with self._lock:
                self.differing[tensor.name] = min(within + first, self.differing.get(tensor.name, within + first))


def reproduce_files(
    folder: Path, plan: CheckpointPlan, remade: Remade, document: Mapping[str, Any], contents: Contents, record: Record
) -> None:
    """Compare all files with what would be written now; the manifest with one that names the same repository."""
    told = document.get("source")
    told = told if isinstance(told, Mapping) else {}
    if WEIGHTS not in contents.sha256:
        record.wrong(str(folder), f"its tensors are not in {WEIGHTS}")
        return
    _compare_sources(plan.identity, told, remade.sources, record)
    outputs = {
        CONFIG: hashlib.sha256(plan.config).hexdigest(),
        HF_QUANT_CONFIG: hashlib.sha256(plan.hf_quant_config).hexdigest(),
        **{name: remade.sources[name] for name, _ in plan.copies},
    }
    for name in sorted({*outputs, *contents.sha256} - {WEIGHTS, MANIFEST}):
        if outputs.get(name) != contents.sha256.get(name):
            record.wrong(str(folder / name), "is not what the source gives")
    with (folder / WEIGHTS).open("rb") as file:
        if file.read(len(plan.header.data)) != plan.header.data:
            record.wrong(str(folder / WEIGHTS), "its header is not what the source gives")
    outputs[WEIGHTS] = contents.sha256[WEIGHTS]
    expected = manifest(plan, remade.sources, outputs, remade.weights, remade.aggregate)
    expected["source"] = {**expected["source"], **{key: told.get(key) for key in ("model", "revision")}}
    if json_bytes(expected) != (folder / MANIFEST).read_bytes():
        differing = [key for key in {**expected, **document} if expected.get(key) != document.get(key)]
        record.wrong(str(folder / MANIFEST), f"{', '.join(differing) or 'its text'} is not what the source gives")


def _compare_sources(identity: Identity, told: Mapping[str, Any], sources: Mapping[str, str], record: Record) -> None:
    revision = told.get("revision")
    if identity.revision and revision and revision != identity.revision:
        record.wrong(MANIFEST, f"was made from revision {revision}, the source is {identity.revision}")
    if told.get("files_sha256") != sources:
        record.wrong(MANIFEST, "names other source files than those of the source")


def plan_again(source: Checkpoint, subject: PairedCheckpoint) -> CheckpointPlan:
    """The plan by which `subject` would have been made from `source`. Raises ModelError where there is none."""
    quantized = {weight.name for weight, _ in subject.quantized}
    linears = [pair.source.name for pair in subject.pairs if pair.tensor.linear]
    try:
        return make_plan(source, [name.removesuffix(".weight") for name in linears if name not in quantized])
    except UsageError as error:
        raise ModelError(error.message, where=str(source.folder)) from error
