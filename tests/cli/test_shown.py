"""What is shown of a file: everything that was asked for, and JSON that a strict parser takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.builders import ROOT
from support.builders_gguf import Parts
from support.processes import Run

from dflash_gguf.checks import CheckReport, FileReport, Finding, Severity
from dflash_gguf.checks.render import FORMATS, renderer
from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.errors import ModelError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import MetaValue
from dflash_gguf.mxfp8.checkpoint_plan import json_bytes
from dflash_gguf.wording import json_line, safe

BROKEN = b"caf\xe9\xff".decode("utf-8", "surrogateescape")


@pytest.fixture
def file(draft: Path, target: Path, tmp_path: Path) -> Path:
    path = tmp_path / "dflash-Tiny-BF16.gguf"
    convert(draft, target, ConvertOptions(out=str(path)))
    return path


def strict(text: str) -> Any:
    """A JSON document as a parser reads it that refuses what UTF-8 cannot hold, and NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    document = json.loads(text, parse_constant=refuse)
    json.dumps(document, ensure_ascii=False).encode()
    return document


def test_json_line() -> None:
    document = {"a": BROKEN, BROKEN: [float("nan"), 1.5, (BROKEN, None)], "smile": "\N{GRINNING FACE}"}
    shown = strict(json_line(document))
    assert shown == {
        "a": "caf\\udce9\\udcff",
        "caf\\udce9\\udcff": [None, 1.5, ["caf\\udce9\\udcff", None]],
        "smile": "\N{GRINNING FACE}",
    }
    assert shown["a"] == safe(BROKEN)  # as a terminal shows it


def test_every_command_s_json_is_strict(run: Run, file: Path, target: Path) -> None:
    parts = Parts.of(file)
    parts.rename_tensor("fc.weight", BROKEN)
    tokens = parts.strings("tokenizer.ggml.tokens")
    parts.set_strings("tokenizer.ggml.tokens", [b"\xff\xfe", *tokens[1:]])
    parts.set("general.name", ValueType.STRING, "x").set_strings("some.texts", [b"\xff"])
    bad = file.with_name("bad.gguf")
    bad.write_bytes(parts.encode().replace(b"\x01\0\0\0\0\0\0\0x", b"\x01\0\0\0\0\0\0\0\xff"))
    for command in (
        ["inspect", bad, "--json", "--tokens"],
        ["inspect", bad, "--json", "--key", "general.name"],
        ["inspect", bad, "--json", "--key", "some.texts"],
        ["diff", bad, file, "--json"],
        ["check", bad, "--target", target, "--json"],
        ["check", bad, "--target", target, "--format", "sarif"],
    ):
        done = run(*command)
        strict(done.stdout)
        assert "udc" in done.stdout or command[0] == "diff", command


@pytest.mark.parametrize("name", FORMATS)
def test_renderers_of_hostile_reports(name: str) -> None:
    finding = Finding("KV101", Severity.ERROR, BROKEN, BROKEN, BROKEN)
    error = ModelError(BROKEN, where=BROKEN)
    report = CheckReport((FileReport(BROKEN, (finding,), (BROKEN,)), FileReport(BROKEN, error=error)))
    text = renderer(name)(report)
    text.encode()
    if name in ("json", "sarif"):
        strict(text)


def test_a_copied_config_keeps_its_escapes(tmp_path: Path) -> None:
    assert json.loads(json_bytes({"x": "\ud800"})) == {"x": "\ud800"}
    assert b'"\\ud800"' in json_bytes({"x": "\ud800"})


def both(done: subprocess.CompletedProcess[str]) -> tuple[bool, bool, bool]:
    """Whether the page, the tensors, the tokens are there."""
    lines = done.stdout.splitlines()
    return (
        any(line.startswith("  target_layers") for line in lines),
        any(line.startswith("fc.weight") for line in lines),
        any(line.startswith("2047\t") for line in lines),
    )


def test_inspect_shows_all_that_is_asked_for(run: Run, file: Path) -> None:
    assert both(run("inspect", file)) == (True, False, False)
    assert both(run("inspect", file, "--tokens")) == (False, False, True)
    assert both(run("inspect", file, "--tensors")) == (True, True, False)
    assert both(run("inspect", file, "--tensors", "--tokens")) == (True, True, True)
    keyed = run("inspect", file, "--key", "dflash.block_size", "--tensors", "--tokens")
    assert (keyed.stdout.splitlines()[0], both(keyed)) == ("8", (False, True, True))


def test_inspect_json_holds_all_that_is_asked_for(run: Run, file: Path) -> None:
    plain = strict(run("inspect", file, "--json").stdout)
    assert "tokens" not in plain
    whole = strict(run("inspect", file, "--json", "--tensors", "--tokens").stdout)
    assert {key: value for key, value in whole.items() if key != "tokens"} == plain
    assert len(whole["tokens"]) == 2048
    text = run("inspect", file, "--tokens").stdout.splitlines()
    for token in (whole["tokens"][0], whole["tokens"][-1]):
        assert text[token["id"]] == f"{token['id']}\t{token['type']}\t{safe(token['text'])}"
    keyed = strict(run("inspect", file, "--json", "--key", "dflash.block_size", "--tensors", "--tokens").stdout)
    assert (keyed["value"], keyed["tensors"], keyed["tokens"]) == (8, plain["tensors"], whole["tokens"])


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["é".encode(), b"\xff"])
def test_a_string_that_is_most_of_the_file(tmp_path: Path, unit: bytes) -> None:
    """All that is shown of it is made in pieces: memory is the header's and the string's, no list of characters."""
    text = unit * ((6 << 20) // len(unit)) + b"\nend"
    pairs = {
        "general.architecture": MetaValue(ValueType.STRING, "x"),
        "a": MetaValue(ValueType.STRING, "~" * len(text)),
    }
    path = tmp_path / "big.gguf"
    path.write_bytes(Parts(pairs, {}).encode().replace(b"~" * len(text), text))
    code = f"""import resource, subprocess, sys
for more in ([], ["--key", "a"]):
    command = [sys.executable, "-m", "dflash_gguf", "inspect", {str(path)!r}, *more]
    done = subprocess.run(command, stdout=open("out", "wb"))
    assert done.returncode == 0
assert open("out", "rb").read()[-5:] == b"\\nend\\n"
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 100 << 10  # KiB; a list of the characters takes more than 100 MiB, of escapes 400
