"""A draft to be compared: a GGUF of any type that is read, or a checkpoint's folder, BF16 or MXFP8."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dflash_gguf.conversion.pairing import TensorPair, pair_tensors
from dflash_gguf.conversion.tiles import TileReader
from dflash_gguf.conversion.vocabulary_tensors import vocabulary_sources
from dflash_gguf.executor.loading import not_computed, open_draft, require_usable
from dflash_gguf.executor.weights import Budget, Weights
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.model.checkpoint import Checkpoint, read_config
from dflash_gguf.model.config import spec_from_config
from dflash_gguf.model.quantization import read_quantization
from dflash_gguf.model.spec import RopeScaling
from dflash_gguf.model.target import Target, open_target
from dflash_gguf.storage.files import LocalFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from dflash_gguf.executor.ops import F32
    from dflash_gguf.model.spec import DraftSpec


@dataclass(frozen=True, slots=True)
class ComparedDraft:
    """A draft's geometry, its weights, and the type in which each tensor is held (`MXFP8` for such weights)."""

    name: str
    spec: DraftSpec
    weights: Weights
    types: Mapping[str, str]


def open_compared(path: Path, target: Path | None, budget: Budget, files: ExitStack) -> ComparedDraft:
    """A draft and its weights; `files` closes it.

    Raises UsageError, FormatError or ModelError for what is no draft that the executor computes.
    """
    if path.is_dir():
        return _open_folder(path, target, budget, files)
    spec, weights = open_draft(path, budget, files)
    with LocalFile(path) as file:
        types = {name: info.type.name for name, info in scan_header(file).tensors.items()}
    return ComparedDraft(str(path), spec, weights, types)


def _open_folder(path: Path, target: Path | None, budget: Budget, files: ExitStack) -> ComparedDraft:
    """A checkpoint as converting it would read it."""
    checkpoint, config = files.enter_context(Checkpoint(path)), read_config(path)
    shared = Target(path, {}) if target is None else open_target(target)
    reading = spec_from_config(config, shared.config, where=str(path / "config.json"))
    spec = as_float32(reading.spec)
    require_usable(spec, str(path))
    if spec.draft_vocab_size is not None and (told := not_computed("d2t", str(path))):
        raise told
    own = vocabulary_sources(checkpoint, spec, config, shared, "keep")
    pairing = pair_tensors(
        spec,
        own.tensors,
        has_embed_tokens=own.has_embed_tokens,
        quantization=read_quantization(path, config),
        where=str(path),
    )
    source = PairedTensors(str(path), pairing.pairs, spec.key_length, neox=reading.rope_is_neox)
    types = {p.tensor.gguf_name: "MXFP8" if p.scale else p.source.dtype for p in pairing.pairs}
    return ComparedDraft(str(path), spec, Weights(source, budget), types)


def as_float32(spec: DraftSpec) -> DraftSpec:
    """A config's spec with its numbers as a GGUF holds them, so that both compare equal."""
    scaling = spec.rope_scaling
    if scaling is not None:
        scaling = replace(scaling, **_rounded(scaling))
    return replace(spec, **_rounded(spec), rope_scaling=scaling)


def _rounded(value: DraftSpec | RopeScaling) -> dict[str, Any]:
    held = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: float(np.float32(number)) for name, number in held.items() if isinstance(number, float)}


class PairedTensors:
    """A checkpoint's tensors under their GGUF names; see executor.weights.TensorSource."""

    def __init__(self, name: str, pairs: Sequence[TensorPair], head: int, *, neox: bool) -> None:
        self.name = name
        self.shapes = {pair.tensor.gguf_name: pair.source.shape for pair in pairs}
        self._pairs = {pair.tensor.gguf_name: pair for pair in pairs}
        self._head, self._neox = head, neox

    def read_rows(self, tensor: str, first: int, last: int) -> F32:
        """Rows first … last − 1 as float32. Raises ModelError for a weight that is none."""
        pair = self._pairs[tensor]
        permuted = pair.tensor.rotary and not self._neox
        start, end = first, last
        if permuted and len(pair.source.shape) > 1:  # rows change places within a head
            start, end = first - first % self._head, last + -last % self._head
        reader = TileReader(self._head)  # one a call: threads read at the same time
        reader.read_source(pair.source, start, end - start, scale=pair.scale, permuted=permuted)
        return reader.floats().reshape(end - start, -1)[first - start : last - start]
