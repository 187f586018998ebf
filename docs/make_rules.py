"""Write docs/rules.md from the registry of rules: `python docs/make_rules.py`."""

from __future__ import annotations

from pathlib import Path

from dflash_gguf.checks.registry import GROUPS, Rule
from dflash_gguf.checks.rules import all_rules

PATH = Path(__file__).with_name("rules.md")
HEAD = """# What `check` looks for

Written by `python docs/make_rules.py` from the registry of rules; `dflash-gguf explain ID` shows the same.
An error fails the file, a warning warns, a note informs. Single findings may be milder than their rule, and say so.
Shapes follow from the table in `dflash_gguf/model/tensors.py`, keys and types from `dflash_gguf/model/metadata.py`.

Not looked at is not clean: rules that need `--data`, `--target` or `--source` are listed as *not checked* without them.
"""


def render() -> str:
    """The page."""
    rules = all_rules().values()
    lines = [HEAD, "| id | | rule | needs |", "|---|---|---|---|"]
    lines += [f"| [{r.id}](#{r.id.lower()}) | {r.severity.value} | {r.title} | {r.needs.value} |" for r in rules]
    for group in GROUPS.values():
        lines += ["", f"## {group}"]
        lines += [line for rule in rules if rule.group == group for line in _section(rule)]
    return "\n".join(lines) + "\n"


def _section(rule: Rule) -> list[str]:
    return [
        "",
        f"### {rule.id}",
        "",
        f"**{rule.title[0].upper()}{rule.title[1:]}** ({rule.severity.value}; needs {rule.needs.value})",
        "",
        f"- Why: {rule.why}",
        f"- At run time: {rule.at_run_time}",
        f"- Fix: {rule.fix}",
    ]


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
