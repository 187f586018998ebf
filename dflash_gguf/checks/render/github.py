"""For a pull request: GitHub's workflow commands, at most ten of a kind (more are dropped), all in the job summary."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dflash_gguf.wording import counted, safe

if TYPE_CHECKING:
    from dflash_gguf.checks.finding import CheckReport, Finding

LIMIT = 10
_MARKUP = frozenset("\\|`*_<>[]#@")
_KINDS = {"error": "error", "warning": "warning", "note": "notice"}


def render(report: CheckReport) -> str:
    """Annotations, worst first, and a last line that says how many are in the job summary only."""
    entries = [(file.path, finding) for file in report.files for finding in file.findings]
    entries.sort(key=lambda entry: entry[1].severity.rank)
    lines, told = [], Counter[str]()
    for file in report.files:
        if file.error is not None:
            told["error"] += 1
            if told["error"] <= LIMIT:
                lines.append(_command("error", file.path, "unreadable", str(file.error)))
    for path, finding in entries:
        kind = _KINDS[finding.severity.value]
        told[kind] += 1
        if told[kind] <= LIMIT:
            lines.append(_command(kind, path, finding.rule, _text(finding)))
    more = sum(max(0, count - LIMIT) for count in told.values())
    if more:
        lines.append(f"{counted(more, 'more finding', 'is', 'are')} in the job summary")
    lines += [f"{safe(file.path)}: {file.verdict}" for file in report.files]
    return "\n".join(lines) + "\n"


def summary(report: CheckReport) -> str:
    """The job summary, in GitHub's Markdown: a table of all findings, and what was not looked at."""
    lines = ["## dflash-gguf check", "", "| file | verdict | rule | where | message |", "|---|---|---|---|---|"]
    for file in report.files:
        rows = [(f"{f.severity.value} {f.rule}", f.where, f"{f.message}. {f.hint}") for f in file.findings]
        if file.error is not None:
            rows.append(("unreadable", "", str(file.error)))
        for rule, where, message in rows or [("", "", "")]:
            lines.append(f"| {' | '.join(map(_cell, (file.path, file.verdict, rule, where, message)))} |")
    not_checked = dict.fromkeys(line for file in report.files for line in file.not_checked)
    if not_checked:
        lines += ["", "Not checked:", "", *(f"- {_cell(line)}" for line in not_checked)]
    return "\n".join(lines) + "\n"


def _text(finding: Finding) -> str:
    where = f"{finding.where}: " if finding.where else ""
    return f"{where}{finding.message}\nMend: {finding.hint}"


def _command(kind: str, path: str, title: str, message: str) -> str:
    text = "\n".join(safe(line) for line in message.split("\n"))
    return f"::{kind} file={_property(safe(path))},title={_property(title)}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _cell(text: str) -> str:
    """Text that neither ends the cell nor becomes markup or a mention."""
    return "".join(f"&#{ord(char)};" if char in _MARKUP else char for char in safe(text))
