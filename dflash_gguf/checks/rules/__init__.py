"""The rules, a file a group; importing this registers them all.

Owns what is looked for and what is said about it; never decides what is run or shown.
Way in: all_rules(), selected_rules(), find_rule().
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from dflash_gguf.checks.registry import GROUPS, Rule, registered
from dflash_gguf.checks.rules import (
    gf_container,
    kv_metadata,
    kv_provenance,
    nm_naming,
    pr_pair,
    sr_checkpoint,
    tk_tokenizer,
    tn_tensors,
    tn_weights,
)
from dflash_gguf.errors import UsageError

__all__ = [
    "all_rules",
    "find_rule",
    "gf_container",
    "kv_metadata",
    "kv_provenance",
    "nm_naming",
    "pr_pair",
    "selected_rules",
    "sr_checkpoint",
    "tk_tokenizer",
    "tn_tensors",
    "tn_weights",
]


def all_rules() -> dict[str, Rule]:
    """Every rule by its id, in the order of the catalogue."""
    return {key: registered[key] for prefix in GROUPS for key in sorted(registered) if key.startswith(prefix)}


def selected_rules(select: Sequence[str], ignore: Sequence[str]) -> dict[str, Rule]:
    """The rules whose id starts with one of `select` (all, if empty) and with none of `ignore`.

    Raises UsageError for a prefix that fits no rule.
    """
    rules = all_rules()
    wanted, unwanted = (_prefixes(given, option, rules) for given, option in ((select, "select"), (ignore, "ignore")))
    chosen = {key: item for key, item in rules.items() if not wanted or key.startswith(wanted)}
    left = {key: item for key, item in chosen.items() if not unwanted or not key.startswith(unwanted)}
    if not left:
        raise UsageError("no rule is left to look", where="--select, --ignore")
    return left


def find_rule(identifier: str) -> Rule:
    """The rule of that id, in any case of letters. Raises UsageError."""
    rules = all_rules()
    if identifier.upper() in rules:
        return rules[identifier.upper()]
    raise _unknown(identifier, "RULE", rules)


def _prefixes(given: Sequence[str], option: str, rules: dict[str, Rule]) -> tuple[str, ...]:
    prefixes = [part.strip().upper() for text in given for part in text.split(",") if part.strip()]
    for prefix in prefixes:
        if not any(key.startswith(prefix) for key in rules):
            raise _unknown(prefix, f"--{option}", rules)
    return tuple(prefixes)


def _unknown(identifier: str, where: str, rules: dict[str, Rule]) -> UsageError:
    near = difflib.get_close_matches(identifier.upper(), rules, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"ids begin with {', '.join(GROUPS)}"
    return UsageError(f"no rule is called {identifier!a}", where=where, hint=hint)
