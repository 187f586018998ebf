"""A GGUF header as plain values: what `inspect` shows a person, and what its JSON holds for a script."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dflash_gguf.formats.gguf.scan import Header
from dflash_gguf.model.draft_header import draft_spec, plain, text
from dflash_gguf.model.sidecars import Sidecar, recognise
from dflash_gguf.model.spec import DraftSpec


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
