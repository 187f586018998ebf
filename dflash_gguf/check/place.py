"""Where a FILE, TARGET or DRAFT of the command line is: the one place that turns what was typed into bytes.

`locate` is what has to learn another kind of address (a Hub repository); rules and runner see `Place` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_gguf.bytesio.source import LocalFile
from dflash_gguf.errors import UsageError

CARD = "README.md"
MAX_CARD = 1 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """A local file or folder."""

    name: str
    path: Path

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.path.is_dir()

    def open(self) -> LocalFile:
        """The file's bytes. Raises UsageError where there is none, InputError where it cannot be read."""
        return LocalFile(self.path)

    def card(self) -> str | None:
        """The model card beside the file, or None."""
        path = self.path.parent / CARD
        if not path.is_file():
            return None
        with LocalFile(path) as source:
            return source.read(0, min(source.size, MAX_CARD)).decode("utf-8", "replace")

    def drafts(self) -> list[Place]:
        """The files that this place stands for: itself, or the GGUF files of a folder or beside a model card."""
        folder = self.path if self.is_folder else self.path.parent
        if not self.is_folder and self.path.name != CARD:
            return [self]
        found = sorted(path for path in folder.glob("*.gguf") if path.is_file())
        if not found and self.is_folder:
            raise UsageError("holds no GGUF file", where=self.name, hint="name a file")
        return [Place(str(path), path) for path in found]


def locate(argument: str) -> Place:
    """The place that `argument` names."""
    return Place(argument, Path(argument))
