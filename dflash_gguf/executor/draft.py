"""The draft model: a block of masked tokens, denoised in one pass against what the target saw of the context.

    context   g = rms_norm(fc · [taps])            one row per position that the target has processed
              per layer: K = rope(norm(Wk g)), V = Wv g            no convolution on the context
    block     [anchor, mask, mask, …] at the next positions, embedded with the target's embedding
              per layer: x → norm → conv → attention over context and block → conv → +
                           → norm → conv → SwiGLU MLP → conv → +
    proposal  logits = head · norm(x), and the selector's walk through their best candidates

A DFlash 1 draft is the same without the convolutions and the selector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from dflash_gguf.errors import ModelError
from dflash_gguf.executor.attention import KVCache, attend, visible
from dflash_gguf.executor.ops import dynamic_conv, rms_norm, silu, softcap
from dflash_gguf.executor.rope import draft_rope
from dflash_gguf.executor.selector import V1_CANDIDATES, Lattice, pair_scores, top_candidates

if TYPE_CHECKING:
    from dflash_gguf.executor.ops import F32, I64
    from dflash_gguf.executor.trace import Probe
    from dflash_gguf.executor.weights import Weights
    from dflash_gguf.model.spec import DraftSpec


class SharedVocabulary(Protocol):
    """The two tensors a draft borrows from its target."""

    def embed(self, ids: I64) -> F32:
        """Token embeddings (T,) → (T, H)."""

    def head(self, hidden: F32) -> F32:
        """Logits (S, H) → (S, vocab)."""


class DraftModel:
    """A draft and its cache of the context. `extend` with the target's features, then `propose` a block.

    Shapes: T steps of a block, S = T − 1 slots, H hidden, d head dimension.
    """

    def __init__(self, spec: DraftSpec, weights: Weights, target: SharedVocabulary | None, probe: Probe) -> None:
        self.spec = spec
        self.weights = weights
        self.probe = probe
        self.rope = draft_rope(spec)
        self.cache = [KVCache(spec.head_count_kv, spec.key_length) for _ in range(spec.block_count)]
        self._target = target

    @property
    def max_draft(self) -> int:
        """Slots of a block."""
        return self.spec.max_draft

    @property
    def n_context(self) -> int:
        """Positions in the cache; the next block's anchor stands here."""
        return self.cache[0].length

    def extend(self, features: F32) -> None:
        """Feed the target's features of the next positions (N, taps · H) into every layer's cache."""
        seen = self.probe
        seen.next_block()
        seen("context.features", features)
        positions = np.arange(self.n_context, self.n_context + len(features))
        fused = self._norm("enc.output_norm.weight", self.weights.linear("fc.weight", features))
        seen("context.fused", fused)
        for layer, cache in enumerate(self.cache):
            k, v = self._keys_values(layer, fused, positions)
            cache.append(seen(f"context.{layer}.k", k), seen(f"context.{layer}.v", v))

    def hidden(self, anchor: int) -> F32:
        """One pass over the block [anchor, mask × S] after the context → (S, H), the slots after the final norm."""
        spec, seen = self.spec, self.probe
        tokens = np.full(spec.block_size, spec.mask_token_id, np.int64)
        tokens[0] = anchor
        x = self._embed(seen("block.tokens", tokens))
        if spec.embedding_scale is not None:
            x = x * np.float32(spec.embedding_scale)
        seen("block.embedding", x)
        for layer in range(spec.block_count):
            x = seen(f"block.{layer}.attn_residual", x + self._attention(layer, x))
            x = seen(f"block.{layer}.out", x + self._mlp(layer, x))
        return seen("block.hidden", self._norm("output_norm.weight", x[1:]))

    def logits(self, hidden: F32) -> F32:
        """(S, H) → (S, vocab), scaled and capped as the target scales and caps its own."""
        spec = self.spec
        logits = self._head(hidden)
        if spec.logit_scale is not None:
            logits = logits * np.float32(spec.logit_scale)
        if spec.final_logit_softcapping:
            logits = softcap(logits, spec.final_logit_softcapping)
        return self.probe("block.logits", logits)

    def lattice(self, anchor: int) -> Lattice:
        """Draft one block: every slot's candidates and the score of each following each.

        Raises ModelError for a NaN or Inf on the way, and for tensors of the file that took no part.
        """
        hidden = self.hidden(anchor)
        logits = self.logits(hidden)
        count = min(self.spec.v2.selector_top_k if self.spec.v2 else V1_CANDIDATES, logits.shape[1])
        candidates, unary = top_candidates(logits, count)
        if self.spec.v2 is None:
            scores = np.broadcast_to(unary[:, None, :], (*unary.shape, count))
        else:
            scores = self._pair_scores(anchor, hidden, candidates, unary)
        self.weights.require_all_used()
        seen = self.probe
        return Lattice(
            seen("selector.candidates", candidates), seen("selector.unary", unary), seen("selector.scores", scores)
        )

    def _attention(self, layer: int, x: F32) -> F32:
        spec, seen, blk = self.spec, self.probe, f"blk.{layer}."
        x = seen(f"block.{layer}.attn_norm", self._norm(blk + "attn_norm.weight", x))
        dynamic = self._dynamic(layer, "attn", x)
        x = self._conv(layer, "attn", 0, x, dynamic)

        start, steps = self.n_context, len(x)
        positions = np.arange(start, start + steps)
        q = self.weights.linear(blk + "attn_q.weight", x).reshape(steps, spec.head_count, spec.key_length)
        q = self.rope.turn(self._norm(blk + "attn_q_norm.weight", q), positions)
        k, v = self._keys_values(layer, x, positions)
        seen(f"block.{layer}.q", q), seen(f"block.{layer}.k", k), seen(f"block.{layer}.v", v)

        window = spec.sliding_window if spec.is_sliding(layer) else None
        first = 0 if window is None else max(0, start - window + 1)
        cache = self.cache[layer]
        reach = np.arange(first, start + steps)
        mask = visible(positions, reach, causal=bool(spec.causal), window=window)
        sinks = f"{blk}attn_sinks.weight"
        mixed = attend(
            q,
            np.concatenate((cache.k[first:], k)),
            np.concatenate((cache.v[first:], v)),
            mask,
            self.weights.vector(sinks) if sinks in self.weights else None,
        )
        x = self.weights.linear(blk + "attn_output.weight", seen(f"block.{layer}.attn", mixed))
        if spec.value_scale is not None:
            x = x * np.float32(spec.value_scale)
        return self._conv(layer, "attn", 1, seen(f"block.{layer}.attn_out", x), dynamic)

    def _mlp(self, layer: int, x: F32) -> F32:
        seen, blk = self.probe, f"blk.{layer}."
        x = seen(f"block.{layer}.ffn_norm", self._norm(blk + "ffn_norm.weight", x))
        dynamic = self._dynamic(layer, "ffn", x)
        x = self._conv(layer, "ffn", 0, x, dynamic)
        gate = seen(f"block.{layer}.ffn_gate", self.weights.linear(blk + "ffn_gate.weight", x))
        up = seen(f"block.{layer}.ffn_up", self.weights.linear(blk + "ffn_up.weight", x))
        x = seen(f"block.{layer}.ffn_out", self.weights.linear(blk + "ffn_down.weight", silu(gate) * up))
        return self._conv(layer, "ffn", 1, x, dynamic)

    def _keys_values(self, layer: int, x: F32, positions: I64) -> tuple[F32, F32]:
        spec, blk = self.spec, f"blk.{layer}."
        shape = (len(x), spec.head_count_kv, spec.key_length)
        k = self._norm(blk + "attn_k_norm.weight", self.weights.linear(blk + "attn_k.weight", x).reshape(shape))
        v = self.weights.linear(blk + "attn_v.weight", x).reshape(shape)
        return self.rope.turn(k, positions), v

    def _dynamic(self, layer: int, part: str, x: F32) -> F32 | None:
        """The part of both kernels that the block itself decides: (T, side, tap, group); None for DFlash 1."""
        if self.spec.v2 is None:
            return None
        projected = self.weights.linear(f"blk.{layer}.{part}_conv_proj.weight", x)
        dynamic = projected.reshape(len(x), 2, self.spec.v2.conv_kernel_size, -1)
        return self.probe(f"block.{layer}.{part}_conv_dynamic", dynamic)

    def _conv(self, layer: int, part: str, side: int, x: F32, dynamic: F32 | None) -> F32:
        """Side 0 stands before the attention or MLP, side 1 after it."""
        if dynamic is None:
            return x
        base = self.weights.vector(f"blk.{layer}.{part}_conv_base")
        name = f"block.{layer}.{part}_conv_{('in', 'out')[side]}"
        return self.probe(name, dynamic_conv(x, base[side], dynamic[:, side]))

    def _pair_scores(self, anchor: int, hidden: F32, candidates: I64, unary: F32) -> F32:
        predecessor, successor = "selector_predecessor.weight", "selector_successor.weight"
        for codebook in (predecessor, successor):
            self.weights.require_finite(codebook)
        gate = self.probe("selector.gate", self.weights.linear("selector_hidden.weight", hidden))
        before = np.concatenate((np.full_like(candidates[:1], anchor), candidates[:-1]))
        return pair_scores(
            unary, gate, self.weights.rows(predecessor, before), self.weights.rows(successor, candidates)
        )

    def _norm(self, tensor: str, x: F32) -> F32:
        return rms_norm(x, self.weights.vector(tensor), self.spec.layer_norm_rms_epsilon)

    def _embed(self, tokens: I64) -> F32:
        if "token_embd.weight" in self.weights:
            return self.weights.rows("token_embd.weight", tokens)
        return self._borrowed("token embedding").embed(tokens)

    def _head(self, hidden: F32) -> F32:
        for own in ("output.weight", "token_embd.weight"):
            if own in self.weights:
                return self.weights.linear(own, hidden)
        return self._borrowed("output head").head(hidden)

    def _borrowed(self, what: str) -> SharedVocabulary:
        if self._target is None:
            raise ModelError(
                f"the draft has no {what} of its own",
                where=self.weights.source.name,
                hint="give the target it was made for with --target",
            )
        return self._target
