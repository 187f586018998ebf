"""config.json → DraftSpec: real configs key by key, both dialects, every refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.builders import spec_of, target_config, v1_config, v2_config

from dflash_gguf.errors import ModelError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.model.config import spec_from_config
from dflash_gguf.model.metadata import encode_spec, spec_from_metadata
from dflash_gguf.model.spec import DynamicConv, RopeScaling

SPECULATORS: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "aux_hidden_state_layer_ids": [1, 2, 4],
    "block_size": 8,
    "conv_group_size": 16,
    "conv_kernel_size": 2,
    "draft_vocab_size": 2048,
    "mask_token_id": 2030,
    "selector_rank": 32,
    "selector_top_k": 4,
    "speculators_model_type": "dflash2",
}


def speculators(**changes: Any) -> dict[str, Any]:
    nested = v2_config()
    backbone = {k: v for k, v in nested.items() if k not in {"architectures", "dflash_config", "is_causal"}}
    return {**SPECULATORS, "transformer_layer_config": backbone, **changes}


def test_a_v2_config_becomes_its_spec() -> None:
    spec = spec_of(v2_config())
    assert spec.version == 2
    assert spec.v2 == DynamicConv(conv_kernel_size=2, conv_group_size=16, selector_rank=32, selector_top_k=4)
    assert spec.target_layers == (1, 2, 4)  # HF ids [0, 1, 3]: llama.cpp taps the next block's input
    assert spec.max_draft == 7
    assert spec.sliding_window_pattern == (True, False)
    assert spec.is_sliding(0)
    assert not spec.is_sliding(1)


def test_both_dialects_mean_the_same() -> None:
    assert spec_of(speculators()) == spec_of(v2_config())


def test_a_spec_survives_its_metadata() -> None:
    spec = spec_of(v2_config(final_logit_softcapping=20.0, output_multiplier=0.5, input_embedding_scale=2.0))
    metadata = dict(encode_spec(spec))
    metadata["general.architecture"] = MetaValue(ValueType.STRING, "dflash")
    metadata["tokenizer.ggml.mask_token_id"] = MetaValue(ValueType.UINT32, 2030)
    metadata["tokenizer.ggml.tokens"] = MetaValue(ValueType.ARRAY, Array.of_strings([b"x"] * 2048))
    assert spec_from_metadata(metadata) == spec


def test_v1_without_block_size_is_16_and_says_so() -> None:
    reading = spec_from_config(v1_config(block_size=None), None, where="config.json")
    assert reading.spec.block_size == 16
    assert "block_size is absent" in reading.warnings[0]


def test_causal_absent_with_sliding_layers_warns() -> None:
    reading = spec_from_config(v2_config(is_causal=None), None, where="config.json")
    assert reading.spec.causal is None
    assert "is_causal is absent" in reading.warnings[0]


def test_yarn() -> None:
    scaling = {"type": "yarn", "factor": 64.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0}
    scaling["original_max_position_embeddings"] = 4096
    spec = spec_of(v1_config(rope_parameters=None, rope_scaling=scaling, rope_theta=50000.0))
    assert spec.rope_freq_base == 50000.0
    assert spec.rope_scaling == RopeScaling(
        "yarn", 64.0, original_context_length=4096, yarn_beta_fast=32.0, yarn_beta_slow=1.0
    )


def test_sinks_value_scale_and_partial_rotary() -> None:
    nested = {"nested__attention_value_scale": 0.612, "nested__use_swa": True, "nested__swa_window_size": 9}
    spec = spec_of(v1_config(partial_rotary_factor=0.5, layer_types=None, use_sliding_window=None, **nested))
    assert (spec.rope_dimension_count, spec.value_scale, spec.sliding_window) == (16, 0.612, 9)
    assert spec.sliding_window_pattern == (True, True)


def test_vision_target_adds_degenerate_sections() -> None:
    rope = {"mrope_section": [11, 11, 10], "rope_theta": 1e7}
    target = {"architectures": ["X"], "text_config": target_config(rope_parameters=rope)}
    spec = spec_from_config(v2_config(), target, where="c").spec
    assert spec.rope_dimension_sections == (16, 0, 0, 0)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "plain Qwen3": ({"architectures": ["Qwen3ForCausalLM"]}, "not a DFlash draft: architectures is Qwen3ForCausalLM"),
    "no architectures": ({"architectures": None}, "architectures is none"),
    "DSpark": ({"architectures": ["Qwen3DSparkModel"]}, "DSpark drafts are not supported"),
    "MLA": ({"attention_mode": "mla"}, "attention_mode is 'mla'"),
    "MLA by rank": ({"kv_lora_rank": 512}, "MLA attention is not supported"),
    "Markov head": ({"markov_rank": 64}, "Markov head"),
    "gated attention": ({"attn_output_gate": True}, "gate on the attention output"),
    "q/k norm after rope": ({"qk_norm_after_rope": True}, "after rope"),
    "biases": ({"attention_bias": True}, "a bias on q, k and v"),
    "activation": ({"hidden_act": "gelu"}, "other than silu"),
    "sample_from_anchor": ({"sample_from_anchor": True}, "shifted by one"),
    "no target layers": ({"target_layer_ids": None}, "target_layer_ids is missing"),
    "empty target layers": ({"target_layer_ids": []}, "target_layer_ids is []"),
    "float target layers": ({"target_layer_ids": [0, 1.0]}, "expected a list"),
    "repeated target layer": ({"target_layer_ids": [0, 1, 1]}, "does not increase"),
    "target layer too high": ({"target_layer_ids": [0, 1, 6]}, "exceed num_target_layers 6"),
    "block_size missing": ({"block_size": None}, "block_size is missing"),
    "block_size 1": ({"block_size": 1}, "block_size is 1"),
    "block_size a string": ({"block_size": "8"}, "block_size is '8'"),
    "top_k missing": ({"selector_top_k": None}, "selector_top_k is missing"),
    "top_k zero": ({"selector_top_k": 0}, "selector_top_k is 0"),
    "lattice too wide": ({"selector_top_k": 8}, "selector_top_k·(selector_top_k + 1) = 72"),
    "group does not divide": ({"conv_group_size": 24}, "no multiple of conv_group_size 24"),
    "heads do not divide": ({"num_key_value_heads": 3}, "not a multiple"),
    "v_head_dim": ({"v_head_dim": 64}, "v_head_dim 64"),
    "mask missing": ({"mask_token_id": None}, "mask_token_id is missing"),
    "mask beyond": ({"mask_token_id": 2048}, "beyond the vocabulary"),
    "mask negative": ({"mask_token_id": -1}, "mask_token_id is -1"),
    "layer_types too short": ({"layer_types": ["full_attention"]}, "layer_types has 1 entry for 2 layers"),
    "layer_types unknown": ({"layer_types": ["full_attention", "linear"]}, "'linear'"),
    "layer_types absent": ({"layer_types": None}, "which layers slide"),
    "too many layers": ({"num_hidden_layers": 513, "layer_types": None, "use_sliding_window": False}, "at most 512"),
    "llama3 rope": ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}, "'llama3' is not supported"),
    "yarn without context": (
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0, "factor": 2.0}},
        "original_max_position_embeddings is missing",
    ),
    "odd rotary dims": ({"partial_rotary_factor": 0.1}, "leaves 3 rotary dims"),
    "odd head": ({"head_dim": 33}, "head_dim 33 is odd"),
    "rope theta 0": ({"rope_parameters": {"rope_theta": 0}}, "rope_theta is 0, expected a number > 0"),
    "eps negative": ({"rms_norm_eps": -1e-6}, "expected a number > 0"),
    "architectures of lists": ({"architectures": [["DFlashDraftModel"]]}, "architectures is none"),
    "layer_types of lists": ({"layer_types": [["full_attention"], {}]}, "layer_types holds ['full_attention']"),
    "2^32 sliding layers": ({"num_hidden_layers": 0xFFFF_FFFF, "layer_types": None, "use_swa": True}, "at most 512"),
    "eps missing, another class": ({"rms_norm_eps": None, "model_type": "llama"}, "rms_norm_eps is missing"),
    "hidden a bool": ({"hidden_size": True}, "hidden_size is True"),
    "vocab of 2^40": ({"vocab_size": 1 << 40}, "vocab_size is 1099511627776"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_config_is_refused(name: str) -> None:
    changes, complaint = REFUSED[name]
    with pytest.raises(ModelError) as caught:
        spec_from_config(v2_config(**changes), None, where="draft/config.json")
    assert complaint in str(caught.value)
    assert "draft/config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"), [("block_size", 16), ("mask_token_id", 7), ("target_layer_ids", [0, 1]), ("selector_rank", 8)]
)
def test_nested_and_top_level_in_conflict_are_refused(key: str, value: object) -> None:
    config = v2_config()
    config[key] = value
    with pytest.raises(ModelError, match=f"{key} is .* in dflash_config but"):
        spec_of(config)
    config[key] = config["dflash_config"][key]
    assert spec_of(config) == spec_of(v2_config())


@pytest.mark.parametrize(
    ("layers", "complaint"),
    [
        ((5_000_000_000,), "expected a list"),
        ((0, 1), "expected a list"),
        ((2, 2), "not increase"),
        ((7,), "exceed num_"),
    ],
)
def test_given_target_layers_obey_the_same_rules(layers: tuple[int, ...], complaint: str) -> None:
    config = v2_config(target_layer_ids=None)
    with pytest.raises(ModelError, match=complaint):
        spec_from_config(config, None, where="c", target_layers=layers)
    assert spec_from_config(config, None, where="c", target_layers=(1, 2, 4)).spec == spec_of(v2_config())


def test_an_endless_array_of_a_file_is_not_decoded() -> None:
    metadata = dict(encode_spec(spec_of(v2_config())))
    metadata["general.architecture"] = MetaValue(ValueType.STRING, "dflash")
    metadata["dflash.target_layers"] = MetaValue(ValueType.ARRAY, Array(ValueType.INT32, 5000, b"\0" * 20_000))
    with pytest.raises(ModelError, match="holds 5,000 items"):
        spec_from_metadata(metadata)


def test_v1_with_v2_sizes_is_refused() -> None:
    with pytest.raises(ModelError, match=r"\(v1\) but conv_kernel_size is set"):
        spec_of(v2_config(architectures=["DFlashDraftModel"]))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"vocab_size": 2050}, "vocab_size is 2048 in the draft but 2050"),
        ({"num_hidden_layers": 3}, "exceed the target"),
        ({"hidden_size": 32}, "hidden_size is 64 in the draft but 32"),
    ],
)
def test_a_target_that_contradicts_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        spec_from_config(v2_config(), target_config(**changes), where="c")


def test_a_tap_on_the_last_block_warns() -> None:
    reading = spec_from_config(v2_config(), target_config(num_hidden_layers=4), where="c")
    assert any("last block" in warning for warning in reading.warnings)


def test_speculators_refusals() -> None:
    with pytest.raises(ModelError, match="draft_vocab_size 2049 passes vocab_size 2048"):
        spec_of(speculators(draft_vocab_size=2049))
    with pytest.raises(ModelError, match="expected a list of the target's layer ids"):
        spec_of(speculators(aux_hidden_state_layer_ids=[0, 4]))  # 0 would be the embedding's output


INCOMPLETE = {"Beam-1.0-DFlash2.partial"}


def test_all_complete_real_configs_are_read(shared: Path) -> None:
    folders = sorted(path for path in (shared / "facts/configs").iterdir() if (path / "config.json").is_file())
    read = {}
    for folder in folders:
        config = json.loads((folder / "config.json").read_text())
        if folder.name in INCOMPLETE:
            with pytest.raises(ModelError, match="missing"):
                spec_of(config)
        else:
            read[folder.name] = spec_of(config)
    assert len(read) == 17
    muse = read["Muse-Glimmer-30B-DFlash2"]
    assert (muse.logit_scale, muse.final_logit_softcapping) == (0.19611613513818404, 20.0)
    mimo = read["MiMo-V2.5-Pro-FP4-DFlash"]
    assert (mimo.value_scale, mimo.rope_dimension_count, mimo.sliding_window) == (0.612, 64, 1024)
    assert mimo.sliding_window_pattern == (True,) * 5
    assert read["Qwen3.8-Flash-Next-DFlash2"].sliding_window_pattern == (True,) * 5 + (False,)
    kimi = read["Kimi-K2.7-code-DFlash.partial"]
    assert kimi.rope_scaling == RopeScaling("yarn", 64.0, 4096, 32.0, 1.0)
    assert read["Qwen3-4B-speculator.dflash2"] == read["Qwen3-4B-DFlash2.derived-from-speculator"]
