"""Reports as others read them: schemas, escapes, limits."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest
import xmlschema
from support.faults import FAULTS, NAME, STR, Workshop

from dflash_gguf.checks import CheckReport, FileReport, Finding, Severity, check
from dflash_gguf.checks.render import FORMATS, renderer
from dflash_gguf.checks.render.github import LIMIT, summary
from dflash_gguf.checks.rules import all_rules
from dflash_gguf.errors import UsageError

DATA = Path(__file__).parents[1] / "data"
NASTY = "\x1b[2J\r\n::error::injected %0A <b>&\udcff\u202e|`"


@pytest.fixture(scope="module")
def report(shop: Workshop) -> CheckReport:
    """Good, bad, worse, missing."""
    names = ("empty_file", "string_that_moves_the_cursor", "doubled_prefix", "types_of_somebodys_choice")
    files = [shop.root / NAME, *(FAULTS[name].make(shop).file for name in names), shop.root / "missing.gguf"]
    nasty = (
        shop.parts().set("general.name", STR, NASTY.replace("\udcff", "?")).rename_tensor("fc.weight", "evil\x1b[1m")
    )
    return check([*files, shop.write(nasty)])


def everything(count: int = 1) -> CheckReport:
    """A report in which every rule speaks, in the worst words."""
    findings = tuple(
        Finding(rule.id, rule.severity, NASTY, f"{NASTY}{number}", NASTY)
        for number in range(count)
        for rule in all_rules().values()
    )
    return CheckReport((FileReport(f"drafts/{NASTY}.gguf", findings, (NASTY,)),))


@pytest.mark.parametrize("make", ["report", "everything"])
def test_sarif_is_valid(report: CheckReport, make: str) -> None:
    document = json.loads(renderer("sarif")(report if make == "report" else everything()))
    schema = json.loads((DATA / "sarif-2.1.0-rtm.5.json").read_text())
    jsonschema.Draft4Validator(schema).validate(document)
    (run,) = document["runs"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


def test_sarif_says_what_was_not_looked_at_and_what_failed(report: CheckReport) -> None:
    (run,) = json.loads(renderer("sarif")(report))["runs"]
    (invocation,) = run["invocations"]
    told = [note["message"]["text"] for note in invocation["toolExecutionNotifications"]]
    assert any(text.startswith("not checked: TN306") for text in told)
    assert any("no such file" in text for text in told)
    assert invocation["executionSuccessful"] is False


@pytest.mark.parametrize("make", ["report", "everything"])
def test_junit_is_valid(report: CheckReport, make: str) -> None:
    text = renderer("junit")(report if make == "report" else everything())
    xmlschema.XMLSchema10(DATA / "junit-10.xsd").validate(text)


def test_junit_counts(report: CheckReport) -> None:
    root = ET.fromstring(renderer("junit")(report))  # noqa: S314 - our own text
    suites = {Path(suite.get("name", "")).name: suite for suite in root}
    assert len(root) == len(report.files)
    missing = suites["missing.gguf"]
    assert (missing.get("errors"), missing.get("failures")) == ("1", "0")
    good = root[0]
    assert good.get("failures") == "0"
    assert int(good.get("tests", "0")) == len(report.files[0].passed) + len(report.files[0].not_checked)


def test_json_is_the_contract(report: CheckReport) -> None:
    document = json.loads(renderer("json")(report))
    assert document["schema_version"] == 1
    for file in document["files"]:
        assert file["verdict"] in {"pass", "warn", "fail"}
        assert isinstance(file["path"], str)
        for finding in file["findings"]:
            assert {"rule", "severity", "message", "hint", "where"} <= finding.keys()
            assert finding["severity"] in {"error", "warning", "note"}
    verdicts = [file["verdict"] for file in document["files"]]
    assert verdicts == ["pass", "fail", "warn", "fail", "pass", "fail", "fail"]


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_of_a_file_reaches_a_terminal_unescaped(report: CheckReport, name: str) -> None:
    for text in (renderer(name)(report), renderer(name)(everything())):
        assert not any(ord(char) < 32 and char not in "\n\t" for char in text)
        assert "\u202e" not in text
        text.encode()  # no lone surrogates


def test_github_annotations_cannot_be_forged() -> None:
    lines = renderer("github")(everything()).splitlines()
    assert all(line.count("::") >= 2 for line in lines[:-2])
    assert not any(line.startswith("::error::") for line in lines)


def test_github_shows_ten_of_a_kind_and_the_rest_in_the_summary() -> None:
    report = everything(count=2)
    lines = renderer("github")(report).splitlines()
    for kind in ("error", "warning"):
        assert sum(line.startswith(f"::{kind} ") for line in lines) == LIMIT
    shown = sum(line.startswith("::") for line in lines)
    assert f"{2 * len(all_rules()) - shown} more findings are in the job summary" in lines
    rows = [line for line in summary(report).splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + 2 * len(all_rules())
    assert all(row.replace("\\|", "").count("|") == 6 for row in rows)


def test_text_is_worst_first_and_says_what_to_do(report: CheckReport) -> None:
    lines = renderer("text")(report).splitlines()
    verdicts = [line.split(": ")[-1].split(" ")[0] for line in lines if line.startswith("/")]
    assert [v for v in verdicts if v in {"FAIL", "WARN", "PASS"}] == ["FAIL"] * 4 + ["WARN"] + ["PASS"] * 2
    at = next(number for number, line in enumerate(lines) if line.startswith("  error KV101"))
    assert lines[at + 1].startswith("      at run time: ")
    assert lines[at + 2].startswith("      mend: ")
    assert any(line.startswith("  not checked: ") for line in lines)
    assert lines[-1] == "7 files: 4 fail, 1 warn, 2 pass"


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UsageError, match="yaml"):
        renderer("yaml")


def test_severities_have_an_order() -> None:
    assert sorted(Severity, key=lambda s: s.rank) == [Severity.ERROR, Severity.WARNING, Severity.NOTE]


def test_a_summary_is_escaped_once() -> None:
    finding = Finding("KV103", Severity.ERROR, "is `1` #2 \\x", "dflash.block_size", "a|b")
    text = summary(CheckReport((FileReport("dflash-x-Q4_K_M.gguf", (finding,)),)))
    assert text.splitlines()[-1] == (
        "| dflash-x-Q4&#95;K&#95;M.gguf | fail | error KV103 | dflash.block&#95;size | "
        "is &#96;1&#96; &#35;2 &#92;x. a&#124;b |"
    )
