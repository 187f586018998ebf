"""`check`, `explain` and `diff` as they are called."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from support.faults import FAULTS, I32, NAME, Workshop
from support.processes import kept_signals

from dflash_gguf.checks import check
from dflash_gguf.checks.rules import all_rules
from dflash_gguf.cli import main
from dflash_gguf.errors import FormatError, UsageError

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process: the other tests of commands start processes."""

    def call(*arguments: object) -> CompletedProcess[str]:
        argv = ["dflash-gguf", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", argv)
        with kept_signals(), pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return CompletedProcess(argv, int(exit_.value.code or 0), out, err)

    return call


def test_a_good_file_passes(shop: Workshop, run: Run) -> None:
    done = run("check", shop.root / NAME, "--target", shop.target, "--source", shop.draft, "--data", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (file,) = json.loads(done.stdout)["files"]
    assert (file["verdict"], file["findings"], file["not_checked"]) == ("pass", [], [])


@pytest.mark.parametrize(
    ("fault", "options", "code"),
    [
        ("one_query_is_wider", [], 1),
        ("name_without_type", [], 0),
        ("name_without_type", ["--fail-on", "warn"], 1),
        ("types_of_somebodys_choice", ["--fail-on", "warn"], 0),
        ("one_query_is_wider", ["--select", "GF,KV"], 0),
        ("one_query_is_wider", ["--select", "tn3"], 1),
        ("one_query_is_wider", ["--ignore", "TN303"], 0),
        ("one_query_is_wider", ["--select", "XX"], 2),
        ("one_query_is_wider", ["--ignore", "TN399"], 2),
        ("one_query_is_wider", ["--fail-on", "note"], 2),
        ("one_query_is_wider", ["--format", "xml"], 2),
    ],
)
def test_exit_codes(shop: Workshop, run: Run, fault: str, options: list[str], code: int) -> None:
    done = run("check", FAULTS[fault].make(shop).file, *options)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_file_does_not_hide_the_others(shop: Workshop, run: Run) -> None:
    bad = FAULTS["one_query_is_wider"].make(shop).file
    done = run("check", "missing.gguf", shop.root / NAME, bad, "--json")
    assert done.returncode == 2
    missing, good, wide = json.loads(done.stdout)["files"]
    assert (missing["verdict"], good["verdict"], wide["verdict"]) == ("fail", "pass", "fail")
    assert "no such file" in missing["error"]
    assert "missing.gguf: no such file" in done.stderr


def test_an_unreadable_file_is_an_io_error(shop: Workshop, run: Run) -> None:
    path = shop.write(shop.parts())
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root reads everything")
    done = run("check", path)
    assert done.returncode == 3


def test_a_folder_stands_for_its_drafts(shop: Workshop) -> None:
    folder = shop.folder()
    for name in ("dflash-b-BF16.gguf", NAME, "notes.txt"):
        (folder / name).write_bytes(shop.good.encode())
    assert [Path(file.path).name for file in check([folder]).files] == [NAME, "dflash-b-BF16.gguf"]
    with pytest.raises(UsageError, match="holds no GGUF"):
        raise check([shop.folder()]).files[0].error or AssertionError


def test_a_card_stands_for_the_drafts_beside_it(shop: Workshop, run: Run) -> None:
    folder = FAULTS["card_with_another_size"].make(shop).file.parent
    done = run("check", folder / "README.md", "--select", "NM602", "--fail-on", "warn")
    assert done.returncode == 1
    assert "NM602" in done.stdout
    lone = shop.folder() / "README.md"
    lone.write_text("# nothing here")
    assert run("check", lone, "--select", "NM602", "--fail-on", "warn").returncode == 0


def test_known_findings_are_not_told_again(shop: Workshop, run: Run, tmp_path: Path) -> None:
    bad = FAULTS["one_query_is_wider"].make(shop).file
    baseline = tmp_path / "baseline.json"
    baseline.write_text(run("check", bad, "--format", "json").stdout)
    done = run("check", bad, "--baseline", baseline, "--json")
    assert done.returncode == 0
    (file,) = json.loads(done.stdout)["files"]
    assert (file["verdict"], file["known"], file["findings"]) == ("pass", 1, [])
    another = FAULTS["selector_turned_round"].make(shop).file
    assert run("check", another, "--baseline", baseline).returncode == 1


@pytest.mark.parametrize("text", ["[]", "{}", '{"files": [{"findings": [{}]}]}', "{", "\xff"])
def test_a_baseline_that_is_none_is_refused(shop: Workshop, tmp_path: Path, text: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(FormatError):
        check([shop.root / NAME], baseline=path)
    with pytest.raises(UsageError):
        check([shop.root / NAME], baseline=tmp_path / "none.json")


@pytest.mark.parametrize("option", ["--target", "--source", "--baseline"])
def test_what_is_compared_with_has_to_be_there(shop: Workshop, run: Run, option: str) -> None:
    done = run("check", shop.root / NAME, option, "nowhere")
    assert done.returncode == 2
    assert "nowhere" in done.stderr


def test_the_source_has_to_be_a_draft(shop: Workshop, run: Run) -> None:
    done = run("check", shop.root / NAME, "--source", shop.target)
    assert done.returncode == 1
    assert "not a DFlash draft" in done.stderr


def test_sarif_beside_another_format(shop: Workshop, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "out.sarif"
    done = run("check", shop.root / NAME, "--sarif", path)
    assert done.returncode == 0
    assert json.loads(path.read_text())["version"] == "2.1.0"
    assert run("check", shop.root / NAME, "--sarif", tmp_path / "no" / "x.sarif").returncode == 3


@pytest.mark.parametrize("name", all_rules())
def test_every_rule_is_explained(name: str) -> None:
    rule = all_rules()[name]
    for text in (rule.title, rule.why, rule.at_run_time, rule.fix):
        assert text
        assert "\n" not in text


def test_explain(run: Run) -> None:
    done = run("explain", "kv104")
    assert done.returncode == 0
    assert "target_layers" in done.stdout
    assert json.loads(run("explain", "KV104", "--json").stdout)["rules"][0]["id"] == "KV104"
    assert len(run("explain").stdout.splitlines()) == len(all_rules())
    unknown = run("explain", "KV999")
    assert unknown.returncode == 2
    assert "did you mean" in unknown.stderr


def test_a_baseline_does_not_know_what_has_become_an_error(shop: Workshop, run: Run, tmp_path: Path) -> None:
    at_last = shop.write(shop.parts().set_array("dflash.target_layers", I32, [1, 2, 8]))
    beyond = shop.write(shop.parts().set_array("dflash.target_layers", I32, [1, 2, 9]))
    target = shop.target_with(num_hidden_layers=8)
    baseline = tmp_path / "baseline.json"
    known = run("check", at_last, "--target", target, "--format", "json")
    assert [f["severity"] for f in json.loads(known.stdout)["files"][0]["findings"]] == ["warning"]
    baseline.write_text(known.stdout)
    assert run("check", at_last, "--target", target, "--baseline", baseline, "--fail-on", "warn").returncode == 0
    assert run("check", beyond, "--target", target, "--baseline", baseline).returncode == 1


def test_a_checkpoint_that_is_not_quantized_is_no_file_to_check(shop: Workshop, run: Run) -> None:
    done = run("check", shop.draft)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "is a checkpoint that is not quantized (convert it: check reads GGUF)" in done.stderr
