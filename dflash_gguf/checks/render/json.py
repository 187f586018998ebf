"""For a script: the document of the command line's contract. It serves as a baseline too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dflash_gguf.wording import SCHEMA_VERSION, json_line

if TYPE_CHECKING:
    from dflash_gguf.checks.finding import CheckReport, FileReport


def render(report: CheckReport) -> str:
    """One JSON document, ASCII only."""
    document = {"schema_version": SCHEMA_VERSION, "files": [_file(file) for file in report.files]}
    return json_line(document)


def _file(file: FileReport) -> dict[str, Any]:
    return {
        "path": file.path,
        "verdict": file.verdict,
        "error": None if file.error is None else str(file.error),
        "findings": [
            {
                "rule": finding.rule,
                "severity": finding.severity.value,
                "message": finding.message,
                "hint": finding.hint,
                "where": finding.where,
                "fingerprint": finding.fingerprint(file.file_name),
            }
            for finding in file.findings
        ],
        "known": file.known,
        "passed": list(file.passed),
        "not_checked": list(file.not_checked),
    }
