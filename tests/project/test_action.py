"""The Action's own script, run as GitHub runs a composite step: bash, strict, inputs in the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.builders import ROOT
from support.faults import FAULTS, NAME, Workshop

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


@dataclass
class Outcome:
    code: int
    stdout: str
    outputs: dict[str, str]
    summary: str


@pytest.fixture
def step(tmp_path: Path) -> Any:
    """Run the step `check` with these inputs."""
    (check,) = [step for step in ACTION["runs"]["steps"] if step.get("id") == "check"]
    folder = tmp_path / "python"
    folder.mkdir()
    (folder / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / "python").chmod(0o755)
    script, output, summary = tmp_path / "step.sh", tmp_path / "output", tmp_path / "summary.md"
    script.write_text(check["run"])

    def call(**inputs: str) -> Outcome:
        values = {name: str(about.get("default", "")) for name, about in ACTION["inputs"].items()}
        values |= {name.replace("_", "-"): value for name, value in inputs.items()}
        environment = {
            variable: values[expression.removeprefix("${{ inputs.").removesuffix(" }}")]
            for variable, expression in check["env"].items()
        }
        output.write_text("")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)],
            env={
                "PATH": f"{folder}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "GITHUB_OUTPUT": str(output),
                "GITHUB_STEP_SUMMARY": str(summary),
                **environment,
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        told = dict(line.split("=", 1) for line in output.read_text().splitlines())
        return Outcome(done.returncode, done.stdout, told, summary.read_text() if summary.exists() else done.stderr)

    return call


def test_a_good_file(shop: Workshop, step: Any) -> None:
    done = step(files=str(shop.root / NAME), target=str(shop.target), data="true")
    assert (done.code, done.outputs) == (0, {"exit-code": "0"}), done
    assert "pass" in done.summary


def test_a_bad_file_fails_the_step_and_writes_sarif(shop: Workshop, step: Any, tmp_path: Path) -> None:
    bad = FAULTS["one_query_is_wider"].make(shop).file
    done = step(files=f"\n  {bad}\n{shop.root / NAME}\n\n", sarif_file="out.sarif")
    assert (done.code, done.outputs) == (1, {"exit-code": "1"}), done
    assert f"::error file={bad},title=TN303::" in done.stdout
    assert "TN303" in done.summary
    (run,) = json.loads((tmp_path / "out.sarif").read_text())["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["TN303"]


def test_warnings_fail_the_step_only_when_asked(shop: Workshop, step: Any) -> None:
    odd = FAULTS["name_without_type"].make(shop).file
    assert step(files=str(odd)).code == 0
    assert step(files=str(odd), fail_on="warn").code == 1
    assert step(files=str(odd), fail_on="warn", ignore="NM601").code == 0


def test_patterns_are_expanded_and_nothing_else_is(shop: Workshop, step: Any, tmp_path: Path) -> None:
    folder = shop.write(shop.parts()).parent
    (folder / "dflash-two words-BF16.gguf").write_bytes(shop.good.encode())
    assert step(files=f"{folder}/*.gguf").code == 0
    evil = "$(touch pwned); touch pwned; `touch pwned`"
    assert step(files=evil, target=evil, select=evil).code == 2
    assert not (tmp_path / "pwned").exists()


def test_nothing_to_check_is_an_error(step: Any) -> None:
    done = step(files=" \n")
    assert (done.code, done.outputs) == (2, {"exit-code": "2"})
    assert done.stdout.startswith("::error ")


def test_inputs_never_become_part_of_a_script() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]
