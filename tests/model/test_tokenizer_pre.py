"""`pre` from the structure of tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.tokenizer_targets import FAMILIES, Target, load_edited, unchanged

from dflash_gguf.errors import ModelError, UsageError
from dflash_gguf.model.tokenizer import PRE_NAMES, load_tokenizer, same_pre

FAMILY_NAMES = sorted(path.name for path in FAMILIES.iterdir() if path.is_dir())


def family(folder: Path, name: str, architecture: str | None = None, model: dict[str, Any] | None = None) -> Path:
    """A copy of a hand-made family's directory under another architecture."""
    folder.mkdir(exist_ok=True)
    tokenizer = json.loads((FAMILIES / name / "tokenizer.json").read_text())
    tokenizer["model"] |= model or {}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((FAMILIES / name / "config.json").read_text())
    config = {"architectures": [architecture]} if architecture else config
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def pre_of(folder: Path) -> str:
    return load_tokenizer(folder, vocab_size=16, mask_token_id=12).pre or ""


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_family_is_recognised(name: str) -> None:
    assert pre_of(FAMILIES / name) == name


def test_whole_regexes_are_compared(tmp_path: Path) -> None:
    folder = family(tmp_path, "qwen2")
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace(r"|\\s+(?!\\S)", ""))
    with pytest.raises(ModelError, match=r"unknown way of splitting text: .*--tokenizer-pre NAME"):
        pre_of(folder)


@pytest.mark.parametrize(
    ("structure", "architecture", "ignore_merges", "expected"),
    [
        ("glm4", "Glm4MoeForCausalLM", False, "glm4"),
        ("glm4", "Glm5NextForConditionalGeneration", True, "glm4"),
        ("glm4", "ChatGLMModel", False, "chatglm-bpe"),
        ("glm4", "LlamaForCausalLM", False, "llama-bpe"),
        ("glm4", "SomethingElseForCausalLM", True, "llama-bpe"),
        ("gpt-4o", "MiniMaxM2ForCausalLM", True, "minimax-m2"),
        ("gpt-4o", "Llama4ForConditionalGeneration", True, "llama4"),
        ("gpt-4o", "SomethingElseForCausalLM", True, "gpt-4o"),
    ],
)
def test_architecture_tells_equal_structures_apart(
    tmp_path: Path, structure: str, architecture: str, ignore_merges: bool, expected: str
) -> None:
    folder = family(tmp_path, structure, architecture, {"ignore_merges": ignore_merges})
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for i, text in enumerate(("<|endoftext|>", "[gMASK]", "<|user|>", "<|observation|>")):
        tokenizer["added_tokens"][i:] = [{"id": 6 + i, "content": text, "special": True}]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert pre_of(folder) == expected


def test_model_type_stands_in_for_architectures(tmp_path: Path) -> None:
    folder = family(tmp_path, "glm4")
    (folder / "config.json").write_text(json.dumps({"model_type": "glm4_moe"}))
    assert pre_of(folder) == "glm4"


def test_undecided_family_is_refused(tmp_path: Path) -> None:
    folder = family(tmp_path, "glm4", "SomethingElseForCausalLM", {"ignore_merges": False})
    with pytest.raises(ModelError, match=r"chatglm-bpe, glm4, llama-bpe.*somethingelseforcausallm.*--tokenizer-pre"):
        pre_of(folder)


def test_other_spellings_of_the_same_steps(tmp_path: Path) -> None:
    def edit(target: Target) -> None:
        split, bytes_ = target.tokenizer["pre_tokenizer"]["pretokenizers"]
        regex = split["pattern"]["Regex"].replace(r"\r", "\r").replace(r"\n", "\n")
        contraction = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
        regex = regex.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", contraction)
        split |= {"pattern": {"Regex": regex}, "behavior": "Removed", "invert": True}
        inner = {"type": "Sequence", "pretokenizers": [split]}
        target.tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [inner, bytes_]}
        target.tokenizer["normalizer"] = {"type": "Sequence", "normalizers": []}

    assert load_edited(tmp_path, edit).pre == "qwen2"


STRUCTURES: list[tuple[str, Any, str]] = [
    ("pre_tokenizer", None, "none at all"),
    ("pre_tokenizer", {"type": "Metaspace"}, "Metaspace"),
    ("pre_tokenizer", {"type": "ByteLevel"}, "ByteLevel with a space before with its regex"),
    ("pre_tokenizer", {"type": "Split", "pattern": {"String": "a"}}, "Split"),
    ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Removed"}, "Split 'Removed' False a"),
    ("pre_tokenizer", 7, "without a type"),
    ("normalizer", {"type": "Lowercase"}, "normalizer Lowercase then"),
    ("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend"}]}, "normalizer Prepend"),
]


@pytest.mark.parametrize(("key", "value", "found"), STRUCTURES)
def test_unknown_structure_says_what_was_found(tmp_path: Path, key: str, value: Any, found: str) -> None:
    with pytest.raises(ModelError, match=f"unknown way of splitting text: .*{found}"):
        load_edited(tmp_path, lambda t: t.tokenizer.update({key: value}))


def test_override_names_the_splitter(tmp_path: Path) -> None:
    tokenizer = load_edited(tmp_path, lambda t: t.tokenizer.update(pre_tokenizer=None), pre="kimi-k2")
    assert (tokenizer.pre, tokenizer.warnings) == ("kimi-k2", ())


def test_override_against_the_structure_warns(tmp_path: Path) -> None:
    tokenizer = load_edited(tmp_path / "a", unchanged, pre="llama-bpe")
    assert tokenizer.pre == "llama-bpe"
    assert tokenizer.warnings == ("the target splits text like qwen2, --tokenizer-pre says llama-bpe",)
    assert load_edited(tmp_path / "b", unchanged, pre="deepseek-r1-qwen").warnings == ()


@pytest.mark.parametrize(("name", "hint"), [("qwen-2", "did you mean qwen2"), ("default", ""), ("llama", "llama")])
def test_unknown_override_names_the_nearest(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"no pre-tokenizer '{name}'.*{hint}"):
        load_edited(tmp_path, unchanged, pre=name)


def test_same_pre() -> None:
    assert same_pre("qwen2", "deepseek-r1-qwen")
    assert same_pre("not known", "not known")
    assert not same_pre("qwen2", "qwen35")
    assert not same_pre("glm4", "chatglm-bpe")  # the same regex, other flags
    assert {"qwen2", "qwen35", "glm4", "llama-bpe", "gpt-4o", "deepseek-v3", "minimax-m2", "kimi-k2"} <= PRE_NAMES
