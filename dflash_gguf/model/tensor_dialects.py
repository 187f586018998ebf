"""Tensor names beside the table: old spellings of a draft's tensors, and what llama.cpp takes but no draft needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from dflash_gguf.model.tensors import canonical_source_name, draft_tensors

if TYPE_CHECKING:
    from dflash_gguf.model.spec import DraftSpec

#: old spelling → canonical; both without what surrounds them
_OLD_PARTS: tuple[tuple[str, str], ...] = (
    (r"(blk\.\d+\.)(attn|ffn)_conv_base\.weight", r"\1\2_conv_base"),
    (r"(blk\.\d+\.)(attn|ffn)_conv_proj", r"\1\2_conv_proj.weight"),
    (r"(blk\.\d+\.)(attn|ffn)_conv\.base(?:_kernel)?(?:\.weight)?", r"\1\2_conv_base"),
    (r"(blk\.\d+\.)(attn|ffn)_conv\.(?:kernel_)?proj(?:ection)?(?:\.weight)?", r"\1\2_conv_proj.weight"),
    (r"selector[._]pred(?:ecessor)?(?:_codebook)?(?:\.weight)?", "selector_predecessor.weight"),
    (r"selector[._]succ(?:essor)?(?:_codebook)?(?:\.weight)?", "selector_successor.weight"),
    (r"selector[._](?:prev|predecessor_codebook)(?:\.weight)?", "selector_predecessor.weight"),
    (r"selector[._](?:next|successor_codebook)(?:\.weight)?", "selector_successor.weight"),
    (r"selector[._]hidden(?:_proj(?:ection)?)?(?:\.weight)?", "selector_hidden.weight"),
    (r"(blk\.\d+\.)attn_sinks", r"\1attn_sinks.weight"),
    (r"fc", "fc.weight"),
    (r"hidden_norm(?:\.weight)?|enc\.output_norm|output_norm_enc(?:\.weight)?", "enc.output_norm.weight"),
)
#: forks put these in front of the tensors that a plain Qwen3 model has not
_PREFIX = re.compile(r"dflash[._]")
_POST, _FFN_NORM = "post_attention_norm.weight", "ffn_norm.weight"
_COMPILED = tuple((re.compile(old), new) for old, new in _OLD_PARTS)


def canonical_name(name: str, spec: DraftSpec) -> str | None:
    """The table's name of a tensor under any spelling that we know; None for one that we do not."""
    known, sources = _tables(spec)
    if name in known:
        return name
    bare = _PREFIX.sub("", name, count=1) if _PREFIX.match(name) else name
    new = respelled(name)
    if new in known:
        return new
    return bare if bare in known else sources.get(canonical_source_name(bare))


def respelled(name: str) -> str | None:
    """What an old spelling stands for, whatever draft it is in; None for a name that is none."""
    bare = _PREFIX.sub("", name, count=1) if _PREFIX.match(name) else name
    for pattern, replacement in _COMPILED:
        if match := pattern.fullmatch(bare):
            new = match.expand(replacement)
            return new if new != name else None
    return None if bare == name else bare


def canonical_names(names: Iterable[str], spec: DraftSpec) -> dict[str, str | None]:
    """`canonical_name` of all tensors of a file.

    Forks call the norm in front of the MLP as Gemma calls a norm that may stand beside it: only all of them tell.
    """
    found = {name: canonical_name(name, spec) for name in names}
    for name in [name for name, known in found.items() if known is None and name.endswith(_POST)]:
        norm = name.removesuffix(_POST) + _FFN_NORM
        if norm in _tables(spec)[0] and norm not in found.values():
            found[name] = norm
    return found


@lru_cache(maxsize=4)
def _tables(spec: DraftSpec) -> tuple[frozenset[str], dict[str, str]]:
    table = draft_tensors(spec)
    return frozenset(t.gguf_name for t in table), {t.source_name: t.gguf_name for t in table}


def known_optional(name: str, spec: DraftSpec) -> tuple[int, ...] | None:
    """The shape (ne) of a tensor that llama.cpp takes from a draft though the table has none; None for others.

    Source: llama.cpp's loader of the arch `dflash`. An empty shape: any size.
    """
    if name in ("d2t", "fc.scale"):
        return () if name == "d2t" else (1,)
    if name == "rope_freqs.weight":
        return (spec.key_length // 2,)
    match = re.fullmatch(r"blk\.(\d{1,4})\.(post_attention_norm|post_ffw_norm|layer_output_scale)\.weight", name)
    if match is None or int(match[1]) >= spec.block_count:
        return None
    return (1,) if match[2] == "layer_output_scale" else (spec.embedding_length,)


def without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape (ne) without its trailing ones, which make no difference to ggml."""
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape
