"""Where a FILE, TARGET or DRAFT of the command line is: the one place that turns what was typed into bytes.

A local path, or a repository on the Hub and what is in it; rules and runner see `Place` only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dflash_gguf.errors import FormatError, UsageError
from dflash_gguf.model.remote import draft_config_folder, draft_folder, gguf_files, target_folder
from dflash_gguf.storage.files import LocalFile
from dflash_gguf.storage.hub import Hub, Listing, Reference, parse_reference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash_gguf.storage.hub.remote_file import RemoteFile

CARD = "README.md"
MAX_CARD = 1 << 20


class Place(Protocol):
    """A file or a folder, wherever it is."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder or a repository."""

    @property
    def is_of_repo(self) -> bool:
        """Whether it was found in a repository that was named as a whole, whose card and target are looked at too."""

    def open(self, *, whole: bool = False) -> LocalFile | RemoteFile:
        """The file's bytes; `whole` where all of them will be read.

        Raises UsageError where there is none, InputError or HubError where it cannot be read.
        """

    def card(self) -> str | None:
        """The model card beside the file, or None."""

    def drafts(self) -> Sequence[Place]:
        """The files that this place stands for: itself, or the GGUF files of a folder or beside a model card."""

    def target_folder(self) -> Path:
        """A folder that holds a target's config and tokenizer."""

    def draft_folder(self, *, weights: bool) -> Path:
        """A folder that holds a draft's config and card, and its weights where they are asked for."""


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A local file or folder."""

    name: str
    path: Path
    is_of_repo: bool = False

    @property
    def is_folder(self) -> bool:
        """See Place."""
        return self.path.is_dir()

    def open(self, *, whole: bool = False) -> LocalFile:  # noqa: ARG002 - all of it is at hand
        """See Place."""
        return LocalFile(self.path)

    def card(self) -> str | None:
        """See Place."""
        path = self.path.parent / CARD
        if not path.is_file():
            return None
        with LocalFile(path) as source:
            return source.read(0, min(source.size, MAX_CARD)).decode("utf-8", "replace")

    def drafts(self) -> list[LocalPlace]:
        """See Place."""
        folder = self.path if self.is_folder else self.path.parent
        if not self.is_folder and self.path.name != CARD:
            return [self]
        found = sorted(path for path in folder.glob("*.gguf") if path.is_file())
        if not found and self.is_folder:
            raise UsageError("holds no GGUF file", where=self.name, hint="name a file")
        return [LocalPlace(str(path), path) for path in found]

    def target_folder(self) -> Path:
        """See Place."""
        return self.path

    def draft_folder(self, *, weights: bool) -> Path:  # noqa: ARG002
        """See Place."""
        return self.path


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A file in a repository, or a repository (or a folder of it).

    `listing` is what a file was found in, with the commit at which it is read, `text` the card there, which is read
    once for all files.
    """

    hub: Hub
    ref: Reference
    listing: Listing | None = None
    text: str | None = None

    @property
    def name(self) -> str:
        """See Place."""
        return str(self.ref)

    @property
    def is_folder(self) -> bool:
        """See Place."""
        return not self.ref.path.lower().endswith(".gguf")

    @property
    def is_of_repo(self) -> bool:
        """See Place."""
        return self.listing is not None

    def open(self, *, whole: bool = False) -> LocalFile | RemoteFile:
        """See Place; a file that is read whole is downloaded to the cache first."""
        if whole:
            listing = self.hub.listing(self.ref)
            return LocalFile(self.hub.fetch(listing, [self.ref.path]) / self.ref.path)
        return self.hub.open(self.listing.at(self.ref.path) if self.listing else self.ref)

    def card(self) -> str | None:
        """See Place; only a repository that was named as a whole is asked for it."""
        return self.text

    def drafts(self) -> list[HubPlace]:
        """See Place; files that are plainly no drafts, such as a target's, are passed over."""
        if not self.is_folder:
            return [self]
        found = self.files()
        if not found:
            raise UsageError("holds no draft as GGUF", where=self.name, hint="convert it, or name a file")
        return found

    def files(self) -> list[HubPlace]:
        """The drafts of a repository, or of a folder of it; none is no error."""
        listing = self.hub.listing(self.ref)
        prefix = f"{self.ref.path}/" if self.ref.path else ""
        places = [replace(self, ref=replace(self.ref, path=path), listing=listing) for path in gguf_files(listing)]
        found = [place for place in places if place.ref.path.startswith(prefix) and place.may_be_draft()]
        text = self._read_card(listing.at(CARD)) if found and CARD in listing.files else None
        return [replace(place, text=text) for place in found]

    def may_be_draft(self) -> bool:
        """Whether a file's name or architecture speaks of a draft, or nothing can be told."""
        from dflash_gguf.formats.gguf.scan import scan_start
        from dflash_gguf.model.draft_header import text

        if self.ref.path.rpartition("/")[2].lower().startswith("dflash"):
            return True
        with self.open() as source:
            try:
                architecture = text(scan_start(source).metadata, "general.architecture").lower()
            except FormatError:
                return True
        return not architecture or "dflash" in architecture or "dspark" in architecture

    def target_folder(self) -> Path:
        """See Place."""
        self.hub.listing(self.ref)  # by what was typed, for its error; its name is a full reference
        return target_folder(self.name, self.hub)

    def draft_folder(self, *, weights: bool) -> Path:
        """See Place."""
        self.hub.listing(self.ref)
        return (draft_folder if weights else draft_config_folder)(self.name, self.hub)

    def _read_card(self, ref: Reference) -> str:
        with self.hub.open(ref) as source:
            return source.read(0, min(source.size, MAX_CARD)).decode("utf-8", "replace")


def locate(argument: str, hub: Hub) -> Place:
    """The place that `argument` names. Raises UsageError for a malformed reference to the Hub."""
    ref = parse_reference(argument)
    return LocalPlace(argument, Path(argument)) if ref is None else HubPlace(hub, ref)
