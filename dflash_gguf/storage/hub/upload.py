"""One commit to a repository, and what the Hub then says that it holds."""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_gguf.errors import HubError, InputError
from dflash_gguf.storage.hub.client import Hub
from dflash_gguf.storage.hub.failures import LOG_IN, NoSuchRepoError, logged_in, status_of, told
from dflash_gguf.storage.hub.listing import Listing, RepoFile
from dflash_gguf.storage.hub.reference import Reference
from dflash_gguf.storage.hub.transport import attempt, session
from dflash_gguf.wording import counted


@dataclass(frozen=True, slots=True)
class Upload:
    """One file to be sent: `source` is a local file or the bytes themselves."""

    path: str
    source: Path | bytes
    size: int
    sha256: str

    @classmethod
    def of(cls, path: str, source: Path | bytes) -> Upload:
        """Read all of `source` for its size and hash. Raises InputError."""
        if isinstance(source, bytes):
            return cls(path, source, len(source), hashlib.sha256(source).hexdigest())
        try:
            with source.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                return cls(path, source, file.tell(), digest)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=str(source)) from error

    def is_held(self, file: RepoFile | None) -> bool:
        """Whether a repository's file has this content: by size and sha256, or by git's hash of a small file."""
        if file is None or file.size != self.size:
            return False
        if file.sha256 is not None:
            return file.sha256 == self.sha256
        return file.git_oid == self._git_oid()

    def _git_oid(self) -> str:
        data = self.source if isinstance(self.source, bytes) else self.source.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that was made, and the pull request that holds it."""

    ref: Reference
    pull_request: str | None


def require_login(ref: Reference) -> None:
    """Raise HubError where there is no token to write with."""
    if not logged_in():
        raise HubError("not logged in", where=str(ref), hint=LOG_IN)


def existing(hub: Hub, ref: Reference) -> Listing | None:
    """The repository as it is, None where there is none (or none that this account can see)."""
    try:
        return hub.listing(ref)
    except NoSuchRepoError:
        return None


def create(ref: Reference, *, private: bool) -> None:
    """Make the repository. Raises HubError."""
    from huggingface_hub import HfApi

    with told(ref):
        attempt(ref, lambda: HfApi().create_repo(ref.repo, private=private, exist_ok=True))


def commit(ref: Reference, uploads: list[Upload], message: str, *, parent: str | None, create_pr: bool) -> Committed:
    """Send files in one commit on the default branch, or as a pull request.

    `parent` is the commit that it must follow, so that nobody else's is overwritten. It is not repeated after a
    failure, which may have come after the commit. Raises HubError.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    session()
    with told(ref), _calm():
        operations = [CommitOperationAdd(upload.path, _given(upload.source)) for upload in uploads]
        try:
            info = HfApi().create_commit(
                ref.repo, operations, commit_message=message, parent_commit=parent, create_pr=create_pr
            )
        except ValueError as error:
            if status_of(error.__cause__ or error) == 400:
                raise HubError(
                    "the Hub refuses the card's front matter", where="README.md", hint="license and base_model valid?"
                ) from None
            raise
    return Committed(Reference(ref.repo, info.oid), info.pr_url if create_pr else None)


def verify(hub: Hub, committed: Committed, uploads: list[Upload]) -> None:
    """Compare size and hash of every file in the commit, as the Hub gives them, with what was sent."""
    held: Mapping[str, RepoFile] = hub.listing(committed.ref).files
    for upload in uploads:
        if upload.is_held(file := held.get(upload.path)):
            continue
        found = "nothing" if file is None else _told(file.size or 0, file.sha256 or file.git_oid or "?")
        raise HubError(
            f"the Hub holds {found}, not {_told(upload.size, upload.sha256)}",
            where=f"{committed.ref}/{upload.path}",
            hint="publish it again, or revert the commit",
        )


def _told(size: int, digest: str) -> str:
    return f"{counted(size, 'byte')}, {digest[:12]}"


def _given(source: Path | bytes) -> Any:
    return source if isinstance(source, bytes) else str(source)


@contextmanager
def _calm() -> Iterator[None]:
    """Progress bars on a terminal only (the client's show anywhere), and no warnings in a server's words."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    quiet = not sys.stderr.isatty() and not are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if quiet:
            disable_progress_bars()
        try:
            yield
        finally:
            if quiet:
                enable_progress_bars()
