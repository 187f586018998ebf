"""config.json → DraftSpec: three dialects, one meaning.

z-lab's dialect nests the draft's sizes in `dflash_config`; the speculators dialect is flat, nests the backbone in
`transformer_layer_config` and stores layer ids that are already shifted by one; transformers' own (Muse Glimmer's
assistant) is flat and leaves the vocabulary to the target. Nothing is guessed: what a
draft needs and its config does not say is an error, since a wrong value would only show as lost acceptance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from dflash_gguf.errors import ModelError
from dflash_gguf.model.spec import DraftSpec, DynamicConv, RopeScaling
from dflash_gguf.wording import counted

ASSISTANT = "MuseGlimmerAssistantModel"
ARCHITECTURES = {"DFlashDraftModel": 1, "DFlash2DraftModel": 2, ASSISTANT: 1}
V2_SIZES = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
V1_BLOCK_SIZE = 16  # what z-lab's first drafts were trained with, before their configs said so
MAX_BLOCKS = 512  # llama.cpp's LLAMA_MAX_LAYERS
_LAYER_TYPES = ("full_attention", "sliding_attention")
_U32_MAX = 0xFFFF_FFFF
#: what the names of draft models hold, ours and others'
_DRAFTS = re.compile(r"DFlash|DSpark|DraftModel|Speculator|ForCausalLMEagle", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ConfigReading:
    """A draft's spec, and what its config leaves to be warned about."""

    spec: DraftSpec
    warnings: tuple[str, ...]
    rope_is_neox: bool = True


def spec_from_config(
    config: Mapping[str, Any],
    target_config: Mapping[str, Any] | None,
    *,
    where: str,
    target_layers: tuple[int, ...] | None = None,
) -> ConfigReading:
    """Normalise a draft's config; `target_layers` (GGUF values) stands in for layer ids the config does not hold.

    Raises ModelError naming the key: no DFlash draft, a value missing or out of range, two places in conflict,
    a feature that the arch `dflash` cannot hold, a target that contradicts the draft.
    """
    version = _version(config, where)
    assistant = ASSISTANT in config["architectures"]
    view = _View.of(_from_assistant(config, target_config or {}) if assistant else config, where)
    view.refuse_unsupported()
    spec, warnings = _spec(view, version, target_layers)
    if spec.causal is None and any(spec.sliding_window_pattern or ()) and not assistant:
        warnings.append(
            "is_causal is absent: llama.cpp will not mask inside the block, z-lab's model masks the sliding layers"
        )
    target = text_config(target_config or {})
    _check_loader_rules(spec, where)
    if target:
        spec = _with_target(spec, target, where)
        warnings += _target_warnings(spec, target)
    return ConfigReading(spec, tuple(warnings), rope_is_neox=config.get("rope_is_neox_style", True) is not False)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a target's config that describes its language model."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def architectures(config: Mapping[str, Any]) -> list[str]:
    """The architectures that a config names."""
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def target_architecture(config: Mapping[str, Any]) -> str:
    """The first architecture a config names, or ""."""
    return next(iter(architectures(config)), "")


def is_draft_architecture(name: str) -> bool:
    """Whether a checkpoint's architecture is a draft's, of this kind or another."""
    return name in ARCHITECTURES or _DRAFTS.search(name) is not None


def uses_mrope(target: Mapping[str, Any]) -> bool:
    """Whether a target ropes its positions in sections (vision models do)."""
    rope = text_config(target).get("rope_parameters") or text_config(target).get("rope_scaling") or {}
    return isinstance(rope, Mapping) and "mrope_section" in rope


def _version(config: Mapping[str, Any], where: str) -> int:
    names = architectures(config)
    found = [ARCHITECTURES[name] for name in names if name in ARCHITECTURES]
    if found:
        return found[0]
    told = ", ".join(names) or "none"
    if any("DSpark" in name for name in names):
        raise ModelError(f"architecture {told}: DSpark drafts are not supported", where=where)
    raise ModelError(
        f"not a DFlash draft: architectures is {told}, expected {' or '.join(ARCHITECTURES)}",
        where=where,
        hint="DRAFT is the draft's folder, --target the target's",
    )


class _View:
    """A config of either dialect, seen as z-lab's: `top` is the backbone, `nested` the draft's own values."""

    def __init__(self, top: Mapping[str, Any], nested: Mapping[str, Any], where: str, *, flat: bool) -> None:
        self.top, self.nested, self.where, self.flat = top, nested, where, flat

    @classmethod
    def of(cls, config: Mapping[str, Any], where: str) -> _View:
        backbone = config.get("transformer_layer_config")
        if isinstance(backbone, Mapping):
            return cls(backbone, _from_speculators(config, where), where, flat=True)
        nested = config.get("dflash_config", {})
        if not isinstance(nested, Mapping):
            raise ModelError(f"dflash_config is {nested!r}, expected an object", where=where)
        return cls(config, nested, where, flat=False)

    def error(self, message: str, hint: str = "") -> ModelError:
        return ModelError(message, where=self.where, hint=hint)

    def either(self, key: str, *others: str) -> Any:
        """A value that may stand nested or at the top (there also under other names); in conflict is an error."""
        inner = self.nested.get(key)
        outer = next((self.top[name] for name in (key, *others) if self.top.get(name) is not None), None)
        if inner is not None and outer is not None and inner != outer:
            raise self.error(f"{key} is {inner!r} in dflash_config but {outer!r} at the top level")
        return outer if inner is None else inner

    def natural(self, key: str, value: Any, *, least: int = 1) -> int:
        if type(value) is not int or not least <= value <= _U32_MAX:
            found = "missing" if value is None else f"{value!r}, expected a whole number ≥ {least}"
            raise self.error(f"{key} is {found}")
        return value

    def number(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 3.4e38:
            raise self.error(f"{key} is {'missing' if value is None else repr(value)}, expected a number")
        return float(value)

    def positive(self, key: str, value: Any) -> float:
        if not self.number(key, value) > 0:
            raise self.error(f"{key} is {value!r}, expected a number > 0")
        return float(value)

    def optional(self, key: str) -> float | None:
        """A number of `dflash_config`, else of the top level: the nested one wins (reference's order)."""
        value = self.nested.get(key, self.top.get(key))
        return None if value is None else self.number(key, value)

    def flag(self, key: str, value: Any) -> bool:
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{key} is {value!r}, expected true or false")
        return bool(value)

    def refuse_unsupported(self) -> None:
        """Name what a draft may ask for and the arch `dflash` has no place for."""
        for key, wanted, what in _UNSUPPORTED:
            for holder in (self.nested, self.top):
                value = holder.get(key)
                if value not in wanted:
                    raise self.error(f"{key} is {value!r}: {what} is not supported by arch dflash")
        if self.either("sample_from_anchor"):
            raise self.error("sample_from_anchor is true: every proposal would be shifted by one")


#: key, values that are fine, what any other value asks for
_UNSUPPORTED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("attention_mode", (None, "gqa", "mha", "standard"), "this attention (MLA and others)"),
    ("kv_lora_rank", (None, 0), "MLA attention"),
    ("attention_bias", (None, False), "a bias on q, k and v"),
    ("mlp_bias", (None, False), "a bias in the MLP"),
    ("hidden_act", (None, "silu"), "an activation other than silu"),
    ("qk_norm_after_rope", (None, False), "normalising q and k after rope"),
    ("qk_layernorm_after_rope", (None, False), "normalising q and k after rope"),
    ("attn_gate", (None, False), "a gate on the attention output"),
    ("attn_output_gate", (None, False), "a gate on the attention output"),
    ("use_aux_norm", (None, False), "a norm per tapped layer"),
    ("aux_norm", (None, False), "a norm per tapped layer"),
    ("markov_rank", (None, 0), "DSpark's Markov head"),
    ("dspark_markov_rank", (None, 0), "DSpark's Markov head"),
)


def _from_speculators(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The flat dialect's own values under z-lab's names; aux ids are HF ids + 1, and absent is_causal means false."""
    nested = {key: config[key] for key in ("block_size", "mask_token_id", *V2_SIZES) if key in config}
    nested["causal"] = config.get("is_causal", False)
    aux = config.get("aux_hidden_state_layer_ids")
    if aux is not None:
        if not isinstance(aux, list) or not all(type(item) is int for item in aux):
            raise ModelError(f"aux_hidden_state_layer_ids is {aux!r}, expected a list of ids", where=where)
        nested["target_layer_ids"] = [item - 1 for item in aux]
    nested["draft_vocab_size"] = config.get("draft_vocab_size")
    return nested


def _from_assistant(config: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, Any]:
    """The dialect of transformers under z-lab's names: layers slide by layer_types, the vocabulary is the target's."""
    nested = {key: config[key] for key in ("block_size", "mask_token_id", "target_layer_ids") if key in config}
    flat = {key: value for key, value in config.items() if key not in nested}
    vocab = config.get("vocab_size", text_config(target).get("vocab_size"))
    slides = bool(config.get("sliding_window") and config.get("layer_types"))
    return {**flat, "dflash_config": nested, "vocab_size": vocab, "use_sliding_window": slides}


def _draft_vocab(view: _View, vocab: int) -> int | None:
    """Rows of a reduced vocabulary, None where the draft proposes every token."""
    rows = view.either("draft_vocab_size")
    if rows is None or rows == vocab:
        return None
    if view.natural("draft_vocab_size", rows) > vocab:
        raise view.error(f"draft_vocab_size {rows} passes vocab_size {vocab}")
    return int(rows)


def _spec(view: _View, version: int, target_layers: tuple[int, ...] | None) -> tuple[DraftSpec, list[str]]:
    top, warnings = view.top, list[str]()
    hidden = view.natural("hidden_size", top.get("hidden_size"))
    heads = view.natural("num_attention_heads", top.get("num_attention_heads"))
    blocks = view.natural("num_hidden_layers", top.get("num_hidden_layers"))
    if blocks > MAX_BLOCKS:
        raise view.error(f"num_hidden_layers {blocks}, at most {MAX_BLOCKS} are loaded")
    vocab = view.natural("vocab_size", top.get("vocab_size"))
    head_dim = view.natural("head_dim", top.get("head_dim") or (hidden // heads if hidden % heads == 0 else None))
    if top.get("v_head_dim", head_dim) != head_dim:
        raise view.error(f"v_head_dim {top['v_head_dim']!r} differs from head_dim {head_dim}: not supported")
    kv_heads = view.natural("num_key_value_heads", top.get("num_key_value_heads") or heads)
    if heads % kv_heads:
        raise view.error(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    rope = _rope(view)
    window, pattern = _sliding(view, blocks)
    softcap = view.optional("final_logit_softcapping")
    spec = DraftSpec(
        block_count=blocks,
        context_length=view.natural("max_position_embeddings", top.get("max_position_embeddings")),
        embedding_length=hidden,
        feed_forward_length=view.natural("intermediate_size", top.get("intermediate_size")),
        head_count=heads,
        head_count_kv=kv_heads,
        key_length=head_dim,
        layer_norm_rms_epsilon=view.positive("rms_norm_eps", top.get("rms_norm_eps")),
        rope_freq_base=view.positive("rope_theta", rope.get("rope_theta", top.get("rope_theta"))),
        rope_dimension_count=_rotary_dims(view, rope, head_dim),
        rope_scaling=_rope_scaling(view, rope),
        causal=_causal(view),
        sliding_window=window,
        sliding_window_pattern=pattern,
        value_scale=view.optional("attention_value_scale"),
        block_size=_block_size(view, version, warnings),
        v2=_dynamic_conv(view, version),
        target_layers=_target_layers(view, target_layers),
        logit_scale=view.optional("output_multiplier"),
        final_logit_softcapping=softcap if softcap is not None and softcap > 0 else None,
        embedding_scale=view.optional("input_embedding_scale"),
        mask_token_id=view.natural("mask_token_id", view.either("mask_token_id"), least=0),
        vocab_size=vocab,
        draft_vocab_size=_draft_vocab(view, vocab),
    )
    if spec.mask_token_id >= vocab:
        raise view.error(f"mask_token_id {spec.mask_token_id} is beyond the vocabulary of {vocab}")
    return spec, warnings


def _rope(view: _View) -> Mapping[str, Any]:
    rope = view.top.get("rope_parameters") or view.top.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise view.error(f"rope_parameters is {rope!r}, expected an object")
    full, sliding = rope.get("full_attention"), rope.get("sliding_attention")
    if isinstance(full, Mapping) and isinstance(sliding, Mapping) and full != sliding:
        raise view.error("rope_parameters differ between full and sliding attention: arch dflash has one rope")
    for part in (full, sliding):
        if isinstance(part, Mapping):
            return part
    return rope


def _rotary_dims(view: _View, rope: Mapping[str, Any], head_dim: int) -> int | None:
    factor = rope.get("partial_rotary_factor", view.top.get("partial_rotary_factor"))
    if factor is None:
        return None
    dims = int(head_dim * view.number("partial_rotary_factor", factor))
    if not 0 < dims <= head_dim or dims % 2:
        raise view.error(f"partial_rotary_factor {factor} of head_dim {head_dim} leaves {dims} rotary dims")
    return dims


def _rope_scaling(view: _View, rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type"))
    if kind in (None, "default", "none"):
        return None
    if kind not in ("linear", "yarn"):
        raise view.error(f"rope scaling {kind!r} is not supported by arch dflash (linear and yarn are)")
    factor = view.positive("rope factor", rope.get("factor"))
    if kind == "linear":
        return RopeScaling("linear", factor)
    original = rope.get("original_max_position_embeddings", view.top.get("original_max_position_embeddings"))
    attn_factor = rope.get("attention_factor", rope.get("attn_factor"))
    values = (rope.get("beta_fast"), rope.get("beta_slow"), rope.get("extrapolation_factor"), attn_factor)
    fast, slow, ext, attn = (None if value is None else view.number("a yarn value", value) for value in values)
    return RopeScaling(
        "yarn",
        factor,
        original_context_length=view.natural("original_max_position_embeddings", original),
        yarn_beta_fast=fast,
        yarn_beta_slow=slow,
        yarn_ext_factor=ext,
        yarn_attn_factor=attn,
    )


def _sliding(view: _View, blocks: int) -> tuple[int | None, tuple[bool, ...] | None]:
    top, nested = view.top, view.nested
    layer_types = top.get("layer_types")
    if layer_types is not None:
        if not isinstance(layer_types, list) or len(layer_types) != blocks:
            found = counted(len(layer_types), "entry") if isinstance(layer_types, list) else repr(layer_types)
            raise view.error(f"layer_types has {found} for {counted(blocks, 'layer')}")
        if unknown := [word for word in layer_types if word not in _LAYER_TYPES]:
            raise view.error(f"layer_types holds {unknown[0]!r}, expected {' or '.join(_LAYER_TYPES)}")
    use_swa = view.flag("use_swa", nested.get("use_swa"))
    window = nested.get("swa_window_size") or top.get("sliding_window")
    if not (use_swa or view.flag("use_sliding_window", top.get("use_sliding_window"))) or not window:
        return None, None
    window = view.natural("sliding_window", window)
    if use_swa:
        return window, (True,) * blocks
    if layer_types is None:
        raise view.error("use_sliding_window is true but layer_types does not say which layers slide")
    return window, tuple(word == "sliding_attention" for word in layer_types)


def _causal(view: _View) -> bool | None:
    inner, outer = view.nested.get("causal"), view.top.get("is_causal")
    if inner is not None and outer is not None and inner != outer:
        raise view.error(f"is_causal is {outer!r} but dflash_config.causal is {inner!r}")
    value = inner if outer is None else outer
    return None if value is None else view.flag("is_causal", value)


def _block_size(view: _View, version: int, warnings: list[str]) -> int:
    value = view.either("block_size")
    if value is None and version == 1:
        warnings.append(f"block_size is absent: {V1_BLOCK_SIZE}, as DFlash 1 drafts were trained, is written")
        return V1_BLOCK_SIZE
    return view.natural("block_size", value, least=2)


def _dynamic_conv(view: _View, version: int) -> DynamicConv | None:
    present = [key for key in V2_SIZES if view.either(key) is not None]
    if version == 1:
        if present:
            raise view.error(f"architecture DFlashDraftModel (v1) but {present[0]} is set: which one is it?")
        return None
    return DynamicConv(*(view.natural(key, view.either(key)) for key in V2_SIZES))


def _target_layers(view: _View, given: tuple[int, ...] | None) -> tuple[int, ...]:
    told = view.either("target_layer_ids")
    ids = told if given is None else [item - 1 for item in given]
    if told is not None and told != ids:
        raise view.error(f"target_layer_ids is {told}, which --target-layers contradicts", "leave the option out")
    if not isinstance(ids, list) or not ids or not all(type(item) is int and 0 <= item < 1 << 16 for item in ids):
        found = "missing" if ids is None else repr(ids)
        raise view.error(
            f"target_layer_ids is {found}, expected a list of the target's layer ids",
            hint="it cannot be guessed; --target-layers gives it",
        )
    if any(b <= a for a, b in pairwise(ids)):
        raise view.error(f"target_layer_ids {ids} does not increase")
    count = view.top.get("num_target_layers")
    if isinstance(count, int) and ids[-1] >= count:
        raise view.error(f"target_layer_ids {ids} exceed num_target_layers {count}")
    return tuple(item + 1 for item in ids)


def _check_loader_rules(spec: DraftSpec, where: str) -> None:
    """What llama.cpp would refuse when it loads the file, or abort on when it runs it."""
    if spec.key_length % 2:
        raise ModelError(f"head_dim {spec.key_length} is odd: rope turns pairs of dims", where=where)
    if spec.v2 is None:
        return
    hidden, v2 = spec.embedding_length, spec.v2
    if hidden % v2.conv_group_size:
        raise ModelError(f"hidden_size {hidden} is no multiple of conv_group_size {v2.conv_group_size}", where=where)
    lattice = v2.selector_top_k * (v2.selector_top_k + 1)
    if hidden < lattice:
        raise ModelError(f"hidden_size {hidden} < selector_top_k·(selector_top_k + 1) = {lattice}", where=where)


def _with_target(spec: DraftSpec, target: Mapping[str, Any], where: str) -> DraftSpec:
    """`spec` with the M-RoPE sections of a vision target, after comparing it with that target."""
    vocab = target.get("vocab_size")
    if isinstance(vocab, int) and vocab != spec.vocab_size:
        raise ModelError(
            f"vocab_size is {spec.vocab_size} in the draft but {vocab} in the target's config",
            where=where,
            hint="is --target the model this draft was trained for?",
        )
    layers = target.get("num_hidden_layers")
    if isinstance(layers, int) and spec.target_layers[-1] > layers:
        raise ModelError(
            f"target_layers {list(spec.target_layers)} exceed the target's {counted(layers, 'layer')}",
            where=where,
            hint="is --target the model this draft was trained for?",
        )
    if not uses_mrope(target):
        return spec
    rotary = spec.rope_dimension_count or spec.key_length
    return replace(spec, rope_dimension_sections=(rotary // 2, 0, 0, 0))


def _target_warnings(spec: DraftSpec, target: Mapping[str, Any]) -> list[str]:
    warnings, hidden = [], target.get("hidden_size")
    if isinstance(hidden, int) and hidden != spec.embedding_length:
        # not refused: the reference converts such a pair, and a draft with its own embedding could be one
        warnings.append(
            f"hidden_size is {spec.embedding_length} in the draft but {hidden} in the target: is --target its target?"
        )
    if spec.target_layers[-1] == target.get("num_hidden_layers"):
        warnings.append(
            "the last tap is the target's last block: llama.cpp aborts for targets that do not expose it (Qwen3)"
        )
    return warnings
