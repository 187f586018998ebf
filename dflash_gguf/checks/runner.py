"""Carrying rules out on files: one report a file, whatever the file is like."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_gguf.checks.finding import CheckReport, FileReport, Finding
from dflash_gguf.checks.place import Place, locate
from dflash_gguf.checks.registry import Needs, NotChecked, Rule
from dflash_gguf.checks.rules import selected_rules
from dflash_gguf.checks.subject import Subject
from dflash_gguf.errors import DflashError, FormatError
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.model.metadata_dialects import ARCHITECTURE_KEY, is_foreign
from dflash_gguf.storage.hub import Hub
from dflash_gguf.wording import counted, safe

if TYPE_CHECKING:
    from dflash_gguf.checks.source import SourceDraft
    from dflash_gguf.checks.target import Target

MAX_BASELINE = 64 << 20
MAX_FINDINGS = 50


def check(
    files: str | Path | Sequence[str | Path],
    *,
    target: str | Path | None = None,
    source: str | Path | None = None,
    data: bool = False,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    baseline: str | Path | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> CheckReport:
    """Check draft files (or folders of them) by all rules, or those whose id starts with one of `select`.

    Each of them can be on the Hub, where only headers are read; a repository's drafts are checked against its card
    and against the target that they name.
    `target` is a checkpoint folder or GGUF (pair rules), `source` the draft's checkpoint folder (source rules),
    `data` reads all weights, `baseline` is a JSON report whose findings are known; `on_bytes` is told of
    tensor data as they are read, from several threads. A file that is missing or
    unreadable has its error in its own report. Raises UsageError (unknown rule, nothing to check), and for target,
    source and baseline what opening them raises.
    """
    files = [files] if isinstance(files, str | Path) else files
    rules = selected_rules(select, ignore)
    known = read_baseline(Path(baseline)) if baseline is not None else frozenset[str]()
    pair = original = None
    hub = Hub()
    if target is not None:
        from dflash_gguf.checks.target import open_target

        pair = open_target(locate(str(target), hub))
    if source is not None:
        from dflash_gguf.checks.source import open_source

        vocab_size = pair.vocab_size if pair else None
        original = open_source(locate(str(source), hub), weights=data, vocab_size=vocab_size)
    runner = Runner(rules, pair, original, hub=hub, data=data, on_bytes=on_bytes)
    return CheckReport(tuple(_without_known(report, known) for name in files for report in runner.reports(str(name))))


def read_baseline(path: Path) -> frozenset[str]:
    """Fingerprints of the findings in a JSON report. Raises UsageError or FormatError."""
    from dflash_gguf.model.checkpoint import read_json

    report = read_json(path, limit=MAX_BASELINE)
    try:
        return frozenset(str(f["fingerprint"]) for file in report["files"] for f in file["findings"])
    except (KeyError, TypeError):
        raise FormatError(
            "is no report of `check --format json`", where=str(path), hint="make one with --format json"
        ) from None


class Runner:
    """The rules that were chosen, and what they are carried out with."""

    def __init__(
        self,
        rules: Mapping[str, Rule],
        target: Target | None,
        original: SourceDraft | None,
        *,
        hub: Hub,
        data: bool,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.rules, self.target, self.original, self.hub, self.data = rules, target, original, hub, data
        self.on_bytes = on_bytes
        self.named: dict[str, Target | str] = {}

    def reports(self, argument: str) -> Iterator[FileReport]:
        """One report for each file that `argument` stands for."""
        try:
            places = locate(argument, self.hub).drafts()
        except DflashError as error:
            yield FileReport(argument, error=error, not_checked=("everything: the file could not be found",))
            return
        for place in places:
            try:
                yield self.look_at(place)
            except DflashError as error:
                yield FileReport(place.name, error=error, not_checked=("everything: the file could not be read",))

    def look_at(self, place: Place) -> FileReport:
        """The report on one file. Raises UsageError or InputError where its bytes cannot be had."""
        with place.open(whole=self.data) as file:
            try:
                header, refusal = scan_header(file), None
            except FormatError as error:
                header, refusal = None, error
            subject = Subject(
                place, file, header, refusal, target=self.target, original=self.original, on_bytes=self.on_bytes
            )
            if self.target is None and place.is_of_repo and subject.is_draft and self._pairs:
                self._find_target(subject)
            return self.report_on(subject)

    @property
    def _pairs(self) -> bool:
        return any(rule.needs is Needs.TARGET for rule in self.rules.values())

    def _find_target(self, subject: Subject) -> None:
        """The target that a file of a repository names, else its card; looked up once for all files."""
        name = subject.target_repo
        if name is None:
            subject.why_no_target = "neither the file nor its card names a target; --target does"
            return
        if name not in self.named:
            self.named[name] = self._named_target(name)
        found = self.named[name]
        if isinstance(found, str):
            subject.why_no_target = found
        else:
            subject.target = found

    def _named_target(self, name: str) -> Target | str:
        """The target in a repository, or why there is none: what a file names is not the caller's mistake."""
        from dflash_gguf.checks.target import open_target

        try:
            return open_target(locate(f"hf://{name}", self.hub))  # with the scheme it can never be a local path
        except DflashError as error:
            return f"the target cannot be read: {error}"

    def report_on(self, subject: Subject) -> FileReport:
        """The report on a header that has been read."""
        findings: list[Finding] = []
        passed: list[str] = []
        skipped: dict[str, list[str]] = {}
        for identifier, rule in self.rules.items():
            reason = self._reason_not_to(rule, subject)
            found, reasons = ([], [reason]) if reason else _carry_out(rule, subject)
            findings += found
            for told in dict.fromkeys(reasons):
                skipped.setdefault(told, []).append(identifier)
            if not found and not reasons:
                passed.append(identifier)
        findings.sort(key=lambda finding: finding.severity.rank)
        not_checked = tuple(f"{_ranges(ids, list(self.rules))}: {reason}" for reason, ids in skipped.items())
        return FileReport(subject.place.name, tuple(findings), not_checked, tuple(passed))

    def _reason_not_to(self, rule: Rule, subject: Subject) -> str:
        """Why a rule cannot be carried out, or ""."""
        needs = rule.needs
        if needs is Needs.BYTES:
            return ""
        if subject.header is None:
            return "the header cannot be read"
        if needs is Needs.HEADER:
            return ""
        if not subject.is_draft:
            if is_foreign(subject.string(ARCHITECTURE_KEY)):
                return "a foreign dialect: migrate it first"
            return subject.sidecar.name if subject.sidecar else "not a file of architecture dflash"
        if needs in (Needs.TENSORS, Needs.GEOMETRY, Needs.DATA):
            if subject.is_part:
                return "one part of a split file"
            if subject.is_dspark and needs is not Needs.DATA:
                return "a DSpark draft's tensors are not known"
        if needs is Needs.GEOMETRY and subject.why_no_spec:
            return subject.why_no_spec
        if needs is Needs.DATA and not self.data:
            return "weights are read with --data"
        if needs is Needs.TARGET and subject.target is None:
            return subject.why_no_target
        if needs is Needs.SOURCE and self.original is None:
            return "no --source was given"
        return ""


def _carry_out(rule: Rule, subject: Subject) -> tuple[list[Finding], list[str]]:
    """What a rule finds (at most MAX_FINDINGS, then how many more there are), and what it could not look at."""
    findings: list[Finding] = []
    reasons: list[str] = []
    more, severity = 0, rule.severity
    for item in rule.look(subject):
        if isinstance(item, NotChecked):
            reasons.append(_short(item.reason, 600))
            continue
        severity = item.severity or rule.severity
        if len(findings) < MAX_FINDINGS:
            message, where = safe(_short(item.message, 600)), _short(item.where, 200)
            findings.append(Finding(rule.id, severity, message, where, item.hint or rule.fix))
        else:
            more += 1
    if more:
        findings.append(Finding(rule.id, severity, f"{counted(more, 'more finding')} of this rule", "", rule.fix))
    return findings, reasons


def _short(text: str, limit: int) -> str:
    """Text that may hold a whole value of the file, cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _ranges(ids: Sequence[str], rules: Sequence[str]) -> str:
    """Ids, those that stand side by side among `rules` as a range: KV101-KV110."""
    runs: list[list[str]] = []
    for identifier in ids:
        here = rules.index(identifier)
        if runs and runs[-1][-1] == rules[here - 1] and runs[-1][-1][:2] == identifier[:2]:
            runs[-1].append(identifier)
        else:
            runs.append([identifier])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _without_known(report: FileReport, known: Collection[str]) -> FileReport:
    if not known:
        return report
    new = tuple(f for f in report.findings if f.fingerprint(report.file_name) not in known)
    return FileReport(
        report.path, new, report.not_checked, report.passed, len(report.findings) - len(new), report.error
    )
