"""What a repository holds at one commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dflash_gguf.storage.hub.reference import Reference


@dataclass(frozen=True, slots=True)
class RepoFile:
    """One file of a repository: `sha256` of its content where the Hub stores it as a large file, git's hash else."""

    path: str
    size: int | None
    sha256: str | None = None
    git_oid: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at one commit; `ref` names that commit. Files whose path leaves the repository are not in it.

    `asked`: the revision it was found by. `offline`: read off the cache, which may hold only some of the files.
    `private`: whether others can see it, None where that was not told.
    """

    ref: Reference
    files: Mapping[str, RepoFile]
    asked: str | None = None
    offline: bool = False
    private: bool | None = None

    def inside(self, folder: str) -> list[str]:
        """Names of the files directly in `folder` ("" is the top), without the folder."""
        prefix = f"{folder}/" if folder else ""
        names = [path[len(prefix) :] for path in self.files if path.startswith(prefix)]
        return sorted(name for name in names if "/" not in name)

    def at(self, path: str) -> Reference:
        """A file of this listing, at its commit."""
        return replace(self.ref, path=path)
