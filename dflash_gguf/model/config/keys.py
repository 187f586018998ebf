"""What each key of a draft's config does, at each place where it may stand.

The reader's refusals and warnings both come from this table: a key is read, harmless (with the reason) or refused
(with the reason, unless its value is one of `fine`). A key that is in no table of its place is unknown.
Sources: transformers 5.25 (PreTrainedConfig, Qwen3Config), speculators 0.9.0, z-lab's published configs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Does(Enum):
    """What a key does to a conversion."""

    READ = "read"
    HARMLESS = "harmless"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Key:
    """One key: what it does, why, and (where refused) the values that ask for nothing."""

    does: Does
    why: str = ""
    fine: tuple[Any, ...] = ()

    def allows(self, value: Any) -> bool:
        """Whether a value asks for nothing that is refused; 0 is not False here, nor 1 True."""
        return any(type(value) is type(item) and value == item for item in self.fine)


def _read(*names: str) -> dict[str, Key]:
    return dict.fromkeys(names, Key(Does.READ))


def _harmless(why: str, *names: str) -> dict[str, Key]:
    return dict.fromkeys(names, Key(Does.HARMLESS, why))


def _refused(why: str, fine: tuple[Any, ...], *names: str) -> dict[str, Key]:
    return dict.fromkeys(names, Key(Does.REFUSED, why, fine))


_OFF = (None, False)
_NONE = (None, 0)
_ONE = (None, 1, 1.0)
SHIFTED = "every proposal would be shifted by one"
_NOT_HELD = "is not supported by arch dflash"

#: features that a draft may ask for and arch `dflash` has no place for, wherever they stand
_FEATURES = {
    **_refused(SHIFTED, _OFF, "sample_from_anchor", "query_zero_predicts_next", "shift_label"),
    **_refused(f"this attention (MLA and others) {_NOT_HELD}", (None, "gqa", "mha", "standard"), "attention_mode"),
    **_refused(f"MLA attention {_NOT_HELD}", _NONE, "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim"),
    **_refused(f"a bias on q, k and v {_NOT_HELD}", _OFF, "attention_bias", "qkv_bias", "attention_out_bias"),
    **_refused(f"a bias in the MLP {_NOT_HELD}", _OFF, "mlp_bias"),
    **_refused(f"an activation other than silu {_NOT_HELD}", (None, "silu"), "hidden_act", "hidden_activation"),
    **_refused(f"normalising q and k after rope {_NOT_HELD}", _OFF, "qk_norm_after_rope", "qk_layernorm_after_rope"),
    **_refused(f"attention without q and k norms {_NOT_HELD}", (None, True), "use_qk_norm", "qk_norm"),
    **_refused(f"a gate on the attention output {_NOT_HELD}", _OFF, "attn_gate", "attn_output_gate", "gating"),
    **_refused(f"a norm per tapped layer {_NOT_HELD}", _OFF, "use_aux_norm", "aux_norm"),
    **_refused(f"DSpark's Markov head {_NOT_HELD}", _NONE, "markov_rank", "dspark_markov_rank"),
    **_refused(f"DSpark's confidence head {_NOT_HELD}", _OFF, "enable_confidence_head"),
    **_refused(f"a mixture of experts {_NOT_HELD}", _NONE, "num_experts", "num_local_experts", "n_routed_experts"),
    **_refused(f"soft-capped attention {_NOT_HELD}", (None, 0, 0.0), "attn_logit_softcapping"),
    **_refused(
        f"this scale {_NOT_HELD}",
        _ONE,
        "attention_multiplier",
        "residual_multiplier",
        "logits_scaling",
        "embedding_multiplier",
        "logit_scale",
    ),
    **_refused(f"another query scale {_NOT_HELD}", (None,), "query_pre_attn_scalar"),
}

_FAMILY = _harmless("training only", "num_anchors", "loss_decay_gamma", "max_anchors")
_LIBRARY = {
    **_harmless(
        "transformers' bookkeeping",
        "_name_or_path",
        "auto_map",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "model_type",
        "id2label",
        "label2id",
        "problem_type",
        "return_dict",
        "output_hidden_states",
        "output_attentions",
        "chunk_size_feed_forward",
        "is_encoder_decoder",
        "is_decoder",
        "add_cross_attention",
        "_attn_implementation",
        "_attn_implementation_autoset",
        "torchscript",
        "use_bfloat16",
    ),
    **_harmless("how weights start, not what they are", "initializer_range"),
    **_harmless("training only", "attention_dropout", "hidden_dropout", "pretraining_tp"),
    **_harmless("a choice of the runtime", "use_cache"),
    **_harmless("llama.cpp takes the target's tokens", "bos_token_id", "eos_token_id", "pad_token_id"),
    **_harmless("layer_types says which layers slide", "max_window_layers"),
    **_harmless("the tensors say whether there is a head", "tie_word_embeddings"),
}
_SLIDES = ("layer_types", "sliding_window", "use_sliding_window")
_DRAFT = (
    "block_size", "mask_token_id", "target_layer_ids", "draft_vocab_size", "conv_kernel_size", "conv_group_size",
    "selector_rank", "selector_top_k", "attention_value_scale", "output_multiplier", "final_logit_softcapping",
    "input_embedding_scale",
)  # fmt: skip

BACKBONE = {
    **_FEATURES,
    **_LIBRARY,
    **_read(
        *_DRAFT, *_SLIDES, "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
        "num_hidden_layers", "head_dim", "v_head_dim", "max_position_embeddings", "vocab_size", "rms_norm_eps",
        "rope_theta", "rope_parameters", "rope_scaling", "partial_rotary_factor", "num_target_layers",
        "original_max_position_embeddings", "is_causal",
    ),
}  # fmt: skip
TOP = {
    **BACKBONE,
    **_FAMILY,
    **_read("architectures", "dflash_config", "quantization_config", "has_embed_tokens", "rope_is_neox_style"),
}
NESTED = {
    **_FEATURES,
    **_FAMILY,
    **_read(*_DRAFT, "vocab_size", "causal", "use_swa", "swa_window_size"),
    **_harmless("the tensors say whether there are sinks", "attention_sink_bias"),
    **_harmless("the target's", "backbone_rotary_base"),
    **_harmless("the selector's tensors say it", "selector_vocab_size"),
}
SPECULATORS = {
    **_FEATURES,
    **_FAMILY,
    **_LIBRARY,
    **_read(
        "architectures", "transformer_layer_config", "block_size", "mask_token_id", "aux_hidden_state_layer_ids",
        "draft_vocab_size", "is_causal", "sliding_window_non_causal", "conv_kernel_size", "conv_group_size",
        "selector_rank", "selector_top_k", "quantization_config", "has_embed_tokens", "rope_is_neox_style",
    ),
    **_harmless("speculators' bookkeeping", "speculators_config", "speculators_model_type", "speculators_version"),
    **_harmless("the target's, which --target gives", "target_hidden_size"),
}  # fmt: skip
ROPE = {
    **_read(
        "rope_theta", "rope_type", "type", "factor", "partial_rotary_factor", "original_max_position_embeddings",
        "beta_fast", "beta_slow", "extrapolation_factor", "attention_factor", "attn_factor", "full_attention",
        "sliding_attention",
    ),
    **_harmless("transformers reads it only beside mscale_all_dim", "mscale"),
    **_refused(f"a magnitude scale of its own {_NOT_HELD}", (None, 0, 0.0), "mscale_all_dim"),
    **_refused(f"an unrounded yarn range {_NOT_HELD}", (None, True), "truncate"),
    **_refused(f"this rope {_NOT_HELD}", (None,), "short_factor", "long_factor", "low_freq_factor", "high_freq_factor"),
    **_harmless("text positions are the same in every section", "mrope_section", "mrope_interleaved"),
}  # fmt: skip

#: what transformers' Qwen3Config takes for keys that are absent (5.25, models/qwen3/configuration_qwen3.py)
QWEN3_DEFAULTS: dict[str, Any] = {
    "head_dim": 128,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 32768,
}


def places(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Key]]]:
    """Every place of a draft's config that holds keys: its name ("" at the top), its values, its table."""
    backbone = config.get("transformer_layer_config")
    if isinstance(backbone, Mapping):
        yield "", config, SPECULATORS
        yield "transformer_layer_config", backbone, BACKBONE
        yield from _ropes(backbone, "transformer_layer_config.")
        return
    yield "", config, TOP
    nested = config.get("dflash_config")
    if isinstance(nested, Mapping):
        yield "dflash_config", nested, NESTED
    yield from _ropes(config, "")


def _ropes(holder: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Key]]]:
    for name in ("rope_parameters", "rope_scaling"):
        rope = holder.get(name)
        if not isinstance(rope, Mapping):
            continue
        yield prefix + name, rope, ROPE
        for kind in ("full_attention", "sliding_attention"):
            if isinstance(rope.get(kind), Mapping):
                yield f"{prefix}{name}.{kind}", rope[kind], ROPE


def refusals(config: Mapping[str, Any]) -> Iterator[str]:
    """What the config asks for and a file cannot hold, a sentence each."""
    for place, values, table in places(config):
        for name, value in values.items():
            key = table.get(name)
            if key and key.does is Does.REFUSED and not key.allows(value):
                yield f"{name} is {value!r}{f' in {place}' if place else ''}: {key.why}"


def unknown_keys(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that are in no table of their place, as place.key, sorted. A null asks for nothing."""
    found = [
        f"{place}.{name}" if place else name
        for place, values, table in places(config)
        for name, value in values.items()
        if name not in table and value is not None
    ]
    return tuple(sorted(found))
