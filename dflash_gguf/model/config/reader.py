"""config.json → DraftSpec: three dialects, one meaning.

z-lab's dialect nests the draft's sizes in `dflash_config`; the speculators dialect is flat, nests the backbone in
`transformer_layer_config` and stores layer ids that are already shifted by one; transformers' own (Muse Glimmer's
assistant) is flat and leaves the vocabulary to the target. Nothing is guessed: what a
draft needs and its config does not say is an error, since a wrong value would only show as lost acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from dflash_gguf.errors import ModelError
from dflash_gguf.model.config.dialects import V2_SIZES, View, from_assistant
from dflash_gguf.model.config.keys import QWEN3_DEFAULTS, SHIFTED, refusals, unknown_keys
from dflash_gguf.model.config.names import ARCHITECTURES, ASSISTANT, architectures, text_config, uses_mrope
from dflash_gguf.model.spec import DraftSpec, DynamicConv, RopeScaling
from dflash_gguf.wording import counted, safe

#: keys that only DeepSpec writes at the top level of a flat config
DEEPSPEC = ("markov_rank", "enable_confidence_head", "num_anchors")
V1_BLOCK_SIZE = 16  # what z-lab's first drafts were trained with, before their configs said so
MAX_BLOCKS = 512  # llama.cpp's LLAMA_MAX_LAYERS
_ROPE_ALIASES = {"type": "rope_type", "attn_factor": "attention_factor"}
_QWEN3_BACKBONES = ("qwen3", "dflash")  # model types whose config class is Qwen3Config
_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class ConfigReading:
    """A draft's spec, and what its config leaves to be warned about."""

    spec: DraftSpec
    warnings: tuple[str, ...]
    rope_is_neox: bool = True
    unknown: tuple[str, ...] = ()


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
    view = View.of(from_assistant(config, target_config or {}) if assistant else config, where)
    _refuse(config, where)
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
    unknown = unknown_keys(config)
    if unknown:
        warnings.append(unknown_told(unknown))
    return ConfigReading(
        spec,
        tuple(warnings),
        rope_is_neox=config.get("rope_is_neox_style", True) is not False,
        unknown=unknown,
    )


def unknown_told(unknown: tuple[str, ...]) -> str:
    """The line that names keys no table knows."""
    names = ", ".join(safe(name) for name in unknown)
    return f"config.json has {counted(len(unknown), 'key')} that nothing here reads: {names}"


def _refuse(config: Mapping[str, Any], where: str) -> None:
    for refusal in refusals(config):
        raise ModelError(refusal, where=where)
    if _is_deepspec(config) and config.get("sample_from_anchor") is not False:
        raise ModelError(
            f"a DeepSpec config ({', '.join(key for key in DEEPSPEC if key in config)}) samples from the anchor unless "
            f"it says otherwise: {SHIFTED}",
            where=where,
        )


def _is_deepspec(config: Mapping[str, Any]) -> bool:
    """Whether a flat config is of the DSpark family, whose absent sample_from_anchor means true."""
    speculators = "transformer_layer_config" in config or "aux_hidden_state_layer_ids" in config
    return not speculators and "dflash_config" not in config and any(key in config for key in DEEPSPEC)


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


def _draft_vocab(view: View, vocab: int) -> int | None:
    """Rows of a reduced vocabulary, None where the draft proposes every token."""
    rows = view.either("draft_vocab_size")
    if rows is None or rows == vocab or (type(rows) is int and rows == 0):
        return None  # 0 means not reduced, as in z-lab's and speculators' loaders
    if view.natural("draft_vocab_size", rows) > vocab:
        raise view.error(f"draft_vocab_size {rows} passes vocab_size {vocab}")
    return int(rows)


def _spec(view: View, version: int, target_layers: tuple[int, ...] | None) -> tuple[DraftSpec, list[str]]:
    top, warnings = view.top, list[str]()
    hidden = view.natural("hidden_size", top.get("hidden_size"))
    heads = view.natural("num_attention_heads", top.get("num_attention_heads"))
    blocks = view.natural("num_hidden_layers", top.get("num_hidden_layers"))
    if blocks > MAX_BLOCKS:
        raise view.error(f"num_hidden_layers {blocks}, at most {MAX_BLOCKS} are loaded")
    vocab = view.natural("vocab_size", view.either("vocab_size"))
    rope = _rope(view)
    defaults = _defaults(view, rope, warnings)
    head_dim = view.natural("head_dim", top.get("head_dim", defaults.get("head_dim")))
    if top.get("v_head_dim", head_dim) != head_dim:
        raise view.error(f"v_head_dim {top['v_head_dim']!r} differs from head_dim {head_dim}: not supported")
    kv_heads = top.get("num_key_value_heads", defaults.get("num_key_value_heads", heads))
    kv_heads = view.natural("num_key_value_heads", heads if kv_heads is None else kv_heads)  # null: as many as heads
    if heads % kv_heads:
        raise view.error(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    window, pattern = _sliding(view, blocks, warnings)
    softcap = view.optional("final_logit_softcapping")
    spec = DraftSpec(
        block_count=blocks,
        context_length=view.natural(
            "max_position_embeddings", top.get("max_position_embeddings", defaults.get("max_position_embeddings"))
        ),
        embedding_length=hidden,
        feed_forward_length=view.natural("intermediate_size", top.get("intermediate_size")),
        head_count=heads,
        head_count_kv=kv_heads,
        key_length=head_dim,
        layer_norm_rms_epsilon=view.positive("rms_norm_eps", top.get("rms_norm_eps", defaults.get("rms_norm_eps"))),
        rope_freq_base=view.positive("rope_theta", rope.get("rope_theta", defaults.get("rope_theta"))),
        rope_dimension_count=_rotary_dims(view, rope, head_dim),
        rope_scaling=_rope_scaling(view, rope),
        causal=_causal(view, pattern, warnings),
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


def _defaults(view: View, rope: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    """What the config's class takes for absent keys; only Qwen3Config's are known. The tensors prove the sizes."""
    if view.top.get("model_type", "qwen3") not in _QWEN3_BACKBONES:
        return {}
    taken = {key: value for key, value in QWEN3_DEFAULTS.items() if key not in view.top and key not in rope}
    if taken:
        told = ", ".join(f"{key} {value:g}" for key, value in taken.items())
        warnings.append(f"absent keys are what Qwen3Config takes for them: {told}")
    return taken


def _rope(view: View) -> dict[str, Any]:
    """Every rope value, from wherever it stands; two places that disagree are an error."""
    merged: dict[str, tuple[str, Any]] = {}
    for place in ("rope_parameters", "rope_scaling"):
        rope = view.top.get(place) or {}
        if not isinstance(rope, Mapping):
            raise view.error(f"{place} is {rope!r}, expected an object")
        for name, value in _one_rope(view, place, rope).items():
            _merge(view, merged, _ROPE_ALIASES.get(name, name), place, value)
    for name in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
        _merge(view, merged, name, "the top level", view.top.get(name))
    return {name: value for name, (_, value) in merged.items()}


def _merge(view: View, merged: dict[str, tuple[str, Any]], name: str, place: str, value: Any) -> None:
    if value is None:
        return
    before, told = merged.setdefault(name, (place, value))
    if told != value:
        raise view.error(f"{name} is {told!r} in {before} but {value!r} in {place}")


def _one_rope(view: View, place: str, rope: Mapping[str, Any]) -> Mapping[str, Any]:
    full, sliding = rope.get("full_attention"), rope.get("sliding_attention")
    if isinstance(full, Mapping) and isinstance(sliding, Mapping) and full != sliding:
        raise view.error(f"{place} differ between full and sliding attention: arch dflash has one rope")
    parts = [part for part in (full, sliding) if isinstance(part, Mapping)]
    return parts[0] if parts else rope


def _rotary_dims(view: View, rope: Mapping[str, Any], head_dim: int) -> int | None:
    factor = rope.get("partial_rotary_factor")
    if factor is None:
        return None
    dims = int(head_dim * view.number("partial_rotary_factor", factor))
    if not 0 < dims <= head_dim or dims % 2:
        raise view.error(f"partial_rotary_factor {factor} of head_dim {head_dim} leaves {dims} rotary dims")
    return dims


def _rope_scaling(view: View, rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type")
    if kind in (None, "default", "none"):
        return None
    if kind not in ("linear", "yarn"):
        raise view.error(f"rope scaling {kind!r} is not supported by arch dflash (linear and yarn are)")
    factor = view.positive("rope factor", rope.get("factor"))
    if kind == "linear":
        return RopeScaling("linear", factor)
    original = rope.get("original_max_position_embeddings")
    attn_factor = rope.get("attention_factor")
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


def _sliding(view: View, blocks: int, warnings: list[str]) -> tuple[int | None, tuple[bool, ...] | None]:
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
    told = top.get("use_sliding_window")
    if not (use_swa or view.flag("use_sliding_window", told)) or not window:
        if window and told is None and layer_types and "sliding_attention" in layer_types:
            warnings.append("layer_types name sliding layers but use_sliding_window is absent: no layer will slide")
        elif layer_types and "sliding_attention" in layer_types:
            found = "false" if window else "set without a window"
            raise view.error(f"layer_types name sliding layers but use_sliding_window is {found}: which one is it?")
        return None, None
    window = view.natural("sliding_window", window)
    if use_swa:
        return window, (True,) * blocks
    if layer_types is None:
        raise view.error("use_sliding_window is true but layer_types does not say which layers slide")
    return window, tuple(word == "sliding_attention" for word in layer_types)


def _causal(view: View, pattern: tuple[bool, ...] | None, warnings: list[str]) -> bool | None:
    inner, outer = view.nested.get("causal"), view.top.get("is_causal")
    if inner is not None and outer is not None and inner != outer:
        raise view.error(f"is_causal is {outer!r} but dflash_config.causal is {inner!r}")
    value = inner if outer is None else outer
    if view.nested.get("sliding_window_non_causal") is False and pattern and any(pattern):
        if not all(pattern):
            warnings.append(
                "sliding_window_non_causal is false: only the sliding layers mask inside the block, "
                "and a file has one causal flag for all layers"
            )
        elif outer is False:
            raise view.error("is_causal is false but sliding_window_non_causal is false and every layer slides")
        else:
            return True
    return None if value is None else view.flag("is_causal", value)


def _block_size(view: View, version: int, warnings: list[str]) -> int:
    value = view.either("block_size")
    if value is None and version == 1:
        warnings.append(f"block_size is absent: {V1_BLOCK_SIZE}, as DFlash 1 drafts were trained, is written")
        return V1_BLOCK_SIZE
    return view.natural("block_size", value, least=2)


def _dynamic_conv(view: View, version: int) -> DynamicConv | None:
    present = [key for key in V2_SIZES if view.either(key) is not None]
    if version == 1:
        if present:
            raise view.error(f"architecture DFlashDraftModel (v1) but {present[0]} is set: which one is it?")
        return None
    return DynamicConv(*(view.natural(key, view.either(key)) for key in V2_SIZES))


def _target_layers(view: View, given: tuple[int, ...] | None) -> tuple[int, ...]:
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
    hidden = target.get("hidden_size")
    if isinstance(hidden, int) and hidden != spec.embedding_length:
        raise ModelError(
            f"hidden_size is {spec.embedding_length} in the draft but {hidden} in the target's config",
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
    warnings = []
    if spec.target_layers[-1] == target.get("num_hidden_layers"):
        warnings.append(
            "the last tap is the target's last block: llama.cpp aborts for targets that do not expose it (Qwen3)"
        )
    return warnings
