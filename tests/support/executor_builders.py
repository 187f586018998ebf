"""Tiny drafts and scripted models for the executor's tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dflash_gguf.executor.draft import DraftModel
from dflash_gguf.executor.ops import F32, I64
from dflash_gguf.executor.selector import Lattice
from dflash_gguf.executor.trace import Probe
from dflash_gguf.executor.weights import Budget, Weights
from dflash_gguf.model.spec import DraftSpec, DynamicConv
from dflash_gguf.model.tensors import draft_tensors

MEMORY = 1 << 30

TINY = DraftSpec(
    block_count=2,
    context_length=512,
    embedding_length=32,
    feed_forward_length=48,
    head_count=4,
    head_count_kv=2,
    key_length=8,
    layer_norm_rms_epsilon=1e-6,
    rope_freq_base=10000.0,
    block_size=5,
    target_layers=(1, 2),
    mask_token_id=19,
    vocab_size=20,
    v2=DynamicConv(conv_kernel_size=2, conv_group_size=8, selector_rank=6, selector_top_k=4),
    causal=False,
    sliding_window=6,
    sliding_window_pattern=(True, False),
)


def tiny(**changes: Any) -> DraftSpec:
    """TINY with fields changed."""
    return replace(TINY, **changes)


class ArraySource:
    """Arrays in memory as a weights.TensorSource."""

    name = "arrays"

    def __init__(self, arrays: Mapping[str, F32]) -> None:
        self.arrays = dict(arrays)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self.arrays.items()}

    def read_rows(self, tensor: str, first: int, last: int) -> F32:
        array = self.arrays[tensor]
        return array.reshape(-1, array.shape[-1])[first:last]


def random_weights(spec: DraftSpec, seed: int = 0) -> dict[str, F32]:
    """Every required tensor of `spec`; norms and conv bases away from 1."""
    rng = np.random.default_rng(seed)
    weights = {}
    for tensor in draft_tensors(spec):
        if not tensor.optional:
            values = rng.standard_normal(tensor.shape, dtype=np.float32) * np.float32(0.3)
            weights[tensor.gguf_name] = values + np.float32(1) if tensor.f32 else values
    return weights


@dataclass
class Vocabulary:
    """A random embedding that is its own head."""

    table: F32

    def embed(self, ids: I64) -> F32:
        return self.table[ids]

    def head(self, hidden: F32) -> F32:
        return hidden @ self.table.T


def vocabulary(spec: DraftSpec, seed: int = 9) -> Vocabulary:
    rng = np.random.default_rng(seed)
    return Vocabulary(rng.standard_normal((spec.vocab_size, spec.embedding_length), dtype=np.float32))


def features(spec: DraftSpec, count: int, seed: int = 5) -> F32:
    width = len(spec.target_layers) * spec.embedding_length
    return np.random.default_rng(seed).standard_normal((count, width), dtype=np.float32)


def model(
    spec: DraftSpec = TINY, weights: Mapping[str, F32] | None = None, probe: Probe | None = None, memory: int = MEMORY
) -> DraftModel:
    """A draft model of random weights, or of `weights`."""
    held = Weights(ArraySource(random_weights(spec) if weights is None else weights), Budget(memory))
    return DraftModel(spec, held, vocabulary(spec), probe or Probe())


def lattice(unary: Sequence[Sequence[float]], candidates: Sequence[Sequence[int]] | None = None) -> Lattice:
    """A lattice without pair scores: every predecessor gives the same row."""
    logits = np.array(unary, np.float32)
    slots, count = logits.shape
    ids = np.tile(np.arange(count), (slots, 1)) if candidates is None else np.array(candidates, np.int64)
    return Lattice(ids, logits, np.broadcast_to(logits[:, None, :], (slots, count, count)))


@dataclass
class ScriptedDraft:
    """Proposes what `script` says after the tokens seen so far; its features are the tokens themselves."""

    script: Callable[[list[int]], Lattice]
    max_draft: int = 4
    context: list[int] = field(default_factory=list)

    def extend(self, features: F32) -> None:
        self.context += [int(token) for token in features[:, 0]]

    def lattice(self, anchor: int) -> Lattice:
        return self.script([*self.context, anchor])


@dataclass
class TableTarget:
    """A target whose next-token logits are a function of all tokens before; the features are the tokens."""

    logits: Callable[[list[int]], F32]
    tokens: list[int] = field(default_factory=list)

    def extend(self, tokens: Sequence[int], predict: int) -> tuple[F32, F32]:
        rows = []
        for token in tokens:
            self.tokens.append(token)
            rows.append(self.logits(self.tokens))
        return np.array(rows[len(rows) - predict :], np.float32), np.array(tokens, np.float32)[:, None]

    def crop(self, length: int) -> None:
        del self.tokens[length:]
