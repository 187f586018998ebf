"""Every fix: a file with that fault comes out as converting anew gives it, or says what stands in the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.builders import target_config, v1_config, v2_config, write_draft, write_target
from support.builders_gguf import Parts
from support.faults import FAULTS, LAYERS, MASK, NAME, TOKENS, Case, Workshop, quantized

from dflash_gguf.checks import FileReport, Severity, check
from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.errors import UsageError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.patching import patch
from dflash_gguf.patching.fix_context import FIXES

#: faults that no change of a header mends, though their rule has a fix
BEYOND_A_HEADER = {
    "architecture_of_a_target": "another model",
    "no_architecture": "nothing says that it is a draft",
    "f16_file": "its weights are F16",
    "dspark_draft": "a draft of another kind, which runs as it is",
    "kv_heads_that_do_not_divide": "its tensors have that shape",
    "groups_that_do_not_divide": "its tensors have that shape",
    "value_of_nan": "nothing tells the right value",
    "string_not_utf8": "nothing tells the right text",
    "string_that_moves_the_cursor": "nothing tells the right text",
    "string_of_an_array_not_utf8": "nothing tells the right text",
    "layer_ids_below_zero": "no layer is meant by them",
    "token_text_twice": "a token whose text is not the target's",
    "two_tokens_swapped": "another model's vocabulary",
    "two_tokens_swapped_in_the_gguf_of_the_target": "another model's vocabulary",
    "target_with_another_vocabulary_size": "another target",
    "target_with_another_hidden_size": "another target",
    "target_with_fewer_layers": "another target",
    "gguf_of_a_target_with_fewer_layers": "another target",
    "tap_on_the_last_block": "another target",
    "xdrope_target": "nobody knows whether it is needed",
}
#: faults of two keys, each with a rule of its own
ALSO = {"too_many_blocks": ["KV105"]}
FIXABLE = [name for name, fault in FAULTS.items() if fault.rule in FIXES]


def only(file: Path, **options: Any) -> FileReport:
    (report,) = check([file], **options).files
    return report


def fixed(case: Case, shop: Workshop, rules: list[str], out: Path) -> Parts:
    target, source = (case.options.get(key, good) for key, good in (("target", shop.target), ("source", shop.draft)))
    done = patch(case.file, out, fixes=rules, target=target, original=source)
    assert done.sha256
    before, after = Parts.of(case.file), Parts.of(out)
    assert list(before.tensors.values()) == list(after.tensors.values())
    return after


@pytest.mark.parametrize("name", FIXABLE)
def test_a_fault_is_mended_and_nothing_else_changes(shop: Workshop, name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    case = fault.make(shop)
    out = tmp_path / NAME
    after = fixed(case, shop, [fault.rule, *ALSO.get(name, [])], out)
    report = only(out, **case.options)
    if name in BEYOND_A_HEADER:
        assert report.findings
        return
    assert report.findings == (), report.findings
    if fault.rule.startswith(("KV", "TK")) and "source" not in case.options:
        assert after.pairs == expected(shop, name).pairs


def expected(shop: Workshop, name: str) -> Parts:
    """The file as it was before it was broken; where it cannot be told what that was, the nearest that is right."""
    good = shop.parts()
    if name in ("sections_of_the_target", "sections_of_another_head", "three_sections"):
        good.set_array("dflash.rope.dimension_sections", ValueType.INT32, [16, 0, 0, 0])
    if name == "no_provenance":  # that the file was made from just this revision, nobody has proved
        good.remove("general.source.spec_sha256")
    return good


@pytest.mark.parametrize(
    "name", [name for name in FIXABLE if FIXES[FAULTS[name].rule].needs and name not in BEYOND_A_HEADER]
)
def test_without_what_a_fix_needs_nothing_is_guessed(shop: Workshop, name: str, tmp_path: Path) -> None:
    case = FAULTS[name].make(shop)
    out = tmp_path / case.file.name
    if FAULTS[name].rule in ("PR401", "PR402", "PR403", "SR501"):
        with pytest.raises(UsageError, match="needs --"):
            patch(case.file, out, fixes=[FAULTS[name].rule])
        assert not out.exists()
        return
    patch(case.file, out, fixes=[FAULTS[name].rule])
    before, after = Parts.of(case.file).pairs, Parts.of(out).pairs
    good = shop.good.pairs
    for key in after.keys() - before.keys():
        assert after[key] == good[key]
    for key in after.keys() & before.keys():
        assert after[key] in (before[key], good.get(key))


def every_dialect_fault(shop: Workshop) -> Parts:
    """A fork's file: its own architecture and nesting, unshifted ids, its mask key, old names, types and silences."""
    parts = shop.parts()
    prefix = "qwen35-dflash-draft."
    for key in [key for key in parts.pairs if key.startswith("dflash.")]:
        nested = "dflash2." if "selector" in key or "conv" in key else "dflash." if "block_size" in key else ""
        parts.rename(key, prefix + nested + key.removeprefix("dflash."))
    layers = parts.pairs[prefix + "target_layers"].value
    assert isinstance(layers, Array)
    ids = [int(item) - 1 for item in layers.items()]
    parts.rename(prefix + "target_layers", prefix + "target_layer_ids")
    parts.set_array(prefix + "target_layer_ids", ValueType.UINT32, ids)
    parts.set(prefix + "n_target_layers", ValueType.UINT32, len(ids))
    parts.rename(MASK, prefix + "dflash.mask_token_id")
    parts.set("general.architecture", ValueType.STRING, "qwen35-dflash-draft")
    parts.set(prefix + "dflash.block_size", ValueType.UINT64, 8)
    parts.rename_tensor("selector_predecessor.weight", "selector.pred_codebook")
    parts.rename_tensor("blk.0.attn_conv_base", "blk.0.attn_conv_base.weight")
    parts.rename_tensor("enc.output_norm.weight", "dflash.hidden_norm.weight")
    for layer in (0, 1):
        parts.rename_tensor(f"blk.{layer}.ffn_norm.weight", f"blk.{layer}.post_attention_norm.weight")
    parts.set("tokenizer.ggml.pre", ValueType.STRING, "default")
    parts.set("tokenizer.ggml.eot_token_id", ValueType.UINT32, 1 << 20)
    parts.set("general.name", ValueType.STRING, "model")
    parts.set("general.file_type", ValueType.UINT32, 7)
    return parts


def vision_target(shop: Workshop) -> Path:
    rope = {"rope_type": "default", "mrope_section": [6, 5, 5]}
    return write_target(shop.folder() / "Tiny", target_config(rope_parameters=rope))


def test_every_dialect_fault_at_once(shop: Workshop, tmp_path: Path) -> None:
    target, case = vision_target(shop), shop.write(every_dialect_fault(shop))
    pair: dict[str, Any] = {"target": target, "source": shop.draft}
    named = {finding.rule for finding in only(case, **pair).findings}
    assert named == {"KV101"}
    migrated = tmp_path / "1" / NAME
    migrated.parent.mkdir()
    left = patch(case, migrated, fixes=["KV101"]).left
    assert {f.rule for f in left} >= {"TN305", "TK203", "TK204", "KV109", "KV110"}
    report = only(migrated, **pair)
    found = {f.rule for f in report.findings if f.severity is not Severity.NOTE} - {"NM601"}  # its name was right
    assert found == {"TN305", "TK203", "TK204", "KV109", "KV110", "PR403"}, report.findings
    out = tmp_path / NAME
    done = patch(case, out, fixes=["all"], target=target, original=shop.draft)
    assert done.left == ()
    assert {change.rule for change in done.changes} == found | {"KV101"}
    assert only(out, **pair, data=True).findings == ()
    convert(shop.draft, target, ConvertOptions(out=str(tmp_path / "anew.gguf")))
    assert out.read_bytes() == (tmp_path / "anew.gguf").read_bytes()


def test_a_dialect_of_two_minds_is_not_migrated(shop: Workshop, tmp_path: Path) -> None:
    parts = every_dialect_fault(shop).set("qwen35-dflash-draft.block_size", ValueType.UINT32, 16)
    case = shop.write(parts)
    done = patch(case, tmp_path / NAME, fixes=["KV101"])
    assert done.changes == ()
    assert any("block_size is there too, and differs" in f.message for f in done.left)
    mended = tmp_path / "x.gguf"
    done = patch(case, mended, removes=["qwen35-dflash-draft.block_size"], fixes=["KV101"])
    assert "dflash.block_size" in Parts.of(mended).pairs


def test_sections_for_a_vision_target(shop: Workshop, tmp_path: Path) -> None:
    target, out = vision_target(shop), tmp_path / NAME
    done = patch(shop.root / NAME, out, fixes=["PR403"], target=target)
    (change,) = done.changes
    assert (change.rule, change.old, change.new) == ("PR403", "", "dflash.rope.dimension_sections")
    assert only(out, target=target).findings == ()
    assert patch(shop.root / NAME, tmp_path / "same.gguf", fixes=["PR403"], target=shop.target).changes == ()


def test_another_models_vocabulary_is_never_taken(shop: Workshop, tmp_path: Path) -> None:
    tokens = shop.good.strings(TOKENS)
    parts = shop.parts().set_strings(TOKENS, [tokens[1], tokens[0], *tokens[2:]])
    parts.set("tokenizer.ggml.pre", ValueType.STRING, "default")
    case = shop.write(parts)
    done = patch(case, tmp_path / NAME, fixes=["all"], target=shop.target)
    assert {f.rule for f in done.left} >= {"PR401", "TK204"}
    assert done.changes == ()


@pytest.fixture(scope="session")
def v1_shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop.open(tmp_path_factory.mktemp("patching-v1"), v1_config())


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_another_drafts_checkpoint_is_not_taken(
    shop: Workshop, v1_shop: Workshop, version: str, tmp_path: Path
) -> None:
    good, other = (v1_shop, shop) if version == "v1" else (shop, v1_shop)
    file = good.root / NAME
    done = patch(file, tmp_path / NAME, fixes=["all"], original=other.draft)
    assert done.changes == ()
    assert any(finding.rule == "SR501" for finding in done.left)
    wider = write_draft(shop.folder() / "x", v2_config(intermediate_size=192))
    assert patch(shop.root / NAME, tmp_path / NAME, force=True, fixes=["all"], original=wider).changes == ()


def test_a_good_file_is_left_as_it_is(shop: Workshop, v1_shop: Workshop, tmp_path: Path) -> None:
    for number, good in enumerate((shop, v1_shop)):
        out = tmp_path / f"{number}" / NAME
        out.parent.mkdir()
        done = patch(good.root / NAME, out, fixes=["all"], target=good.target, original=good.draft)
        assert (done.changes, done.left) == ((), ())
        assert out.read_bytes() == (good.root / NAME).read_bytes()


@pytest.mark.parametrize("name", [name for name in FIXABLE if FAULTS[name].rule != "PR401"])
def test_a_second_time_there_is_nothing_to_change(shop: Workshop, name: str, tmp_path: Path) -> None:
    case = FAULTS[name].make(shop)
    pair: dict[str, Any] = {"target": shop.target, "original": shop.draft}
    patch(case.file, tmp_path / "1.gguf", fixes=["all"], **pair)
    assert patch(tmp_path / "1.gguf", tmp_path / "2.gguf", fixes=["all"], **pair).changes == ()


def test_only_what_is_wrong_is_taken_from_the_target(shop: Workshop, tmp_path: Path) -> None:
    parts = shop.parts().set("tokenizer.chat_template", ValueType.STRING, "{{ mine }}")
    parts.set("tokenizer.chat_template.tool_use", ValueType.STRING, "{{ mine too }}")
    parts.remove("tokenizer.ggml.pre").set("tokenizer.ggml.eos_token_id", ValueType.UINT32, 1 << 20)
    done = patch(shop.write(parts), tmp_path / NAME, fixes=["all"], target=shop.target)
    assert {change.new for change in done.changes} == {"tokenizer.ggml.pre", "tokenizer.ggml.eos_token_id"}
    after = Parts.of(tmp_path / NAME).pairs
    good = shop.good.pairs
    assert {key: after[key] for key in ("tokenizer.ggml.pre", "tokenizer.ggml.eos_token_id")} == {
        key: good[key] for key in ("tokenizer.ggml.pre", "tokenizer.ggml.eos_token_id")
    }


def test_a_vocabulary_cut_short(v1_shop: Workshop, tmp_path: Path) -> None:
    """A DFlash 1 draft has no codebooks: its target or its checkpoint says how many tokens there are."""
    good = v1_shop.good
    parts = v1_shop.parts().set_strings(TOKENS, good.strings(TOKENS)[:1000])
    kinds = good.pairs["tokenizer.ggml.token_type"].value
    assert isinstance(kinds, Array)
    parts.set_array("tokenizer.ggml.token_type", ValueType.INT32, kinds.items()[:1000])
    parts.remove("tokenizer.ggml.merges").set_strings("tokenizer.ggml.merges", good.strings("tokenizer.ggml.merges"))
    for number, given in enumerate(({"target": v1_shop.target}, {"target": v1_shop.target, "original": v1_shop.draft})):
        out = tmp_path / f"{number}" / NAME
        out.parent.mkdir()
        patch(v1_shop.write(parts), out, fixes=["all"], **given)  # type: ignore[arg-type]
        assert Parts.of(out).pairs == good.pairs
    bare = v1_shop.parts()
    bare.remove(*[key for key in bare.pairs if key.startswith("tokenizer.")])
    pair: dict[str, Any] = {"target": v1_shop.target, "original": v1_shop.draft}
    patch(v1_shop.write(bare), tmp_path / NAME, fixes=["all"], **pair)
    assert Parts.of(tmp_path / NAME).pairs == good.pairs


def test_a_dialect_of_many_keys(shop: Workshop, tmp_path: Path) -> None:
    """The time must not grow with the square of what a file holds."""
    parts = every_dialect_fault(shop)
    for number in range(10_000):
        parts.pairs[f"qwen35-dflash-draft.x{number}"] = MetaValue(ValueType.UINT8, 1)
    patch(shop.write(parts), tmp_path / NAME, fixes=["KV101"])
    assert "dflash.x9999" in Parts.of(tmp_path / NAME).pairs


@pytest.mark.parametrize(("recipe", "number"), [("q8_0", 7), ("q4_k_m", 15), ("q5_0", 8), ("f32", 0)])
def test_a_label_follows_the_types(shop: Workshop, recipe: str, number: int, tmp_path: Path) -> None:
    parts = quantized(shop, recipe).set("general.file_type", ValueType.UINT32, 32)
    out = tmp_path / NAME
    patch(shop.write(parts), out, fixes=["KV109"])
    assert Parts.of(out).pairs["general.file_type"].value == number


def test_layers_that_are_off_by_one(shop: Workshop, tmp_path: Path) -> None:
    case = shop.write(shop.parts().set_array(LAYERS, ValueType.INT32, [0, 1, 3]))
    out = tmp_path / NAME
    patch(case, out, fixes=["KV104"], original=shop.draft)
    assert Parts.of(out).pairs == shop.good.pairs


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("TN304", "no change of a header mends it"),
        ("PR403", "needs --target"),
        ("SR501", "needs --source"),
        ("KV1O1", "no rule is called"),
        ("XX", "no rule is called"),
    ],
)
def test_fixes_that_cannot_be(shop: Workshop, word: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        patch(shop.root / NAME, tmp_path / NAME, fixes=[word])
    assert not (tmp_path / NAME).exists()
