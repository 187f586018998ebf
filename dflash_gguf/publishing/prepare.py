"""Everything that `publish` would send, decided and checked before anything is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_gguf.checks import check
from dflash_gguf.checks.place import CARD, MAX_CARD
from dflash_gguf.errors import FormatError, HubError, ModelError, UsageError
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.presenting.card import MARK, CardFile, write_card
from dflash_gguf.storage.files import LocalFile
from dflash_gguf.storage.hub import Hub, Reference, parse_reference
from dflash_gguf.storage.hub.upload import Upload, existing
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from dflash_gguf.checks import CheckReport, Finding
    from dflash_gguf.storage.hub import Listing


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """What was asked for: a card of one's own, a pull request, a private repository (where it has to be made)."""

    card: Path | None = None
    create_pr: bool = False
    private: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """What will be sent: `changed` of `uploads` differ from what the repository holds (`listing`: None, it is new).

    `kept_card`: the repository's own card stays, since nobody generated it. `warnings` are one line each.
    """

    ref: Reference
    listing: Listing | None
    uploads: tuple[Upload, ...]
    changed: tuple[Upload, ...]
    report: CheckReport
    warnings: tuple[str, ...]
    card: str | None
    kept_card: bool
    options: PublishOptions

    @property
    def message(self) -> str:
        """The commit's title."""
        names = [upload.path for upload in self.changed]
        return f"Add {names[0]}" if len(names) == 1 else f"Add {counted(len(names), 'file')}: {', '.join(names)}"[:200]


def prepare(files: Sequence[str | Path], repo: str, options: PublishOptions, hub: Hub) -> Prepared:
    """Check the files by all rules, weights included, make the card, and find out what the repository holds.

    Raises UsageError (no local GGUF, two of one name, no repository's id), ModelError for files that `check` fails,
    FormatError, InputError or HubError.
    """
    ref = repository(repo)
    paths = [_local(file) for file in files]
    _require_distinct(paths)
    report = check(paths, data=True, ignore=["NM602"])  # the card that counts is not the one beside the files
    _refuse_failed(report)
    listing = existing(hub, ref)
    _check_options(ref, listing, options)
    card, kept = _card(paths, listing, options, hub)
    uploads = [Upload.of(path.name, path) for path in paths]
    if card is not None:
        uploads.append(Upload.of(CARD, card.encode()))
    held = listing.files if listing else {}
    changed = tuple(upload for upload in uploads if not upload.is_held(held.get(upload.path)))
    own = card if options.card else None
    warnings = (*_warnings(report), *_contradictions(paths, own))
    return Prepared(ref, listing, tuple(uploads), changed, report, warnings, card, kept, options)


def repository(repo: str) -> Reference:
    """The repository that --repo names. Raises UsageError."""
    ref = parse_reference(repo if "/" not in repo or "://" in repo else _as_reference(repo))
    if ref is None or ref.path or ref.revision:
        raise UsageError(f"{repo!r} is no repository's id", where="--repo", hint="write org/name")
    return ref


def _as_reference(repo: str) -> str:
    """A bare id is one here even where a folder of that name exists."""
    return repo if repo.startswith(("huggingface.co/", "hf.co/")) else f"hf://{repo}"


def _local(file: str | Path) -> Path:
    path = Path(file)
    if not path.is_file():
        hint = "download it first" if parse_reference(str(file)) else "check the path"
        raise UsageError("no such file", where=str(file), hint=hint)
    if path.suffix != ".gguf":
        raise UsageError("is no GGUF file by its name", where=str(file), hint="drafts end in .gguf")
    return path


def _require_distinct(paths: Sequence[Path]) -> None:
    names = [path.name for path in paths]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError("two files of this name", where=twice[0], hint="a repository holds one")


def _refuse_failed(report: CheckReport) -> None:
    for file in report.files:
        if file.error is not None:
            raise file.error
        if file.verdict == "fail":
            failed = [finding for finding in file.findings if finding.severity.value == "error"]
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            hint = f"dflash-gguf check {file.path}"
            raise ModelError(f"not published: {_line(failed[0])}{more}", where=file.path, hint=hint)


def _line(finding: Finding) -> str:
    return f"{finding.rule} {finding.where}: {finding.message}"


def _warnings(report: CheckReport) -> list[str]:
    return [
        f"{file.file_name}: {_line(finding)}"
        for file in report.files
        for finding in file.findings
        if finding.severity.value == "warning"
    ]


def _check_options(ref: Reference, listing: Listing | None, options: PublishOptions) -> None:
    if listing is None and options.create_pr:
        raise HubError("no such repository to open a pull request in", where=str(ref), hint="leave --create-pr out")
    if listing is not None and options.private and listing.private is False:
        raise HubError(
            "exists already and is public, --private would not hide the files",
            where=str(ref),
            hint="make it private in its settings, or choose another",
        )


def _card(paths: Sequence[Path], listing: Listing | None, options: PublishOptions, hub: Hub) -> tuple[str | None, bool]:
    """The card to send, or (None, True) where the repository has one that somebody wrote."""
    if options.card is not None:
        with LocalFile(options.card) as source:
            if source.size > MAX_CARD:
                raise FormatError(f"{counted(source.size, 'byte')}, expected at most {MAX_CARD:,}", where=source.name)
            try:
                return source.read(0, source.size).decode(), False
            except UnicodeDecodeError:
                raise FormatError("is not UTF-8 text", where=source.name) from None
    if listing is not None and CARD in listing.files and MARK not in _read_card(listing, hub):
        return None, True
    return write_card([*_card_files(paths), *_siblings(paths, listing, hub)]), False


def _read_card(listing: Listing, hub: Hub) -> str:
    with hub.open(listing.at(CARD)) as source:
        return source.read(0, min(source.size, MAX_CARD)).decode("utf-8", "replace")


def _card_files(paths: Sequence[Path]) -> list[CardFile]:
    files = []
    for path in paths:
        with LocalFile(path) as source:
            files.append(CardFile.of(path.name, scan_header(source)))
    return files


def _siblings(paths: Sequence[Path], listing: Listing | None, hub: Hub) -> list[CardFile]:
    """Drafts that the repository holds already and keeps: the card has to speak of them too."""
    from dflash_gguf.checks.place import HubPlace

    if listing is None:
        return []
    ours = {path.name for path in paths}
    files = []
    for place in HubPlace(hub, listing.ref).files():
        if place.ref.path in ours:
            continue
        with place.open() as source:
            try:
                files.append(CardFile.of(place.ref.path, scan_header(source)))
            except FormatError:
                continue  # a broken file of theirs does not keep ours from being published
    return files


def _contradictions(paths: Sequence[Path], card: str | None) -> list[str]:
    """What a card of one's own says that the files do not bear out."""
    from dflash_gguf.checks.card_claims import claims
    from dflash_gguf.checks.place import LocalPlace
    from dflash_gguf.checks.subject import Subject

    if card is None:
        return []
    found = []
    for path in paths:
        with LocalFile(path) as source:
            subject = Subject(LocalPlace(str(path), path), source, scan_header(source))
            found += [f"{path.name}: NM602 {CARD}: {claim}" for claim in claims(card, subject)]
    return found
