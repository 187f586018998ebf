"""A GGUF header as plain values: what `inspect` shows a person, and what its JSON holds for a script."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from dflash_gguf.errors import ModelError
from dflash_gguf.formats.gguf.scan import Header
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, Metadata, MetaValue
from dflash_gguf.model.dialects import ARCHITECTURE_KEY, is_foreign
from dflash_gguf.model.metadata import ARCHITECTURE, MASK_KEY, spec_from_metadata
from dflash_gguf.model.sidecars import Sidecar, recognise
from dflash_gguf.model.spec import DraftSpec

LONG_ARRAY = 64  # items; longer arrays are told by length and hash


def text(metadata: Metadata, key: str, default: str = "") -> str:
    """A string value, or `default` where the key is absent or holds something else."""
    value = metadata.get(key)
    return value.value if value and isinstance(value.value, str) else default


def plain(value: MetaValue) -> Any:
    """A value for JSON; arrays over LONG_ARRAY items as type, length and the sha256 of their encoded bytes."""
    array = value.value
    if not isinstance(array, Array):
        return array
    if array.count <= LONG_ARRAY:
        return array.items()
    digest = hashlib.sha256(array.raw).hexdigest()
    return {"type": array.item_type.name.lower(), "length": array.count, "sha256": digest}


def draft_spec(metadata: Metadata) -> DraftSpec | None:
    """The draft a header describes; None for another architecture, or where a key it needs is missing."""
    try:
        return spec_from_metadata(metadata)
    except ModelError:
        return None


def require_spec(metadata: Metadata, file: str) -> DraftSpec:
    """The draft that a file's header describes. Raises ModelError, with the file's name and the next step."""
    try:
        return spec_from_metadata(metadata)
    except ModelError as error:
        hint = error.hint
        if is_foreign(text(metadata, ARCHITECTURE_KEY)):
            hint = "a fork's dialect: dflash-gguf patch IN OUT --fix all"
        elif not hint:
            hint = f"dflash-gguf {'check' if text(metadata, ARCHITECTURE_KEY) == ARCHITECTURE else 'inspect'} FILE"
        raise ModelError(error.message, where=f"{file}: {error.where}", hint=hint) from None


def start_spec(metadata: Metadata) -> DraftSpec | None:
    """As `draft_spec`, where the vocabulary and what follows it were not read: vocab_size and mask_token_id are 0."""
    unread = {
        MASK_KEY: MetaValue(ValueType.UINT32, 0),
        "tokenizer.ggml.tokens": MetaValue(ValueType.ARRAY, Array(ValueType.STRING, 0, b"")),
    }
    return draft_spec({**unread, **metadata})


def describe_draft(spec: DraftSpec, parameters: int) -> dict[str, Any]:
    """The draft as `inspect --json` holds it."""
    v2 = spec.v2
    return {
        "version": spec.version,
        "block_size": spec.block_size,
        "max_draft": spec.max_draft,
        "conv_kernel_size": v2.conv_kernel_size if v2 else None,
        "conv_group_size": v2.conv_group_size if v2 else None,
        "selector_rank": v2.selector_rank if v2 else None,
        "selector_top_k": v2.selector_top_k if v2 else None,
        "target_layers": list(spec.target_layers),
        "sliding_window": spec.sliding_window,
        "mask_token_id": spec.mask_token_id,
        "vocab_size": spec.vocab_size,
        "parameters": parameters,
    }


def describe_file(header: Header) -> dict[str, Any]:
    """The whole header as `inspect --json` holds it."""
    metadata, tensors = header.metadata, header.tensors.values()
    spec = draft_spec(metadata)
    return {
        "architecture": text(metadata, "general.architecture") or None,
        "version": header.version,
        "file_size": header.size,
        "data_offset": header.data_offset,
        "metadata": {key: plain(value) for key, value in metadata.items()},
        "tensors": [
            {"name": t.name, "type": t.type.name, "shape": list(t.shape), "offset": t.offset, "bytes": t.size}
            for t in tensors
        ],
        "draft": describe_draft(spec, sum(t.n_weights for t in tensors)) if spec else None,
        "sidecar": _describe_sidecar(recognise(metadata, header.tensors)),
        "defects": [{"rule": d.rule, "message": d.message, "where": d.where} for d in header.defects],
    }


def _describe_sidecar(sidecar: Sidecar | None) -> dict[str, str] | None:
    """What drafts, of any kind that llama.cpp runs, and the options that run it."""
    return {"name": sidecar.name, "spec_type": sidecar.spec_type, "flag": sidecar.flag} if sidecar else None


def type_totals(header: Header) -> list[tuple[str, int, int, int]]:
    """(type, tensors, weights, bytes) of every tensor type, most bytes first."""
    counts: Counter[str] = Counter()
    weights: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in header.tensors.values():
        name = tensor.type.name
        counts[name] += 1
        weights[name] += tensor.n_weights
        sizes[name] += tensor.size
    return [(name, counts[name], weights[name], size) for name, size in sizes.most_common()]


def missing_for_draft(metadata: Metadata) -> str:
    """Why a file of arch `dflash` does not describe a draft, in one line; "" where it does, or is no draft."""
    if text(metadata, "general.architecture") != ARCHITECTURE:
        return ""
    try:
        spec_from_metadata(metadata)
    except ModelError as error:
        return str(error)
    return ""


def value_type(value: MetaValue) -> str:
    """A value's type as it is shown: `uint32`, `int32[5]`."""
    if isinstance(value.value, Array):
        return f"{value.value.item_type.name.lower()}[{value.value.count}]"
    return ValueType(value.type).name.lower()
