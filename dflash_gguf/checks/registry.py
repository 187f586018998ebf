"""The table of rules: one entry a rule, which drives the run, `explain`, docs/rules.md and the tests alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from dflash_gguf.checks.finding import Severity

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
registered: dict[str, Rule] = {}


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
        if identifier in registered:
            raise ValueError(f"rule {identifier} is defined twice")
        registered[identifier] = Rule(identifier, severity, title, why, at_run_time, fix, needs, look)
        return look

    return register
