"""What makes a draft file silently bad.

Owns rules, runner and renderers; never prints and never repairs.
Way in: check(); rules.all_rules() is what `explain`, docs/rules.md and the tests read.
"""

from __future__ import annotations

from dflash_gguf.checks.finding import CheckReport, FileReport, Finding, Severity
from dflash_gguf.checks.runner import check

__all__ = ["CheckReport", "FileReport", "Finding", "Severity", "check"]
