"""Every key of a config is accounted for, and places that disagree are refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from support.builders import ROOT, v1_config, v2_config

from dflash_gguf.errors import ModelError
from dflash_gguf.model.config import ConfigReading, spec_from_config

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
BACKBONE = {key: value for key, value in v2_config().items() if key not in {"architectures", "dflash_config"}}
DEFAULTED = ("head_dim", "num_key_value_heads", "rms_norm_eps", "rope_parameters", "max_position_embeddings")


def read(config: dict[str, Any], target: dict[str, Any] | None = None) -> ConfigReading:
    return spec_from_config(config, target, where="config.json")


def speculators(backbone: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    nested = v2_config()["dflash_config"]
    taps = [item + 1 for item in nested.pop("target_layer_ids")]
    flat = {"architectures": ["DFlash2DraftModel"], "aux_hidden_state_layer_ids": taps, **nested}
    return {**flat, "transformer_layer_config": {**copy.deepcopy(BACKBONE), **(backbone or {})}, **top}


def z_lab(nested: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    config = {**v2_config(), **top}
    config["dflash_config"].update(nested or {})
    return config


def deepspec(**changes: Any) -> dict[str, Any]:
    config = v1_config()
    nested = config.pop("dflash_config")
    return {**config, **nested, "markov_rank": 0, "num_anchors": 512, **changes}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "anchor, speculators' top": (speculators(sample_from_anchor=True), "shifted by one"),
    "anchor, backbone": (speculators({"sample_from_anchor": True}), "in transformer_layer_config"),
    "query zero": (z_lab({"query_zero_predicts_next": True}), "query_zero_predicts_next is True in dflash_config"),
    "shift_label": (speculators(shift_label=True), "shift_label is True"),
    "DeepSpec relabelled": (deepspec(), "DeepSpec config"),
    "two rope kinds": (
        z_lab(rope_scaling=YARN),
        "rope_type is 'default' in rope_parameters but 'yarn' in rope_scaling",
    ),
    "two partial factors": (
        z_lab(partial_rotary_factor=1.0, rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        "partial_rotary_factor is 0.5 in rope_parameters but 1.0 in the top level",
    ),
    "two thetas": (z_lab(rope_theta=5e5), "rope_theta is 10000.0 in rope_parameters but 500000.0"),
    "two types in one rope": (
        z_lab(rope_parameters={"rope_theta": 1e4, "type": "linear", "rope_type": "default"}),
        "rope_type is 'linear'",
    ),
    "two mask tokens": (speculators({"mask_token_id": 5}), "mask_token_id is 2030 at the top level but 5"),
    "two block sizes": (speculators({"block_size": 5}), "block_size is 8 at the top level but 5"),
    "two vocab sizes": (z_lab({"vocab_size": 5}), "vocab_size"),
    "two soft caps": (z_lab({"final_logit_softcapping": 5.0}, final_logit_softcapping=6.0), "softcapping is 5.0"),
    "sliding layers that must not slide": (z_lab(use_sliding_window=False), "use_sliding_window is false"),
    "every layer slides, causal twice": (
        speculators({"layer_types": ["sliding_attention"] * 2}, sliding_window_non_causal=False, is_causal=False),
        "every layer slides",
    ),
    "experts": (z_lab(num_experts=8), "experts"),
    "magnitude": (z_lab(rope_parameters={"rope_theta": 1e4, "mscale_all_dim": 1.0}), "magnitude"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    config, complaint = REFUSED[name]
    with pytest.raises(ModelError) as caught:
        read(config)
    assert complaint in str(caught.value)


def test_unknown_keys_of_every_place_are_one_warning() -> None:
    config = speculators({"b": 1, "rope_parameters": {"rope_theta": 1e4, "c": 1}}, a=1)
    reading = read(config)
    assert reading.unknown == ("a", "transformer_layer_config.b", "transformer_layer_config.rope_parameters.c")
    assert [line for line in reading.warnings if "nothing here reads" in line] == [reading.warnings[-1]]
    assert read(z_lab({"d": 1, "e": None})).unknown == ("dflash_config.d",)


def test_mixed_sliding_layers_warn_of_one_causal_flag() -> None:
    reading = read(speculators(sliding_window_non_causal=False))
    assert any("sliding_window_non_causal" in line for line in reading.warnings)


def test_a_draft_that_slides_everywhere_is_causal() -> None:
    config = speculators({"layer_types": ["sliding_attention"] * 2}, sliding_window_non_causal=False)
    del config["transformer_layer_config"]["is_causal"]
    assert read(config).spec.causal is True


def test_sliding_layers_without_the_flag_warn() -> None:
    config = z_lab()
    del config["use_sliding_window"]
    assert any("use_sliding_window is absent" in line for line in read(config).warnings)


def test_a_draft_vocabulary_of_0_is_not_reduced() -> None:
    assert read(z_lab(draft_vocab_size=0)).spec == read(z_lab()).spec


def test_absent_keys_are_the_defaults_of_the_class() -> None:
    reading = read({key: value for key, value in z_lab(num_attention_heads=32).items() if key not in DEFAULTED})
    spec = reading.spec
    assert (spec.key_length, spec.head_count_kv, spec.layer_norm_rms_epsilon) == (128, 32, 1e-6)
    assert (spec.rope_freq_base, spec.context_length) == (10000.0, 32768)
    assert any("head_dim 128, num_key_value_heads 32, rms_norm_eps 1e-06" in line for line in reading.warnings)


def test_an_absent_sliding_window_non_causal_is_what_speculators_class_says() -> None:
    backbone = {"layer_types": ["sliding_attention"] * 2}
    v1 = speculators(backbone, architectures=["DFlashDraftModel"], speculators_model_type="dflash")
    v1 = {key: value for key, value in v1.items() if not key.startswith(("conv_", "selector_"))}
    del v1["transformer_layer_config"]["is_causal"]
    assert read(v1).spec.causal is True
    assert read(speculators(backbone, speculators_model_type="dflash2")).spec.causal is False


@pytest.mark.parametrize(
    "path",
    [
        "fixtures/draft/config.json",
        "fixtures/draft-v1/config.json",
        "tests/data/configs/transformers-5.25-dflash2.json",
    ],
)
def test_a_config_that_transformers_wrote_is_read_without_a_word(path: str) -> None:
    assert read(json.loads((ROOT / path).read_text())).warnings == ()
