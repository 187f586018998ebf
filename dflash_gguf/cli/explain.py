"""`explain`: a rule, why it matters, what happens at run time, how to mend the file."""

from __future__ import annotations

from typing import Annotated

import typer

from dflash_gguf.cli.output import emit_json, say, table


def run(
    rule: Annotated[
        str | None, typer.Argument(help="A rule's id; without one, all are listed.", metavar="RULE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Explain a rule of `check`: why, what happens at run time, how to fix it."""
    from dflash_gguf.checks.rules import all_rules, find_rule

    rules = [find_rule(rule)] if rule else list(all_rules().values())
    if as_json:
        keys = ("id", "title", "group", "why", "at_run_time", "fix")
        emit_json({"rules": [{key: getattr(r, key) for key in keys} | {"severity": r.severity.value} for r in rules]})
    elif rule:
        found = rules[0]
        say(f"{found.id} ({found.severity.value}, {found.group.lower()}): {found.title}")
        say(f"  needs        {found.needs.value}")
        say(f"  why          {found.why}")
        say(f"  at run time  {found.at_run_time}")
        say(f"  fix          {found.fix}")
    else:
        for line in table([(r.id, r.severity.value, r.title) for r in rules]):
            say(line)
