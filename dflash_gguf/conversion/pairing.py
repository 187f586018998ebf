"""Pairing a checkpoint's tensors with the draft's table: every one is written, dropped with a reason, or an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dflash_gguf.errors import ModelError
from dflash_gguf.formats.safetensors import SourceTensor
from dflash_gguf.model.quantization import Mxfp8Config, check_scale, is_excluded
from dflash_gguf.model.spec import DraftSpec
from dflash_gguf.model.tensors import DraftTensor, canonical_source_name, draft_tensors
from dflash_gguf.wording import counted

READABLE = ("BF16", "F16", "F32")
FP8 = "F8_E4M3"
#: what a scale's name ends with; the second only to say what it is
_SCALES = (".weight_scale", ".weight_scale_inv")


@dataclass(frozen=True, slots=True)
class TensorPair:
    """A tensor of the draft and where its weights are; with a scale they are MXFP8."""

    tensor: DraftTensor
    source: SourceTensor
    scale: SourceTensor | None = None


@dataclass(frozen=True, slots=True)
class Pairing:
    """All tensors to write, in file order, and what is left out and why."""

    pairs: tuple[TensorPair, ...]
    dropped: tuple[tuple[str, str], ...]


def pair_tensors(
    spec: DraftSpec,
    sources: Mapping[str, SourceTensor],
    *,
    has_embed_tokens: bool,
    quantization: Mxfp8Config | None,
    where: str,
) -> Pairing:
    """Pair `sources` with the table of `spec`; `quantization` is what the checkpoint's config says of it.

    Raises ModelError: tensors missing or unknown (first ten named), two spellings of one tensor, a shape or
    dtype that does not fit, an empty checkpoint; a scale without its weight or the reverse, scales of another
    scheme than MXFP8, a matrix left out of a quantized checkpoint without its config saying so.
    """
    if not sources:
        raise ModelError("holds no tensors", where=where)
    named = _canonical(sources, where)
    scales = _take_scales(named)
    reasons = {name: _drop_reason(name, spec, has_embed_tokens=has_embed_tokens) for name in named}
    dropped = [(name, reason) for name, reason in reasons.items() if reason]
    for name, _ in dropped:
        del named[name]
    table = {tensor.source_name: tensor for tensor in draft_tensors(spec)}
    missing = [name for name, tensor in table.items() if name not in named and not tensor.optional]
    unknown = [name for name in named if name not in table]
    if missing or unknown:
        raise ModelError(_mismatch(missing, unknown, len(table)), where=where, hint="does config.json belong to them?")
    pairs = [TensorPair(tensor, named[name], scales.get(name)) for name, tensor in table.items() if name in named]
    for pair in pairs:
        _check(pair)
    if scales or quantization:
        _check_coverage(pairs, quantization)
    return Pairing(tuple(pairs), tuple(dropped))


def _take_scales(named: dict[str, SourceTensor]) -> dict[str, SourceTensor]:
    """Move the scales out of `named`, by the names of the weights that they belong to."""
    scales: dict[str, SourceTensor] = {}
    for suffix in _SCALES:
        for name in [name for name in named if name.endswith(suffix)]:
            weight, scale = name.removesuffix(suffix) + ".weight", named.pop(name)
            if weight not in named:
                raise ModelError("is a scale without its weight", where=f"{scale.source.name}: {scale.name}")
            if weight in scales:
                raise ModelError(f"has two scales: {scales[weight].name} and {scale.name}", where=scale.source.name)
            check_scale(named[weight], scale)
            scales[weight] = scale
    return scales


def _check_coverage(pairs: Iterable[TensorPair], quantization: Mxfp8Config | None) -> None:
    """Every matrix that MXFP8 applies to is quantized, or the config says that it is not."""
    exclude = quantization.exclude if quantization else ()
    for pair in pairs:
        if pair.tensor.linear and pair.scale is None and not is_excluded(_module(pair.source.name), exclude):
            listed = f"an exclude list of {', '.join(exclude)}" if exclude else "no exclude list"
            raise ModelError(
                f"is {pair.source.dtype} in an MXFP8 checkpoint with {listed}: the layer is half quantized",
                where=f"{pair.source.source.name}: {pair.source.name}",
                hint="were all tensors exported?",
            )


def _module(name: str) -> str:
    return name.removesuffix(".weight")


def _canonical(sources: Mapping[str, SourceTensor], where: str) -> dict[str, SourceTensor]:
    named: dict[str, SourceTensor] = {}
    for name, source in sources.items():
        canonical = canonical_source_name(name)
        if canonical in named:
            raise ModelError(f"{named[canonical].name} and {name} are one tensor in two spellings", where=where)
        named[canonical] = source
    return named


def _drop_reason(name: str, spec: DraftSpec, *, has_embed_tokens: bool) -> str:
    if name.endswith("rotary_emb.inv_freq"):
        return "computed from rope_theta"
    if name == "embed_tokens.weight" and not has_embed_tokens:
        return "has_embed_tokens is false: the target's embedding is used"
    if name == "t2d":
        return "not used at run time"
    if name == "d2t" and spec.draft_vocab_size is None:
        return "every token has its own row"
    return ""


def _mismatch(missing: list[str], unknown: list[str], expected: int) -> str:
    parts = []
    for names, what in ((missing, "missing"), (unknown, "unknown to arch dflash")):
        if names:
            parts.append(f"{counted(len(names), 'tensor')} {what}: {_first(names)}")
    return f"of {expected} known tensors: {'; '.join(parts)}"


def _first(names: Iterable[str], count: int = 10) -> str:
    listed = list(names)
    return ", ".join(listed[:count]) + (", …" if len(listed) > count else "")


def _check(pair: TensorPair) -> None:
    source = pair.source
    where = f"{source.source.name}: {source.name}"
    if source.shape != pair.tensor.shape:
        raise ModelError(f"shape {list(source.shape)}, the config wants {list(pair.tensor.shape)}", where=where)
    if source.dtype == FP8 and pair.scale is None:
        raise ModelError(f"is {FP8} but has no weight_scale beside it", where=where, hint="were all tensors exported?")
    if pair.tensor.gguf_name == "d2t":
        return  # read and checked already
    if pair.scale is None and source.dtype not in READABLE:
        raise ModelError(f"dtype {source.dtype} is not read ({', '.join(READABLE)} are)", where=where)
