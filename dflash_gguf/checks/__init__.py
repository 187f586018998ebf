"""What makes a draft file silently bad.

Owns rules, runner and renderers; never prints and never repairs.
Way in: check(); registry.RULES is what `explain`, docs/rules.md and the tests read.
"""

from __future__ import annotations

from dflash_gguf.checks.finding import FileReport, Finding, Report, Severity
from dflash_gguf.checks.run import check

__all__ = ["FileReport", "Finding", "Report", "Severity", "check"]
