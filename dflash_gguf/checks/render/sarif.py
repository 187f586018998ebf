"""For a code-scanning service: SARIF 2.1.0 (OASIS). A place in a binary file is a logical location."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dflash_gguf.checks.registry import Rule
from dflash_gguf.checks.rules import all_rules
from dflash_gguf.wording import json_line

if TYPE_CHECKING:
    from dflash_gguf.checks.finding import CheckReport, FileReport, Finding

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render(report: CheckReport) -> str:
    """One SARIF log with one run."""
    rules = all_rules()
    numbers = {identifier: number for number, identifier in enumerate(rules)}
    results = [_result(file, finding, numbers) for file in report.files for finding in file.findings]
    driver = {
        "name": "dflash-gguf",
        "rules": [_descriptor(rule) for rule in rules.values()],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": all(file.error is None for file in report.files),
                "toolExecutionNotifications": [note for file in report.files for note in _notifications(file)],
            }
        ],
        "results": results,
    }
    return json_line({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _descriptor(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": f"{rule.why} At run time: {rule.at_run_time}"},
        "help": {"text": rule.fix},
        "defaultConfiguration": {"level": rule.severity.value},
        "properties": {"tags": [rule.group]},
    }


def _result(file: FileReport, finding: Finding, numbers: dict[str, int]) -> dict[str, Any]:
    location: dict[str, Any] = {"physicalLocation": _physical(file)}
    if finding.where:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.where}]
    told = f"{finding.where}: {finding.message}" if finding.where else finding.message
    return {
        "ruleId": finding.rule,
        "ruleIndex": numbers[finding.rule],
        "level": finding.severity.value,
        "message": {"text": f"{told}. {finding.hint}"},
        "locations": [location],
        "partialFingerprints": {"dflashGguf/v1": finding.fingerprint(file.file_name)},
    }


def _physical(file: FileReport) -> dict[str, Any]:
    # code scanning shows a result at a line, which a binary file has not
    return {"artifactLocation": {"uri": _uri(file.path)}, "region": {"startLine": 1}}


def _uri(path: str) -> str:
    """A path as a URI reference, relative where the path is."""
    posix = PurePath(path).as_posix()
    if "://" in path:
        return quote(path, safe="/:@")
    return ("file://" if posix.startswith("/") else "") + quote(posix.encode("utf-8", "surrogateescape"))


def _notifications(file: FileReport) -> list[dict[str, Any]]:
    where = [{"physicalLocation": {"artifactLocation": {"uri": _uri(file.path)}}}]
    notes = [{"level": "note", "message": {"text": f"not checked: {n}"}, "locations": where} for n in file.not_checked]
    if file.error is not None:
        notes.append({"level": "error", "message": {"text": str(file.error)}, "locations": where})
    return notes
