"""Rows, types and merges. Every expectation was checked against the reference's converter on the same files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tokenizer_targets import Target, load_edited, row, unchanged, values

from dflash_gguf.model.tokenizer.vocabulary import encode_texts


@pytest.mark.parametrize(
    ("text", "normalized", "expected", "kind"),
    [
        ("éé", False, "\ufffd\ufffd", 4),  # Latin-1 letters stand for single bytes
        ("ĠxQz", False, " xQz", 4),
        ("Ã©Ã©", False, "éé", 4),
        ("ÃéÃ", True, "ÃéÃ", 4),
        ("a▁b", False, "a b", 4),
        ("▁▁", True, "  ", 4),
        ("hi there", False, "hi there", 4),
        ("<｜a▁b｜>", False, "<｜a▁b｜>", 3),
        ("<|looks|>", False, "<|looks|>", 3),
        ("<unused7>", False, "<unused7>", 3),
        ("<pad>", False, "<pad>", 3),
        ("<tool>", False, "<tool>", 4),
    ],
)
def test_added_token_text_and_type(tmp_path: Path, text: str, normalized: bool, expected: str, kind: int) -> None:
    tokenizer = load_edited(tmp_path, lambda t: t.add(2026, text, normalized=normalized))
    assert row(tokenizer, 2026) == (expected, kind)


def test_special_flag_makes_control(tmp_path: Path) -> None:
    tokenizer = load_edited(tmp_path, lambda t: t.add(2026, "tool", special=True))
    assert row(tokenizer, 2026) == ("tool", 3)


def test_flags_of_tokenizer_config_win(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        assert target.settings is not None
        target.settings["added_tokens_decoder"]["2014"]["special"] = True

    assert row(load_edited(tmp_path / "edited", edit), 2014) == ("<tool_call>", 3)
    assert row(load_edited(tmp_path / "plain", unchanged), 2014) == ("<tool_call>", 4)


def test_tokens_only_tokenizer_config_has(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        assert target.settings is not None
        target.settings["added_tokens_decoder"]["2026"] = {"content": "<x>", "special": False}

    assert row(load_edited(tmp_path, edit), 2026) == ("<x>", 4)


def test_added_tokens_json_counts_without_a_decoder(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        assert target.settings is not None
        del target.settings["added_tokens_decoder"]
        target.extra["added_tokens.json"] = json.dumps({"<new>": 2026, "<think>": 2024})

    assert row(load_edited(tmp_path, edit), 2026) == ("<new>", 4)


def test_special_tokens_map_counts_without_a_decoder(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        assert target.settings is not None
        del target.settings["added_tokens_decoder"]
        target.extra["special_tokens_map.json"] = json.dumps({"bos_token": "<tool_call>"})

    tokenizer = load_edited(tmp_path, edit)
    assert row(tokenizer, 2014) == ("<tool_call>", 3)
    assert "bos" not in tokenizer.specials


def test_named_special_of_the_base_vocabulary(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        assert target.settings is not None
        target.settings |= {"bos_token": "Ġthe"}

    tokenizer = load_edited(tmp_path, edit)
    assert row(tokenizer, 279) == (" the", 3)
    assert "bos" not in tokenizer.specials  # tokenizer.json does not list it as added


def test_named_special_without_an_id_takes_the_next(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        assert target.settings is not None
        target.settings |= {"bos_token": "<s>", "pad_token": "<p>"}

    tokenizer = load_edited(tmp_path, edit)
    assert [row(tokenizer, i) for i in (2026, 2027, 2028)] == [("<s>", 3), ("<p>", 3), ("[PAD2028]", 5)]
    assert [("'<s>'" in w, "2026" in w) for w in tokenizer.warnings] == [(True, True), (False, False)]


def test_contradicting_ids_keep_tokenizer_json_and_warn(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        assert target.settings is not None
        decoder = target.settings["added_tokens_decoder"]
        decoder["2027"] = decoder.pop("2025")

    tokenizer = load_edited(tmp_path, edit)
    assert row(tokenizer, 2025) == ("</think>", 4)
    assert tokenizer.warnings == ("token '</think>' has id 2025 in tokenizer.json, 2027 elsewhere",)


def test_gap_before_an_added_token_is_padded_with_a_warning(tmp_path: Path) -> None:
    tokenizer = load_edited(tmp_path, lambda t: t.add(2040, "<|gap|>"))
    assert [row(tokenizer, i) for i in (2026, 2039, 2040)] == [("[PAD2026]", 5), ("[PAD2039]", 5), ("<|gap|>", 3)]
    assert tokenizer.defined == 2027
    assert tokenizer.warnings == ("added token '<|gap|>' has id 2040, the tokenizers library gives it 2026",)


def test_added_token_that_the_vocabulary_has_too(tmp_path: Path) -> None:
    assert row(load_edited(tmp_path, lambda t: t.add(279, "Ġthe")), 279) == (" the", 4)


def test_merges_as_strings_or_pairs_are_the_same(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        model = target.tokenizer["model"]
        model["merges"] = [" ".join(pair) for pair in model["merges"]]

    pairs = values(load_edited(tmp_path / "pairs", unchanged))["ggml.merges"]
    strings = values(load_edited(tmp_path / "strings", edit))["ggml.merges"]
    assert pairs == strings
    assert list(pairs.strings())[:2] == ["Ġ Ġ".encode(), "ĠĠ ĠĠ".encode()]


def test_space_inside_a_merge_is_encoded(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        model = target.tokenizer["model"]
        model["vocab"] |= {" ": 2030, " a": 2031}
        model["merges"].append([" ", "a"])

    merges = values(load_edited(tmp_path, edit))["ggml.merges"]
    assert list(merges.strings())[-1] == "Ġ a".encode()


def test_texts_with_a_nul_keep_their_number() -> None:
    assert encode_texts(["a", "b\0c", ""], "x") == [b"a", b"b\0c", b""]


def test_same_files_give_same_bytes(tmp_path: Path) -> None:
    first = load_edited(tmp_path / "a", unchanged)
    second = load_edited(tmp_path / "b", unchanged)
    assert first == second
    assert first.tokens.raw == second.tokens.raw
