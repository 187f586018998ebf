"""The geometry that a file's tensors are judged by, also where its metadata are incomplete.

A missing size is told once, by the rule about its key; so that the tensors can be judged all the same it is then
taken from the tensors themselves, which can only be inconsistent with one another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dflash_gguf.model.config import MAX_BLOCKS, V2_SIZES
from dflash_gguf.model.metadata import PREFIX
from dflash_gguf.model.spec import DraftSpec, DynamicConv

if TYPE_CHECKING:
    from dflash_gguf.checks.subject import Subject
    from dflash_gguf.formats.gguf.layout import TensorInfo

SELECTOR = tuple(f"selector_{part}.weight" for part in ("hidden", "predecessor", "successor"))
_CONV = re.compile(r"blk\.\d+\.(attn|ffn)_conv_(base|proj\.weight)")
_BLOCK = re.compile(r"blk\.(\d{1,6})\.")


def selector_tensors(names: Iterable[str]) -> set[str]:
    """The selector's tensors among `names`."""
    return set(SELECTOR).intersection(names)


def conv_tensors(names: Iterable[str]) -> set[str]:
    """The convolutions' tensors among `names`."""
    return {name for name in names if _CONV.fullmatch(name)}


def draft_version(tensors: Mapping[str, TensorInfo], draft_keys: Mapping[str, Any]) -> int:
    """2 where anything of DFlash 2 is present."""
    return 2 if any(key in draft_keys for key in V2_SIZES) or selector_tensors(tensors) or conv_tensors(tensors) else 1


def uniform_dim(tensors: Mapping[str, TensorInfo], pattern: str, dim: int) -> int | None:
    """Dim `dim` (ne order) of the tensors whose whole name matches, where all of them agree."""
    compiled = re.compile(pattern)
    sizes = {t.shape[dim] for name, t in tensors.items() if len(t.shape) > dim and compiled.fullmatch(name)}
    return sizes.pop() if len(sizes) == 1 else None


def geometry(subject: Subject) -> DraftSpec | None:
    """A spec whose geometry can be relied on; constants that no shape depends on are placeholders.

    None where a size is neither in the metadata nor in the tensors, or is beyond what llama.cpp loads.
    """
    find = _Finder(subject)
    hidden = find("embedding_length", lambda: find.dim("output_norm.weight", 0))
    head = find("attention.key_length", lambda: find.dim(r"blk\.\d+\.attn_q_norm\.weight", 0))
    if not hidden or not head:
        return None
    q, kv = find.dim(r"blk\.\d+\.attn_q\.weight", 1), find.dim(r"blk\.\d+\.attn_k\.weight", 1)
    blocks = find("block_count", find.block_count)
    ffn = find("feed_forward_length", lambda: find.dim(r"blk\.\d+\.ffn_gate\.weight", 1))
    heads = find("attention.head_count", lambda: q // head if q else None)
    kv_heads = find("attention.head_count_kv", lambda: kv // head if kv else None)
    taps = _taps(subject, hidden)
    vocab = subject.codebook_rows or subject.token_count or find.dim("output.weight", 1)
    v2 = _dynamic_conv(find, hidden) if subject.version == 2 else None
    if not (blocks and ffn and heads and kv_heads and taps and vocab) or blocks > MAX_BLOCKS:
        return None
    if subject.version == 2 and v2 is None:
        return None
    return DraftSpec(
        block_count=blocks,
        context_length=1,
        embedding_length=hidden,
        feed_forward_length=ffn,
        head_count=heads,
        head_count_kv=kv_heads,
        key_length=head,
        layer_norm_rms_epsilon=1e-6,
        rope_freq_base=1e4,
        block_size=subject.natural(PREFIX + "block_size") or 2,
        target_layers=tuple(range(1, taps + 1)),
        mask_token_id=0,
        vocab_size=vocab,
        v2=v2,
    )


def _taps(subject: Subject, hidden: int) -> int | None:
    layers = subject.integers(PREFIX + "target_layers")
    if layers:
        return len(layers)
    fc = subject.tensors.get("fc.weight")
    return fc.shape[0] // hidden if fc and fc.shape else None


def _dynamic_conv(find: _Finder, hidden: int) -> DynamicConv | None:
    kernel = find("conv_kernel_size", lambda: find.dim(r"blk\.\d+\.attn_conv_base", 1))
    rows = find.dim(r"blk\.\d+\.attn_conv_proj\.weight", 1)
    group = find("conv_group_size", lambda: hidden * 2 * kernel // rows if kernel and rows else None)
    rank = find("selector_rank", lambda: find.dim(r"selector_hidden\.weight", 1))
    top_k = find("selector_top_k", lambda: 1)
    return DynamicConv(kernel, group, rank, top_k) if kernel and group and rank and top_k else None


class _Finder:
    """A size by its key, else as the tensors have it."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def __call__(self, key: str, otherwise: Callable[[], int | None]) -> int | None:
        return self.subject.natural(PREFIX + key) or otherwise() or None

    def dim(self, pattern: str, dim: int) -> int | None:
        return uniform_dim(self.subject.tensors, pattern, dim)

    def block_count(self) -> int | None:
        numbers = [int(match[1]) for name in self.subject.tensors if (match := _BLOCK.match(name))]
        return max(numbers) + 1 if numbers else None
