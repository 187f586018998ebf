"""The plan: every tensor's source, type, reason and offset and the header's bytes, before a byte is written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_gguf.conversion.pairing import TensorPair, pair_tensors
from dflash_gguf.conversion.vocabulary_tensors import vocabulary_sources
from dflash_gguf.errors import ModelError, UsageError
from dflash_gguf.formats.gguf.emit import EncodedHeader, OutTensor, encode_header
from dflash_gguf.formats.gguf.scan import MAX_HEADER
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import MetaValue
from dflash_gguf.formats.safetensors import SourceTensor
from dflash_gguf.model.checkpoint import Checkpoint, Identity, read_config
from dflash_gguf.model.config import ConfigReading, spec_from_config, unknown_told
from dflash_gguf.model.metadata import ARCHITECTURE, encode_spec, general_pairs
from dflash_gguf.model.provenance import draft_name, provenance_pairs, read_card, sidecar_file_name, size_label
from dflash_gguf.model.quantization import read_quantization
from dflash_gguf.model.recipe import RECIPES, Override, choose_types
from dflash_gguf.model.sidecars import DFLASH
from dflash_gguf.model.target import Target
from dflash_gguf.storage.atomic import check_outputs, check_room
from dflash_gguf.wording import counted


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """What a conversion was asked for beyond draft and target; see the command line's help."""

    types: tuple[str, ...] = ("bf16",)
    out: str | None = None
    overrides: tuple[Override, ...] = ()
    fallback: bool = True
    name: str | None = None
    tokenizer_pre: str | None = None
    target_layers: tuple[int, ...] | None = None
    embed: str = "keep"
    force: bool = False
    strict: bool = False  # unknown keys of the config are an error


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor of an output: its source, what is written, why it has its type.

    `permuted` rows are laid out per head and change from interleaved to NeoX order on the way. With a `scale` the
    source is MXFP8.
    """

    source: SourceTensor
    out: OutTensor
    reason: str
    permuted: bool = False
    scale: SourceTensor | None = None

    @property
    def dtype(self) -> str:
        """Type of the weights as they are read: MXFP8 is decoded to BF16."""
        return "BF16" if self.scale else self.source.dtype

    @property
    def source_bytes(self) -> int:
        """Bytes that will be read."""
        return self.source.size + (self.scale.size if self.scale else 0)


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """One file to be written."""

    path: Path
    recipe: str
    header: EncodedHeader
    tensors: tuple[PlannedTensor, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole conversion; all outputs have the same tensors in the same order."""

    outputs: tuple[OutputPlan, ...]
    head: int  # rows of one attention head
    dropped: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def source_bytes(self) -> int:
        """Bytes of tensor data that will be read."""
        return sum(tensor.source_bytes for tensor in self.outputs[0].tensors)


def make_plan(checkpoint: Checkpoint, target: Target, options: ConvertOptions) -> Plan:
    """Decide everything about a conversion; reads headers, configs and the tokenizer only.

    Raises UsageError, FormatError or ModelError for whatever would make the outputs wrong, OutputError when there
    is no room for them.
    """
    draft = checkpoint.folder
    config = read_config(draft)
    reading = spec_from_config(
        config, target.config, where=str(draft / "config.json"), target_layers=options.target_layers
    )
    if options.strict and reading.unknown:
        raise ModelError(unknown_told(reading.unknown), where=str(draft / "config.json"), hint="leave out --strict")
    spec, card = reading.spec, read_card(draft)
    sources = vocabulary_sources(checkpoint, spec, config, target, options.embed)
    pairing = pair_tensors(
        spec,
        sources.tensors,
        has_embed_tokens=sources.has_embed_tokens,
        quantization=read_quantization(draft, config),
        where=str(draft),
    )
    parameters = sum(pair.source.n_weights for pair in pairing.pairs)
    target_id, draft_id = target.identity(card), Identity.of_folder(draft)
    paths = output_paths(options, target_id.name)
    check_outputs(paths.values(), force=options.force)
    tokenizer = target.tokenizer(
        vocab_size=spec.vocab_size, mask_token_id=spec.mask_token_id, pre=options.tokenizer_pre
    )
    name = options.name or draft_name(draft_id, spec, target_id)
    common = [
        ("general.architecture", MetaValue(ValueType.STRING, ARCHITECTURE)),
        ("general.type", MetaValue(ValueType.STRING, "model")),
        ("general.name", MetaValue(ValueType.STRING, name)),
        ("general.size_label", MetaValue(ValueType.STRING, size_label(parameters))),
        *provenance_pairs(draft_id, target_id, card, spec),
    ]
    common = [(key, _in_utf8(value)) for key, value in common]
    outputs = []
    for recipe, path in paths.items():
        tensors = _planned(pairing.pairs, recipe, reading, options)
        metadata = [*common, *general_pairs(recipe.upper()), *encode_spec(spec), *tokenizer.key_values]
        header = encode_header(metadata, [tensor.out for tensor in tensors])
        if len(header.data) > MAX_HEADER:
            message = f"a header of {counted(len(header.data), 'byte')}, at most {MAX_HEADER:,} are read"
            raise ModelError(message, where=str(target), hint="its vocabulary or its chat template is too large")
        outputs.append(OutputPlan(path, recipe, header, tensors))
    check_room({output.path: output.header.file_size for output in outputs})
    warnings = (*reading.warnings, *tokenizer.warnings)
    return Plan(tuple(outputs), spec.key_length, (*sources.dropped, *pairing.dropped), warnings)


def _in_utf8(value: MetaValue) -> MetaValue:
    """`value`, with a question mark for what UTF-8 has not: names of files may be any bytes."""
    if not isinstance(value.value, str):
        return value
    return MetaValue(value.type, value.value.encode("utf-8", "replace").decode())


def output_paths(options: ConvertOptions, target_name: str) -> dict[str, Path]:
    """Recipe → path. Raises UsageError for an unknown type or a name that several types would share."""
    recipes = list(dict.fromkeys(kind.lower() for kind in options.types))
    if unknown := [kind for kind in recipes if kind not in RECIPES]:
        raise UsageError(f"unknown type {unknown[0]!r}, expected one of {', '.join(RECIPES)}", where="--type")
    default = sidecar_file_name(DFLASH.prefix, target_name, "{type}")
    pattern = options.out or default
    if options.out and (options.out.endswith(os.sep) or os.path.isdir(options.out)):
        pattern = str(Path(options.out) / default)
    if "{type}" not in pattern and len(recipes) > 1:
        raise UsageError(
            f"{pattern!r} cannot hold {len(recipes)} types",
            where="--out",
            hint="name a folder, or use {type} in the name",
        )
    return {recipe: Path(pattern.replace("{type}", recipe.upper())) for recipe in recipes}


def _planned(
    pairs: Sequence[TensorPair], recipe: str, reading: ConfigReading, options: ConvertOptions
) -> tuple[PlannedTensor, ...]:
    named = [(pair.tensor.gguf_name, pair.tensor.ne) for pair in pairs]
    choices = choose_types(
        named,
        recipe,
        block_count=reading.spec.block_count,
        overrides=options.overrides,
        fallback=options.fallback,
    )
    return tuple(
        PlannedTensor(
            pair.source,
            OutTensor(name, choice.type, ne),
            choice.reason,
            permuted=pair.tensor.rotary and not reading.rope_is_neox,
            scale=pair.scale,
        )
        for pair, (name, ne), choice in zip(pairs, named, choices, strict=True)
    )
