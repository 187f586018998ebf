"""Carrying fixes out: each rule looks, its fix changes the header, and all rules look again at what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_gguf.checks.finding import Finding, Severity
from dflash_gguf.checks.place import LocalPlace, locate
from dflash_gguf.checks.registry import Needs, Rule
from dflash_gguf.checks.rules import all_rules, find_rule
from dflash_gguf.checks.runner import Runner
from dflash_gguf.checks.subject import Subject
from dflash_gguf.errors import UsageError
from dflash_gguf.patching import fixes, token_fixes  # noqa: F401 - importing them registers them
from dflash_gguf.patching.fix_context import FIXES, FixContext
from dflash_gguf.storage.hub import Hub

if TYPE_CHECKING:
    from dflash_gguf.checks.source import SourceDraft
    from dflash_gguf.checks.target import Target as PairTarget
    from dflash_gguf.model.target import Target
    from dflash_gguf.patching.edits import Edits
    from dflash_gguf.storage.files import ByteFile

ALL = "all"
_MAX_ROUNDS = 3  # what one fix changes may be what an earlier rule looks at


@dataclass(frozen=True, slots=True)
class FixSources:
    """Where right values come from: the pair rules' target, its tokenizer, and the checkpoint; None where not given."""

    pair: PairTarget | None = None
    donor: Callable[[], Target] | None = None
    original: SourceDraft | None = None


def open_helpers(target: str | None, source: str | None, hub: Hub) -> FixSources:
    """Open what --target and --source name. Raises what opening them raises."""
    pair = donor = original = None
    if target is not None:
        from dflash_gguf.checks.target import open_target
        from dflash_gguf.model.remote import open_target_at

        pair = open_target(locate(target, hub))
        donor = cache(lambda: open_target_at(target, hub))
    if source is not None:
        from dflash_gguf.checks.source import open_source

        original = open_source(locate(source, hub), weights=False, vocab_size=pair.vocab_size if pair else None)
    return FixSources(pair, donor, original)


def chosen_rules(wanted: Sequence[str], helpers: FixSources) -> list[str]:
    """The ids that `wanted` names, each a rule, the beginning of several ids, or `all`; in the order of the fixes.

    Raises UsageError for a rule that no header mends, or one that needs what is not given.
    """
    chosen: set[str] = set()
    for word in (part.strip().upper() for text in wanted for part in text.split(",") if part.strip()):
        if word in all_rules():
            _require(find_rule(word), helpers)
            chosen.add(word)
            continue
        group = [name for name in FIXES if word == ALL.upper() or name.startswith(word)]
        if not group:
            find_rule(word)
        chosen.update(group)
    return [name for name in FIXES if name in chosen]


def _require(rule: Rule, helpers: FixSources) -> None:
    where = f"--fix {rule.id}"
    if rule.id not in FIXES:
        raise UsageError(f"no change of a header mends it: {rule.title}", where=where, hint=rule.fix)
    if rule.needs is Needs.TARGET and helpers.pair is None:
        raise UsageError("needs --target", where=where, hint="name the target's folder, GGUF or repository")
    if rule.needs is Needs.SOURCE and helpers.original is None:
        raise UsageError("needs --source", where=where, hint="name the draft's checkpoint")


def mend(edits: Edits, file: ByteFile, rules: Sequence[str], helpers: FixSources) -> None:
    """Carry out the fixes of `rules` that find anything, until none does or nothing changes any more."""
    for _ in range(_MAX_ROUNDS):
        done = len(edits.log)
        _round(edits, file, rules, helpers)
        if len(edits.log) == done:
            return


def _round(edits: Edits, file: ByteFile, rules: Sequence[str], helpers: FixSources) -> None:
    known, subject, seen = all_rules(), None, -1
    for identifier in rules:
        if subject is None or len(edits.log) != seen:
            subject, seen = _subject(edits, file, helpers, file.name), len(edits.log)
        found = _findings(subject, {identifier: known[identifier]}, helpers)
        if found:
            edits.rule = identifier
            keys = [finding.where for finding in found if finding.where]
            FIXES[identifier].fix(FixContext(edits, subject, helpers.donor, keys))
    edits.rule = ""


def what_is_left(edits: Edits, file: ByteFile, out: str, helpers: FixSources) -> tuple[Finding, ...]:
    """Errors and warnings that `check` will have of the patched file, as far as its header tells."""
    rules = {name: rule for name, rule in all_rules().items() if rule.needs is not Needs.DATA and name != "SR502"}
    found = _findings(_subject(edits, file, helpers, out), rules, helpers)
    return tuple(finding for finding in found if finding.severity is not Severity.NOTE)


def _subject(edits: Edits, file: ByteFile, helpers: FixSources, name: str) -> Subject:
    place, source = LocalPlace(name, Path(name)), edits.preview(file)
    return Subject(place, source, edits.header, target=helpers.pair, original=helpers.original)


def _findings(subject: Subject, rules: dict[str, Rule], helpers: FixSources) -> tuple[Finding, ...]:
    return Runner(rules, helpers.pair, helpers.original, hub=Hub(), data=False).report_on(subject).findings
