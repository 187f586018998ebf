"""The table of rules: one entry a rule, which drives the run, `explain`, docs/rules.md and the tests alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from dflash_gguf.checks.finding import Severity
from dflash_gguf.errors import UsageError

if TYPE_CHECKING:
    from dflash_gguf.checks.subject import Subject


class Needs(Enum):
    """What a rule needs to be carried out."""

    BYTES = "any file"
    HEADER = "a header that can be read"
    DRAFT = "a draft"
    TENSORS = "a draft that is whole"
    GEOMETRY = "a draft whose tensors follow from its metadata"
    DATA = "--data"
    TARGET = "--target"
    SOURCE = "--source"


@dataclass(frozen=True, slots=True)
class Problem:
    """What a rule yields; severity and hint are the rule's own unless given."""

    message: str
    where: str = ""
    hint: str = ""
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class NotChecked:
    """What a rule yields where it, or a part of it, cannot be carried out: it counts as not checked then."""

    reason: str


Look: TypeAlias = "Callable[[Subject], Iterator[Problem | NotChecked]]"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: why it matters, what happens at run time (above all to acceptance), how to mend the file."""

    id: str
    severity: Severity
    title: str
    why: str
    at_run_time: str
    fix: str
    needs: Needs
    look: Look

    @property
    def group(self) -> str:
        """The heading it stands under."""
        return GROUPS[self.id[:2]]


GROUPS = {
    "GF": "Container",
    "KV": "Metadata",
    "TK": "Tokenizer",
    "TN": "Tensors",
    "PR": "Pair",
    "SR": "Source",
    "NM": "Naming and card",
}
_rules: dict[str, Rule] = {}


def rule(
    identifier: str,
    severity: Severity,
    title: str,
    *,
    why: str,
    at_run_time: str,
    fix: str,
    needs: Needs = Needs.DRAFT,
) -> Callable[[Look], Look]:
    """Register the decorated function as what looks for `identifier`."""

    def register(look: Look) -> Look:
        if identifier in _rules:
            raise ValueError(f"rule {identifier} is defined twice")
        _rules[identifier] = Rule(identifier, severity, title, why, at_run_time, fix, needs, look)
        return look

    return register


def all_rules() -> dict[str, Rule]:
    """Every rule by its id, in the order of the catalogue."""
    from dflash_gguf.checks import rules  # noqa: F401 - importing them registers them

    return {key: _rules[key] for prefix in GROUPS for key in sorted(_rules) if key.startswith(prefix)}


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
    import difflib

    near = difflib.get_close_matches(identifier.upper(), rules, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"ids begin with {', '.join(GROUPS)}"
    return UsageError(f"no rule is called {identifier!a}", where=where, hint=hint)
