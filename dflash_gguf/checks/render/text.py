"""For a person: worst first, what it does at run time, how to mend it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dflash_gguf.checks.rules import all_rules
from dflash_gguf.wording import counted, safe

if TYPE_CHECKING:
    from dflash_gguf.checks.finding import CheckReport, FileReport, Finding

_SEVERITIES = ("error", "warning", "note")


def render(report: CheckReport) -> str:
    """Lines of plain text; files that failed come first."""
    order = {"fail": 0, "warn": 1, "pass": 2}
    files = sorted(report.files, key=lambda file: order[file.verdict])
    lines = [line for file in files for line in _file(file)]
    if len(files) > 1:
        counts = [f"{sum(file.verdict == verdict for file in files)} {verdict}" for verdict in order]
        lines.append(f"{counted(len(files), 'file')}: {', '.join(counts)}")
    return "\n".join(lines) + "\n"


def _file(file: FileReport) -> Iterator[str]:
    counts = [(sum(f.severity.value == word for f in file.findings), word) for word in _SEVERITIES]
    told = ", ".join(f"{count} {word}{'s' if count > 1 else ''}" for count, word in counts if count)
    if file.error is not None:
        told = file.error.message
    yield f"{safe(file.path)}: {file.verdict.upper()}{f' ({safe(told)})' if told else ''}"
    explained: set[str] = set()
    for finding in file.findings:
        yield from _finding(finding, brief=finding.rule in explained)
        explained.add(finding.rule)
    if file.known:
        yield f"  {counted(file.known, 'known finding', 'is', 'are')} in the baseline"
    if file.passed:
        yield f"  found nothing: {counted(len(file.passed), 'rule')}"
    for line in file.not_checked:
        yield f"  not checked: {safe(line)}"


def _finding(finding: Finding, *, brief: bool) -> Iterator[str]:
    where = f"{safe(finding.where)}: " if finding.where else ""
    yield f"  {finding.severity.value} {finding.rule} {where}{safe(finding.message)}"
    if brief:
        return
    yield f"      at run time: {all_rules()[finding.rule].at_run_time}"
    yield f"      mend: {safe(finding.hint)}"
