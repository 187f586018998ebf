"""The tensor table: every tensor of a draft with its checkpoint name, its GGUF name, its shape and its kind.

The converter, the checks and the executor all read this one table. Source: the facts of the published inventories
(11·L + 3 tensors for DFlash, 15·L + 6 for DFlash 2) and llama.cpp's loader for the optional ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dflash_gguf.model.spec import DraftSpec


@dataclass(frozen=True, slots=True)
class DraftTensor:
    """One tensor: `shape` is row-major (GGUF's ne is its reverse); `f32` tensors are never quantized."""

    gguf_name: str
    source_name: str
    shape: tuple[int, ...]
    f32: bool = False
    optional: bool = False
    rotary: bool = False  # rows are laid out per head and follow the rope's pairing

    @property
    def ne(self) -> tuple[int, ...]:
        """The shape in ggml's order, fastest dim first."""
        return self.shape[::-1]

    @property
    def linear(self) -> bool:
        """Whether quantized checkpoints quantize it: one of 9·L + 2 matrices (DFlash 1: 7·L + 1)."""
        return self.source_name.endswith(".weight") and not (self.f32 or self.optional)


def draft_tensors(spec: DraftSpec) -> list[DraftTensor]:
    """All tensors of a draft of this geometry, in the order they are written; optional ones are marked."""
    return list(_globals(spec)) + [tensor for layer in range(spec.block_count) for tensor in _layer(spec, layer)]


def _globals(spec: DraftSpec) -> Iterator[DraftTensor]:
    hidden, vocab = spec.embedding_length, spec.vocab_size
    yield DraftTensor("token_embd.weight", "embed_tokens.weight", (vocab, hidden), optional=True)
    reduced = spec.draft_vocab_size
    yield DraftTensor("output.weight", "lm_head.weight", (reduced or vocab, hidden), optional=reduced is None)
    if reduced is not None:
        yield DraftTensor("d2t", "d2t", (reduced,))
    yield DraftTensor("fc.weight", "fc.weight", (hidden, len(spec.target_layers) * hidden))
    yield DraftTensor("enc.output_norm.weight", "hidden_norm.weight", (hidden,), f32=True)
    yield DraftTensor("output_norm.weight", "norm.weight", (hidden,), f32=True)
    if spec.v2:
        rank, selector = spec.v2.selector_rank, "candidate_selector."
        yield DraftTensor("selector_hidden.weight", selector + "hidden_projection.weight", (rank, hidden))
        for side in ("predecessor", "successor"):
            yield DraftTensor(f"selector_{side}.weight", f"{selector}{side}_codebook", (vocab, rank))


def _layer(spec: DraftSpec, layer: int) -> Iterator[DraftTensor]:
    hidden, ffn, head = spec.embedding_length, spec.feed_forward_length, spec.key_length
    q, kv = spec.head_count * head, spec.head_count_kv * head
    to, source = f"blk.{layer}.", f"layers.{layer}."
    attention, mlp = source + "self_attn.", source + "mlp."
    yield DraftTensor(to + "attn_norm.weight", source + "input_layernorm.weight", (hidden,), f32=True)
    yield DraftTensor(to + "attn_q.weight", attention + "q_proj.weight", (q, hidden), rotary=True)
    yield DraftTensor(to + "attn_k.weight", attention + "k_proj.weight", (kv, hidden), rotary=True)
    yield DraftTensor(to + "attn_v.weight", attention + "v_proj.weight", (kv, hidden))
    yield DraftTensor(to + "attn_output.weight", attention + "o_proj.weight", (hidden, q))
    yield DraftTensor(to + "attn_q_norm.weight", attention + "q_norm.weight", (head,), f32=True, rotary=True)
    yield DraftTensor(to + "attn_k_norm.weight", attention + "k_norm.weight", (head,), f32=True, rotary=True)
    sinks, heads = attention + "attention_sink_bias", (spec.head_count,)
    yield DraftTensor(to + "attn_sinks.weight", sinks, heads, f32=True, optional=True)
    yield DraftTensor(to + "ffn_norm.weight", source + "post_attention_layernorm.weight", (hidden,), f32=True)
    yield DraftTensor(to + "ffn_gate.weight", mlp + "gate_proj.weight", (ffn, hidden))
    yield DraftTensor(to + "ffn_up.weight", mlp + "up_proj.weight", (ffn, hidden))
    yield DraftTensor(to + "ffn_down.weight", mlp + "down_proj.weight", (hidden, ffn))
    if spec.v2:
        kernel, groups = spec.v2.conv_kernel_size, hidden // spec.v2.conv_group_size
        for name, conv in (("attn", "attention_conv."), ("ffn", "mlp_conv.")):
            yield DraftTensor(f"{to}{name}_conv_base", source + conv + "base_kernel", (2, kernel, hidden), f32=True)
            projection = source + conv + "kernel_projection.weight"
            yield DraftTensor(f"{to}{name}_conv_proj.weight", projection, (2 * kernel * groups, hidden))


#: other names under which a checkpoint may hold the same tensor
_ALIASES = (
    ("self_attn.sinks", "self_attn.attention_sink_bias"),
    ("encoder.output_norm_enc.", "hidden_norm."),  # transformers' form of Muse Glimmer's assistant
    ("encoder.fc.", "fc."),
)


def canonical_source_name(name: str) -> str:
    """A tensor's name without what dialects add: one leading `model.`, `.weight` behind sinks and codebooks."""
    name = name.removeprefix("model.")
    for alias, canonical in _ALIASES:
        name = name.replace(alias, canonical)
    if name.endswith(("_codebook.weight", "attention_sink_bias.weight", "base_kernel.weight")):
        name = name.removesuffix(".weight")
    return name
