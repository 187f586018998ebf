"""A draft that is given where its target belongs: each command says so, in one line, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.builders import target_config, write_target
from support.builders_gguf import Parts
from support.processes import Run

from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.errors import ModelError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.model.config import is_draft_architecture
from dflash_gguf.model.target import open_target
from dflash_gguf.presenting.launch import LaunchDraft, launch

FEATURES = ["--features", "random:4", "--anchor", "1"]
COMMANDS = [
    ["convert", "DRAFT", "--target", "WRONG"],
    ["check", "FILE", "--target", "WRONG"],
    ["draft", "FILE", "--target", "WRONG", *FEATURES],
    ["generate", "FILE", "--target", "WRONG", "--prompt", "x"],
    ["compare", "FILE", "FILE", "--target", "WRONG"],
    ["compare", "DRAFT", "DRAFT", "--target", "WRONG"],
    ["compare", "FILE", "FILE", "--target", "WRONG", "--prompts", "PROMPTS"],
    ["launch", "FILE", "--target", "WRONG"],
    ["patch", "FILE", "out.gguf", "--fix", "PR403", "--target", "WRONG"],
]


@pytest.fixture
def words(draft: Path, target: Path) -> dict[str, str]:
    file = draft.parent / "dflash-Tiny-BF16.gguf"
    convert(draft, target, ConvertOptions(out=str(file)))
    prompts = draft.parent / "prompts.json"
    prompts.write_text(json.dumps({"prompts": [{"text": "x"}]}))
    return {"DRAFT": str(draft), "FILE": str(file), "PROMPTS": str(prompts)}


@pytest.mark.parametrize("kind", ["DRAFT", "FILE"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c[:2]) + str(len(c)))
def test_it_is_recognised(run: Run, words: dict[str, str], tmp_path: Path, command: list[str], kind: str) -> None:
    given = {**words, "WRONG": words[kind]}
    done = run(*(given.get(word, word) for word in command))
    assert done.returncode in (1, 2), done.stderr
    assert "is a draft, not a target" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list((tmp_path / "work").iterdir()) == []


def test_bench_recognises_it(words: dict[str, str]) -> None:
    from dflash_gguf.engine.api import _refuse_draft

    with pytest.raises(ModelError, match=r"is a draft, not a target: DFlash draft"):
        _refuse_draft(Path(words["FILE"]))


@pytest.mark.parametrize("name", ["dflash-draft", "dspark", "eagle3", "qwen35-dflash-draft"])
def test_drafts_of_other_kinds_are_none_either(words: dict[str, str], tmp_path: Path, name: str) -> None:
    parts = Parts.of(Path(words["FILE"])).set("general.architecture", ValueType.STRING, name)
    other = tmp_path / "other.gguf"
    other.write_bytes(parts.encode())
    with pytest.raises(ModelError, match="is a draft, not a target"):
        open_target(other)


def test_the_hint_names_what_it_drafts_for(words: dict[str, str], tmp_path: Path) -> None:
    parts = Parts.of(Path(words["FILE"]))
    for key, value in (("organization", "org"), ("name", "Tiny")):
        parts.set(f"general.base_model.0.{key}", ValueType.STRING, value)
    file = tmp_path / "named.gguf"
    file.write_bytes(parts.encode())
    with pytest.raises(ModelError) as caught:
        open_target(file)
    assert caught.value.hint == "its own keys say it drafts for org/Tiny"


def test_targets_are_not_taken_for_drafts(tmp_path: Path) -> None:
    for name in ("Qwen3ForCausalLM", "Eagle2_5_VLForConditionalGeneration", "LlamaForCausalLM", "MuseGlimmerModel"):
        assert not is_draft_architecture(name)
        folder = write_target(tmp_path / name, target_config(architectures=[name]))
        assert open_target(folder).config["architectures"] == [name]
    for name in ("DFlashDraftModel", "MuseGlimmerAssistantModel", "Eagle3DraftModel", "LlamaForCausalLMEagle3"):
        assert is_draft_architecture(name)


def test_launch_takes_a_target_that_is_not_there(words: dict[str, str]) -> None:
    from support.builders import spec_of, v2_config

    made = launch(LaunchDraft("d.gguf", spec_of(v2_config())), "nowhere.gguf")
    assert "nowhere.gguf" in made.lines[0]
