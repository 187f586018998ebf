"""Pairing a checkpoint's tensors with the draft's table: every one is written, dropped with a reason, or an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dflash_gguf.errors import ModelError
from dflash_gguf.formats.safetensors import SourceTensor
from dflash_gguf.model.spec import DraftSpec
from dflash_gguf.model.tensors import DraftTensor, canonical_source_name, draft_tensors

READABLE = ("BF16", "F16", "F32")


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of the draft and where its weights are."""

    tensor: DraftTensor
    source: SourceTensor


@dataclass(frozen=True, slots=True)
class Pairing:
    """All tensors to write, in file order, and what is left out and why."""

    pairs: tuple[Pair, ...]
    dropped: tuple[tuple[str, str], ...]


def pair_tensors(
    spec: DraftSpec, sources: Mapping[str, SourceTensor], *, has_embed_tokens: bool, where: str
) -> Pairing:
    """Pair `sources` with the table of `spec`.

    Raises ModelError: tensors missing or unknown (first ten named), two spellings of one tensor, a shape or
    dtype that does not fit, an empty checkpoint.
    """
    if not sources:
        raise ModelError("holds no tensors", where=where)
    named = _canonical(sources, where)
    dropped = [(name, reason) for name in named if (reason := _drop_reason(name, has_embed_tokens=has_embed_tokens))]
    for name, _ in dropped:
        del named[name]
    table = {tensor.source_name: tensor for tensor in draft_tensors(spec)}
    missing = [name for name, tensor in table.items() if name not in named and not tensor.optional]
    unknown = [name for name in named if name not in table]
    if missing or unknown:
        raise ModelError(_mismatch(missing, unknown, len(table)), where=where, hint="does config.json belong to them?")
    pairs = [Pair(tensor, named[name]) for name, tensor in table.items() if name in named]
    for pair in pairs:
        _check(pair)
    return Pairing(tuple(pairs), tuple(dropped))


def _canonical(sources: Mapping[str, SourceTensor], where: str) -> dict[str, SourceTensor]:
    named: dict[str, SourceTensor] = {}
    for name, source in sources.items():
        canonical = canonical_source_name(name)
        if canonical in named:
            raise ModelError(f"{named[canonical].name} and {name} are one tensor in two spellings", where=where)
        named[canonical] = source
    return named


def _drop_reason(name: str, *, has_embed_tokens: bool) -> str:
    if name.endswith("rotary_emb.inv_freq"):
        return "computed from rope_theta"
    if name == "embed_tokens.weight" and not has_embed_tokens:
        return "has_embed_tokens is false: the target's embedding is used"
    return ""


def _mismatch(missing: list[str], unknown: list[str], expected: int) -> str:
    parts = []
    for names, what in ((missing, "missing"), (unknown, "unknown to arch dflash")):
        if names:
            parts.append(f"{len(names)} tensors {what}: {_first(names)}")
    return f"of {expected} known tensors: {'; '.join(parts)}"


def _first(names: Iterable[str], count: int = 10) -> str:
    listed = list(names)
    return ", ".join(listed[:count]) + (", …" if len(listed) > count else "")


def _check(pair: Pair) -> None:
    source = pair.source
    where = f"{source.source.name}: {source.name}"
    if source.shape != pair.tensor.shape:
        raise ModelError(f"shape {list(source.shape)}, the config wants {list(pair.tensor.shape)}", where=where)
    if source.dtype not in READABLE:
        raise ModelError(f"dtype {source.dtype} is not read ({', '.join(READABLE)} are)", where=where)
