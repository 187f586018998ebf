"""Special ids, add-bos/add-eos flags, chat templates. Expectations are the reference's on the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.tokenizer_targets import Target, load_edited, mini, values

from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array
from dflash_gguf.model.tokenizer import load_tokenizer

A = {"Sequence": {"id": "A", "type_id": 0}}
B = {"Sequence": {"id": "B", "type_id": 0}}
END, START, STOP = ({"SpecialToken": {"id": f"<|{t}|>", "type_id": 0}} for t in ("endoftext", "im_start", "im_end"))
BYTE_LEVEL = {"type": "ByteLevel"}


def template(single: list[Any], pair: list[Any]) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": single, "pair": pair}


def specials(folder: Path, settings: dict[str, Any], post: Any, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """The special ids and flags, in order, of the mini tokenizer with other settings and another post-processor."""
    target = mini()
    assert target.settings is not None
    target.settings |= settings
    target.tokenizer["post_processor"] = post
    target.config |= config or {}
    tokenizer = load_tokenizer(target.write(folder), vocab_size=2100, mask_token_id=2099)
    return {
        key.removeprefix("ggml.").removesuffix("_token").removesuffix("_token_id"): value
        for key, value in values(tokenizer).items()
        if isinstance(value, int) and key != "ggml.mask_token_id"
    }


CASES: dict[str, tuple[dict[str, Any], Any, dict[str, Any], dict[str, Any]]] = {
    "byte level": ({}, BYTE_LEVEL, {}, {"eos": 2002, "padding": 2000, "add_bos": False, "add_eos": False}),
    "no post-processor": ({}, None, {}, {"eos": 2002, "padding": 2000, "add_bos": False}),
    "flags": (
        {"add_bos_token": True, "add_sep_token": True, "add_pad_token": False},
        None,
        {},
        {"eos": 2002, "padding": 2000, "add_bos": True, "add_sep": True},
    ),
    "template with bos": (
        {"bos_token": "<|endoftext|>"},
        template([END, A], [END, A, END, B]),
        {},
        {"bos": 2000, "eos": 2002, "padding": 2000, "add_bos": True, "add_sep": False},
    ),
    "bos known from the template only": (
        {},
        template([END, A], [END, A, B]),
        {},
        {"bos": 2000, "eos": 2002, "padding": 2000, "add_bos": True},
    ),
    "bos as an object never equals a name": (
        {"bos_token": {"content": "<|endoftext|>"}, "cls_token": {"content": "<|endoftext|>"}},
        template([END, A], [END, A, B]),
        {},
        {"bos": 2000, "eos": 2002, "padding": 2000, "add_bos": False},
    ),
    "template with eos": (
        {},
        template([A, STOP], [A, STOP, B, STOP]),
        {},
        {"eos": 2002, "padding": 2000, "add_eos": True, "add_sep": False, "add_bos": False},
    ),
    "another end in the template": (
        {},
        template([A, END], [A, END, B, END]),
        {},
        {"eos": 2000, "padding": 2000, "eot": 2002, "add_eos": True, "add_sep": False, "add_bos": False},
    ),
    "separator": (
        {},
        template([A], [A, STOP, B]),
        {},
        {"eos": 2002, "seperator": 2002, "padding": 2000, "add_sep": True, "add_bos": False},
    ),
    "two separators": (
        {},
        template([START, A, END], [START, A, STOP, END, B, END]),
        {},
        {
            "bos": 2001,
            "eos": 2000,
            "seperator": 2000,
            "padding": 2000,
            "eot": 2002,
            "add_bos": True,
            "add_eos": True,
            "add_sep": True,
        },
    ),
    "cls and sep stand in": (
        {"cls_token": "<|im_start|>", "sep_token": "<|im_end|>", "eos_token": None},
        None,
        {},
        {"bos": 2001, "eos": 2002, "seperator": 2002, "padding": 2000, "add_bos": False},
    ),
    "ids of config.json fill the gaps": (
        {},
        BYTE_LEVEL,
        {"bos_token_id": 3, "eos_token_id": [1, 2], "pad_token_id": 5, "text_config": {"unk_token_id": 7}},
        {"eos": 2002, "padding": 2000, "bos": 3, "unknown": 7, "add_bos": False, "add_eos": False},
    ),
    "a sequence of processors": (
        {},
        {"type": "Sequence", "processors": [BYTE_LEVEL, template([END, A], [END, A, END, B])]},
        {},
        {"bos": 2000, "eos": 2002, "padding": 2000, "add_bos": True, "add_eos": False, "add_sep": False},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ids_and_flags(tmp_path: Path, name: str) -> None:
    settings, post, config, expected = CASES[name]
    found = specials(tmp_path, settings, post, config)
    assert list(found.items()) == list(expected.items())


def test_without_tokenizer_config_only_config_ids(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        target.settings = None
        target.config["eos_token_id"] = 11
        target.tokenizer["post_processor"] = template([END, A, STOP], [A, B])

    found = values(load_edited(tmp_path, edit))
    assert [k for k in found if "token_id" in k or "add_" in k or "chat" in k] == [
        "ggml.eos_token_id",
        "ggml.add_bos_token",
        "ggml.add_eos_token",
        "ggml.mask_token_id",
    ]


GLM_TOKENS = ("[gMASK]", "<|user|>", "<|observation|>")


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("Glm4MoeForCausalLM", {"bos": 2026, "eot": 2027, "unk": 2000, "eom": 2028}),
        ("GlmMoeDsaForCausalLM", {"bos": 2026, "eot": 2027, "unk": 2000, "eom": 2028}),
        ("Glm5NextForConditionalGeneration", {"bos": 2026, "eot": 2027, "unk": 2000, "eom": 2028}),
        ("Glm4ForCausalLM", {"eot": 2027, "unk": 2000, "bos": 2000}),
        ("GlmForCausalLM", {"eot": 2027, "unk": 2000}),
    ],
)
def test_glm_specials(tmp_path: Path, architecture: str, expected: dict[str, int]) -> None:
    def edit(target: Target) -> None:
        assert target.settings is not None
        target.config["architectures"] = [architecture]
        target.settings |= {"eos_token": "<|endoftext|>"}
        for i, text in enumerate(GLM_TOKENS):
            target.add(2026 + i, text, special=True)

    found = load_edited(tmp_path, edit).specials
    assert list(found.items()) == [("eos", 2000), ("pad", 2000), *expected.items(), ("mask", 2099)]


def test_glm_of_text_config(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        target.config = {
            "architectures": ["SomeVisionWrapper"],
            "text_config": {"architectures": ["Glm4MoeForCausalLM"], "eos_token_id": 4},
        }
        for i, text in enumerate(GLM_TOKENS):
            target.add(2026 + i, text, special=True)

    assert load_edited(tmp_path, edit).specials["bos"] == 2026


def test_muse_glimmer_end_of_turn_comes_last(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        target.config["architectures"] = ["MuseGlimmerForConditionalGeneration"]
        target.add(2026, "<|eot|>", special=True)

    assert list(values(load_edited(tmp_path, edit)))[-2:] == ["ggml.eot_token_id", "ggml.mask_token_id"]


def test_llama_writes_add_space_prefix_first(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        target.config["architectures"] = ["LlamaForCausalLM"]

    assert next(iter(values(load_edited(tmp_path, edit)).items())) == ("ggml.add_space_prefix", False)


def test_mask_key_takes_the_place_of_the_targets_own(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        assert target.settings is not None
        target.settings |= {"mask_token": "<|fim_pad|>"}

    tokenizer = load_edited(tmp_path, edit)
    keys = [key for key, _ in tokenizer.key_values]
    assert keys.index("tokenizer.ggml.mask_token_id") < keys.index("tokenizer.ggml.add_bos_token")
    assert (values(tokenizer)["ggml.mask_token_id"], tokenizer.specials["mask"]) == (2099, 2099)


@pytest.mark.parametrize(("mask", "word"), [(2002, "eos"), (2000, "pad")])
def test_mask_equal_to_another_special_warns(tmp_path: Path, mask: int, word: str) -> None:
    tokenizer = load_tokenizer(mini().write(tmp_path), vocab_size=2100, mask_token_id=mask)
    assert tokenizer.warnings == (f"mask_token_id {mask} is also the {word} token",)


def test_flag_against_the_post_processor_warns(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        assert target.settings is not None
        target.settings["add_bos_token"] = True

    (warning,) = load_edited(tmp_path, edit).warnings
    assert warning.startswith("add_bos_token is True in tokenizer_config.json, False by the post_processor")


def test_a_config_id_beyond_the_rows_is_left_out(tmp_path: Path) -> None:
    tokenizer = load_edited(tmp_path, lambda t: t.config.update(bos_token_id=2100))
    assert "tokenizer.ggml.bos_token_id" not in dict(tokenizer.key_values)
    assert tokenizer.warnings == ("bos_token_id is 2100 in config.json, beyond the vocabulary of 2100 rows: left out",)


def test_unread_post_processor_warns(tmp_path: Path) -> None:
    (warning,) = load_edited(tmp_path, lambda t: t.tokenizer.update(post_processor={"type": "Bert"})).warnings
    assert "'Bert'" in warning


NAMED = [{"name": "default", "template": "X"}, {"name": "tool use", "template": "Y"}]
UNSET = "unset"
TEMPLATES: list[tuple[Any, dict[str, str], dict[str, str]]] = [
    ("T", {"chat_template.jinja": "J"}, {"chat_template": "T"}),
    (None, {"chat_template.jinja": "J"}, {}),
    (UNSET, {"chat_template.jinja": "J", "chat_template.json": '{"chat_template": "K"}'}, {"chat_template": "J"}),
    (UNSET, {"chat_template.json": '{"chat_template": "K"}'}, {"chat_template": "K"}),
    (UNSET, {}, {}),
    (NAMED, {}, {"chat_template.tool_use": "Y", "chat_template": "X"}),
    (NAMED[1:], {}, {"chat_template.tool_use": "Y"}),
    (
        UNSET,
        {"chat_template.jinja": "J", "additional_chat_templates/rag.jinja": "R"},
        {"chat_template.rag": "R", "chat_template": "J"},
    ),
]


@pytest.mark.parametrize(("setting", "extra", "expected"), TEMPLATES)
def test_chat_template(tmp_path: Path, setting: Any, extra: dict[str, str], expected: dict[str, str]) -> None:
    def edit(target: Target) -> None:
        assert target.settings is not None
        target.settings["chat_template"] = setting
        if setting == UNSET:
            del target.settings["chat_template"]
        target.extra |= extra

    found = {key: value for key, value in values(load_edited(tmp_path, edit)).items() if key.startswith("chat")}
    names = sorted(key.partition(".")[2] for key in expected if "." in key)
    assert found.pop("chat_templates", Array.of(ValueType.STRING, [])) == Array.of(ValueType.STRING, names)
    assert list(found.items()) == list(expected.items())


def test_template_of_another_type_is_left_out_with_a_warning(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        assert target.settings is not None
        target.settings["chat_template"] = 5

    tokenizer = load_edited(tmp_path, edit)
    assert "chat_template" not in values(tokenizer)
    assert tokenizer.warnings == ("chat_template is neither a text nor a list of named ones: left out",)


def test_template_is_never_run(tmp_path: Path) -> None:
    text = "{{ cycler.__init__.__globals__.os.system('touch PWNED') }}"

    def edit(target: Target) -> None:
        target.extra["chat_template.jinja"] = text
        assert target.settings is not None
        del target.settings["chat_template"]

    assert values(load_edited(tmp_path, edit))["chat_template"] == text
    assert not (tmp_path / "PWNED").exists()
    assert json.loads((tmp_path / "config.json").read_text())
