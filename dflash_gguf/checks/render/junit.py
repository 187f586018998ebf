"""For a test dashboard: a suite a file, a case a rule, in the XML that Jenkins and its kin read."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from dflash_gguf.checks.rules import all_rules
from dflash_gguf.wording import safe

if TYPE_CHECKING:
    from dflash_gguf.checks.finding import CheckReport, FileReport, Finding


def render(report: CheckReport) -> str:
    """One `testsuites` document. Errors and warnings are failures; notes go to a case's output."""
    root = ET.Element("testsuites", name="dflash-gguf check")
    for file in report.files:
        root.append(_suite(file))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(file: FileReport) -> ET.Element:
    by_rule: dict[str, list[Finding]] = {identifier: [] for identifier in file.passed}
    for finding in file.findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    suite = ET.Element("testsuite", name=safe(file.path))
    failures = 0
    for identifier in (key for key in all_rules() if key in by_rule):
        case = _case(file, identifier, by_rule[identifier])
        failures += case.find("failure") is not None
        suite.append(case)
    if file.error is not None:
        case = ET.SubElement(suite, "testcase", name="open", classname=safe(file.path))
        ET.SubElement(case, "error", message=safe(file.error.message), type="unreadable").text = safe(str(file.error))
    for number, line in enumerate(file.not_checked, 1):
        case = ET.SubElement(suite, "testcase", name=f"not checked {number}", classname=safe(file.path))
        ET.SubElement(case, "skipped", message=safe(line))
    counts = {"tests": len(suite), "failures": failures, "errors": int(file.error is not None)}
    counts["skipped"] = len(file.not_checked)
    for key, count in counts.items():
        suite.set(key, str(count))
    return suite


def _case(file: FileReport, identifier: str, findings: list[Finding]) -> ET.Element:
    title = all_rules()[identifier].title
    case = ET.Element("testcase", name=f"{identifier} {title}", classname=safe(file.path))
    bad = [finding for finding in findings if finding.severity.value != "note"]
    if bad:
        first = bad[0]
        failure = ET.SubElement(case, "failure", message=safe(_line(first)), type=first.severity.value)
        failure.text = "\n".join(safe(f"{_line(finding)}. {finding.hint}") for finding in bad)
    elif findings:
        ET.SubElement(case, "system-out").text = "\n".join(safe(_line(finding)) for finding in findings)
    return case


def _line(finding: Finding) -> str:
    return f"{finding.where}: {finding.message}" if finding.where else finding.message
