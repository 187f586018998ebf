"""Lines that start an engine: what they hold, and that the engine takes them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.builders import spec_of, v1_config, v2_config
from support.builders_gguf import Parts
from support.executor_fixture import FIXTURES
from support.processes import Run

from dflash_gguf.errors import UsageError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.presenting.launch import ENGINES, Launch, LaunchDraft, launch

V2 = LaunchDraft("dflash-Tiny-BF16.gguf", spec_of(v2_config()), "org/Tiny-DFlash2", "org/Tiny")
V1 = replace(V2, spec=spec_of(v1_config(block_size=16)))
HUB = replace(V2, file="hf://org/Tiny-DFlash2-GGUF@" + "0" * 40 + "/files/dflash-Tiny-BF16.gguf")

#: draft, target, p_min → what llama-server has to understand
LINES: list[tuple[LaunchDraft, str, float | None, dict[str, Any]]] = [
    (V2, "target.gguf", None, {"model": "target.gguf", "n_max": 7, "p_min": 0.0}),
    (V1, "models/a target's.gguf", 0.25, {"model": "models/a target's.gguf", "n_max": 15, "p_min": 0.25}),
    (V2, "org/Tiny-GGUF:Q4_K_M", None, {"hf_repo": "org/Tiny-GGUF:Q4_K_M", "n_max": 7}),
    (V2, "hf://org/Tiny-GGUF", None, {"hf_repo": "org/Tiny-GGUF"}),
    (replace(V2, file="my draft;x.gguf"), "t.gguf", None, {"draft": "my draft;x.gguf"}),
    (V2, "hf://org/Tiny-GGUF/files/t.gguf", None, {"model": "files/t.gguf"}),
    (HUB, "t.gguf", None, {"draft": "files/dflash-Tiny-BF16.gguf"}),
]


def server_words(made: Launch) -> list[str]:
    return shlex.split(made.lines[-1])


@pytest.mark.parametrize("case", LINES)
def test_lines_hold_options_that_the_engine_has(case: tuple[LaunchDraft, str, float | None, dict[str, Any]]) -> None:
    """Against the list of facts, for where the engine is not installed."""
    draft, target, p_min, _ = case
    facts = json.loads((Path(__file__).parents[1] / "data/llama_options.json").read_text(encoding="utf-8"))
    program, *words = server_words(launch(draft, target, "llama.cpp", p_min))
    assert program == "llama-server"
    assert len(words) % 2 == 0
    values = dict(zip(words[::2], words[1::2], strict=True))
    for option, value in values.items():
        kind = facts["options"][option]
        assert {"text": str, "number": int, "real": float, "types": str}[kind](value) is not None
    assert values["--spec-type"] in facts["spec_types"]
    assert values["--spec-draft-n-max"] == str(draft.spec.block_size - 1)
    assert ("--spec-draft-p-min" in values) is (p_min is not None)


@pytest.mark.engine
@pytest.mark.parametrize("case", LINES)
def test_the_engine_takes_the_lines(case: tuple[LaunchDraft, str, float | None, dict[str, Any]]) -> None:
    pytest.importorskip("xllamacpp")
    draft, target, p_min, expected = case
    understood = ask_parser(server_words(launch(draft, target, "llama.cpp", p_min)))
    assert understood["server"]
    assert understood["taken"]
    assert "COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH" in understood["types"]
    assert {key: understood[key] for key in expected} == expected


@pytest.mark.engine
def test_the_engine_refuses_what_it_has_not() -> None:
    pytest.importorskip("xllamacpp")
    words = server_words(launch(V2, "t.gguf"))
    assert not ask_parser([word.replace("n-max", "max-n") for word in words])["taken"]
    assert not ask_parser([word.replace("draft-dflash", "dflash2") for word in words])["taken"]


def ask_parser(words: list[str]) -> dict[str, Any]:
    command: list[str | Path] = [sys.executable, Path(__file__).parents[1] / "support/engine_options.py", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    lines = [line for line in done.stdout.splitlines() if line.startswith("UNDERSTOOD ")]
    assert lines, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("UNDERSTOOD "))
    return result


def test_notes_name_the_oldest_engine_and_what_not_to_combine() -> None:
    for draft, number in ((V1, "#22105"), (V2, "#27342")):
        notes = "\n".join(launch(draft, "t.gguf").notes)
        assert number in notes
        assert "draft-mtp" in notes


def test_a_draft_on_the_hub_is_downloaded_at_its_commit() -> None:
    made = launch(HUB, "t.gguf")
    path, commit = "files/dflash-Tiny-BF16.gguf", "0" * 40
    assert shlex.split(made.lines[0])[:4] == ["hf", "download", "org/Tiny-DFlash2-GGUF", path]
    assert commit in made.lines[0]


def test_vllm_and_sglang_read_the_checkpoint() -> None:
    words = shlex.split(launch(V2, "t.gguf", "vllm").lines[0])
    assert words[:3] == ["vllm", "serve", "org/Tiny"]
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config == {"method": "dflash", "model": "org/Tiny-DFlash2", "num_speculative_tokens": 7}
    words = shlex.split(launch(V2, "some/Target", "sglang").lines[0])
    assert words[words.index("--model-path") + 1] == "some/Target"
    assert words[words.index("--speculative-draft-model-path") + 1] == "org/Tiny-DFlash2"
    unknown = launch(replace(V2, source_repo=None), "some/Target", "sglang")
    assert "DRAFT_CHECKPOINT" in unknown.lines[0]
    assert any("DRAFT_CHECKPOINT" in note for note in unknown.notes)


def test_no_line_is_invented_for_ollama() -> None:
    made = launch(V2, "t.gguf", "ollama")
    assert made.lines == ()
    assert any("17865" in note for note in made.notes)


@pytest.mark.parametrize(
    ("target", "engine", "p_min", "where"),
    [
        ("t.gguf", "lmstudio", None, "--engine"),
        ("t.gguf", "llama.cpp", 1.5, "--p-min"),
        ("t.gguf", "vllm", 0.5, "--p-min"),
        (".", "llama.cpp", None, "--target"),
        ("org/T@main", "llama.cpp", None, "revision"),
        ("org/T@main", "vllm", None, "revision"),
    ],
)
def test_what_is_refused(target: str, engine: str, p_min: float | None, where: str) -> None:
    with pytest.raises(UsageError, match=where):
        launch(V2, target, engine, p_min)


def test_the_command(files: dict[str, Path], run: Run) -> None:
    done = run("launch", files["q8_0"], "--target", "t.gguf")
    line, *notes = done.stdout.splitlines()
    assert shlex.split(line)[-2:] == ["--spec-draft-n-max", "7"]
    assert notes
    assert all(note.startswith("# ") for note in notes)
    for engine in ENGINES:
        answer = json.loads(run("launch", files["q8_0"], "--target", "org/T", "--engine", engine, "--json").stdout)
        assert (answer["schema_version"], answer["engine"], answer["n_max"]) == (1, engine, 7)
    target = run("launch", Path(__file__), "--target", "t.gguf")
    assert target.returncode == 1
    assert "not a GGUF" in target.stderr


@pytest.mark.parametrize(
    ("architecture", "step"),
    [
        ("qwen3-dflash-draft", "a fork's dialect: dflash-gguf patch IN OUT --fix all"),
        ("qwen3", "dflash-gguf inspect FILE"),
    ],
)
def test_another_architecture_names_the_file_and_the_next_step(
    architecture: str, step: str, files: dict[str, Path], tmp_path: Path, run: Run
) -> None:
    file = tmp_path / "fork.gguf"
    file.write_bytes(Parts.of(files["bf16"]).set("general.architecture", ValueType.STRING, architecture).encode())
    told = f"error: {file}: general.architecture: is '{architecture}', expected 'dflash' ({step})\n"
    target = FIXTURES / "target"
    for command in (
        ("launch", file, "--target", "t.gguf"),
        ("draft", file, "--target", target, "--features", tmp_path / "f.npy", "--anchor", "1"),
        ("generate", file, "--target", target, "--prompt", "hi"),
        ("quantize", file, tmp_path / "q.gguf", "--type", "q8_0"),
    ):
        done = run(*command)
        assert (done.returncode, done.stderr) == (1, told), command
