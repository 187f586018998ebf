"""Recipes: the type of every tensor for 1 to 12 layers, as a snapshot; fallbacks and overrides."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import pytest
from support.builders import ROOT, spec_of, v1_config, v2_config

from dflash_gguf.errors import ModelError, UsageError
from dflash_gguf.formats.gguf.types import GGMLType
from dflash_gguf.model.recipe import RECIPES, choose_types, parse_override
from dflash_gguf.model.tensors import draft_tensors

SNAPSHOT = ROOT / "tests/data/recipes.json"


def tensors_of(version: int, layers: int, *, own: bool) -> list[tuple[str, tuple[int, ...]]]:
    make = v2_config if version == 2 else v1_config
    sizes: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": layers}
    if version == 2:
        sizes["selector_rank"] = 256
    table = draft_tensors(spec_of(make(**sizes, layer_types=["full_attention"] * layers, head_dim=128)))
    named = {t.gguf_name: t.ne for t in table if not t.optional}
    if own:
        named |= {"token_embd.weight": (512, 2048), "output.weight": (512, 2048)}
    return list(named.items())


def summary(version: int, layers: int, recipe: str, *, own: bool) -> dict[str, Any]:
    """How many tensors have each type, and every matrix whose type is not the recipe's own."""
    tensors = tensors_of(version, layers, own=own)
    choices = choose_types(tensors, recipe, block_count=layers)
    others = {
        name: choice.type.name
        for (name, _), choice in zip(tensors, choices, strict=True)
        if choice.type not in (RECIPES[recipe], GGMLType.F32)
    }
    counts = Counter(choice.type.name for choice in choices)
    return {"counts": dict(sorted(counts.items())), "others": others}


def all_summaries() -> dict[str, Any]:
    return {
        f"{recipe} v{version} L={layers}{' own' if own else ''}": summary(version, layers, recipe, own=own)
        for recipe in RECIPES
        for version in (1, 2)
        for layers in range(1, 13)
        for own in (False, True)
    }


def test_every_type_is_as_in_the_snapshot() -> None:
    found = all_summaries()
    if os.environ.get("DFLASH_UPDATE_SNAPSHOTS"):
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
        SNAPSHOT.write_text("{\n" + lines + "\n}\n")
    assert found == json.loads(SNAPSHOT.read_text())


@pytest.mark.parametrize(
    ("layers", "more"),
    [(1, {0}), (2, {1}), (5, {2, 4}), (6, {2, 5}), (8, {0, 3, 6, 7}), (12, {0, 3, 6, 9, 10, 11})],
)
def test_layers_with_more_bits(layers: int, more: set[int]) -> None:
    # the rule worked out by hand: i < L/8, i ≥ 7L/8, or (i − L/8) % 3 = 2, all in whole numbers
    others = summary(2, layers, "q4_k_m", own=False)["others"]
    assert others == {f"blk.{i}.{kind}.weight": "Q6_K" for i in sorted(more) for kind in ("attn_v", "ffn_down")}


def test_output_head_and_tied_embedding() -> None:
    both = summary(1, 2, "q4_k_m", own=True)["others"]
    assert both["output.weight"] == "Q6_K"
    assert "token_embd.weight" not in both
    tied = [("token_embd.weight", (512, 2048))]
    assert choose_types(tied, "q4_k_m", block_count=1)[0].type is GGMLType.Q6_K
    assert choose_types(tied, "q8_0", block_count=1)[0].type is GGMLType.Q8_0


@pytest.mark.parametrize(
    ("recipe", "row", "expected"),
    [
        ("q4_k_m", 256, GGMLType.Q4_K),
        ("q4_k_m", 288, GGMLType.Q5_0),
        ("q4_k_m", 48, GGMLType.F16),
        ("q5_k_m", 288, GGMLType.Q5_1),
        ("q6_k", 288, GGMLType.Q8_0),
        ("q8_0", 48, GGMLType.F16),
        ("q4_0", 48, GGMLType.F16),
        ("bf16", 7, GGMLType.BF16),
    ],
)
def test_fallbacks(recipe: str, row: int, expected: GGMLType) -> None:
    choice = choose_types([("fc.weight", (row, 4))], recipe, block_count=1)[0]
    assert choice.type is expected
    assert choice.reason.startswith("fallback") == (expected is not RECIPES[recipe])
    if expected is not RECIPES[recipe]:
        with pytest.raises(ModelError, match=f"a row of {row} is not a multiple"):
            choose_types([("fc.weight", (row, 4))], recipe, block_count=1, fallback=False)


def test_overrides() -> None:
    tensors = [("blk.0.attn_q.weight", (256, 4)), ("blk.0.attn_k.weight", (256, 4)), ("output_norm.weight", (256,))]
    overrides = [parse_override(r"attn_q=q8_0"), parse_override(r"attn_.\.weight=Q6_K")]
    choices = choose_types(tensors, "q4_k_m", block_count=1, overrides=overrides)
    assert [choice.type.name for choice in choices] == ["Q8_0", "Q6_K", "F32"]
    with pytest.raises(UsageError, match="matches no matrix"):
        choose_types(tensors, "q4_k_m", block_count=1, overrides=[parse_override("norm=q8_0")])
    for text in ("attn_q", "=q8_0", "attn_q=q3", "(=q8_0"):
        with pytest.raises(UsageError, match="--tensor-type"):
            parse_override(text)
