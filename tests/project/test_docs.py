"""The pages say what the code does."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.builders import ROOT
from support.builders_gguf import Parts
from support.executor_fixture import FIXTURES
from support.faults import Workshop

from dflash_gguf.checks import check
from dflash_gguf.checks.rules import all_rules
from dflash_gguf.formats.gguf.types import ValueType

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
_COMMAND = re.compile(r"^    (?:\$ )?(dflash-gguf (?:.*\\\n)*.*)$", re.MULTILINE)
#: what needs the Hub, the engine or somebody's files
_ELSEWHERE = re.compile(r"path/to|z-lab/|hf://|org/drafts|dflash-gguf bench|GLM-5\.3-Flash")
_STANDS_FOR = {
    r"\bDRAFT\.gguf\b": "dflash-fixture-target-BF16.gguf",
    r"(?<![-\w])(A|BF16)\.gguf\b": "dflash-fixture-target-BF16.gguf",
    r"(?<![-\w])(B|Q4_K_M)\.gguf\b": "dflash-fixture-target-Q4_K_M.gguf",
    r"--target TARGET\b": "--target fixtures/target",
    r"--source CHECKPOINT\b": "--source fixtures/draft",
    r"--prompts \S+": r"\g<0> -n 8",  # which is quicker
}


def test_the_page_of_rules_is_current() -> None:
    script = runpy.run_path(str(DOCS / "make_rules.py"))
    assert (DOCS / "rules.md").read_text() == script["render"](), "run: python docs/make_rules.py"


def test_hooks_name_commands_that_are_there(shop: Workshop) -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert [hook["entry"].split()[:2] for hook in hooks] == [["dflash-gguf", "check"]] * 2
    path = shop.write(shop.parts())
    (path.parent / "README.md").write_text("81 tensors")
    (file,) = check([path.parent / "README.md"], select=["NM602"]).files
    assert [finding.rule for finding in file.findings] == ["NM602"]


def commands() -> list[str]:
    """Every command of the pages that can be run on the trained pair, in the order of a reader."""
    found = [match[1] for page in PAGES for match in _COMMAND.finditer(page.read_text(encoding="utf-8"))]
    return [command for command in found if not _ELSEWHERE.search(command)]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of somebody who follows the README."""
    work = tmp_path_factory.mktemp("reader")
    (work / "fixtures").symlink_to(FIXTURES)
    shown(work, commands()[0])
    good = Parts.of(work / "dflash-fixture-target-BF16.gguf")
    old = Parts.of(work / "dflash-fixture-target-Q4_K_M.gguf").remove("tokenizer.ggml.pre")
    old.rename_tensor("selector_predecessor.weight", "selector.pred_codebook")
    (work / "old.gguf").write_bytes(old.set("general.architecture", ValueType.STRING, "dflash-draft").encode())
    (work / "broken.gguf").write_bytes(good.set_array("dflash.target_layers", ValueType.INT32, [0, 1, 2]).encode())
    return work


def shown(work: Path, command: str) -> tuple[int, str, str]:
    """Run one, as bash would."""
    for pattern, path in _STANDS_FOR.items():
        command = re.sub(pattern, path, command)
    start = f'dflash-gguf() {{ "{sys.executable}" -m dflash_gguf "$@"; }}; '
    done = subprocess.run(
        ["bash", "-c", start + command],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_every_command_works(reader: Path) -> None:
    ran = commands()[1:]
    assert len(ran) >= 14
    for command in ran:
        code, out, err = shown(reader, command)
        if "sample_from_anchor" in command:
            assert (code, "has no key" in err) == (2, True)
        elif "broken.gguf" in command:
            assert (code, err) == (1, "")
        else:
            assert (code, bool(out or "--out" in command), err) == (0, True, ""), command


def test_transcripts_are_what_is_printed(reader: Path) -> None:
    """But for long lines, which are wrapped, and what `…` stands for."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^    \$ (dflash-gguf .*)\n((?:    .*\n)+)", text, re.MULTILINE)
    assert [command.split()[1] for command, _ in found] == ["convert", "inspect", "check", "patch"]
    for command, lines in found:
        _, out, _ = shown(reader, command + (" --force" if re.search(r"convert|patch", command) else ""))
        expected, printed = " ".join(lines.split()), " ".join(out.split())
        kept = [part.strip() for cut in expected.split("…") for part in re.split(r" (?=error |at run time: )", cut)]
        assert all(part in printed for part in kept), command
        assert "…" in expected or printed == expected, command


def test_the_number_of_rules_is_told() -> None:
    assert f"`check` knows [{len(all_rules())} ways](docs/rules.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
