"""Repositories: what they hold, their files in the client's cache, a file's bytes in place."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_gguf.errors import HubError, OutputError, UsageError
from dflash_gguf.storage.files import LocalFile
from dflash_gguf.storage.hub.download import fetch_large
from dflash_gguf.storage.hub.failures import told
from dflash_gguf.storage.hub.listing import Listing, RepoFile
from dflash_gguf.storage.hub.reference import Reference, check_repo_path
from dflash_gguf.storage.hub.transport import attempt

if TYPE_CHECKING:
    from dflash_gguf.storage.hub.remote_file import RemoteFile

MAX_FILES = 1_000_000


class Hub:
    """One session with the Hub: listings and open files are shared by all who ask for the same."""

    def __init__(self) -> None:
        self._listings: dict[tuple[str, str | None], Listing] = {}
        self._open: dict[Reference | tuple[str, int], RemoteFile] = {}

    def listing(self, ref: Reference) -> Listing:
        """Commit and files of `ref`'s repository at its revision: one request. Raises HubError."""
        key = (ref.repo, ref.revision)
        if key not in self._listings:
            try:
                listing = self._cached_listing(ref) if _offline() else self._ask_listing(ref)
            except HubError as error:
                raise type(error)(error.message, where=error.where, hint=ref.hint(error.hint)) from None
            self._listings[key] = self._listings[ref.repo, listing.ref.revision] = listing
        return self._listings[key]

    def commit(self, ref: Reference) -> Reference:
        """`ref` at the commit that its revision is at present."""
        return replace(ref, revision=self.listing(ref).ref.revision)

    def fetch(self, listing: Listing, paths: Iterable[str]) -> Path:
        """Have `paths` in the cache, with a progress bar for each on a terminal; returns the snapshot's folder.

        Raises HubError; OutputError where the cache cannot be written.
        """
        for path in paths:
            self._fetch_one(listing, check_repo_path(path, str(listing.ref)))
        _remember(listing)
        return _repo_cache(listing.ref) / "snapshots" / str(listing.ref.revision)

    def open(self, ref: Reference) -> LocalFile | RemoteFile:
        """A file of a repository, to be read in place; the cache's copy where it holds one.

        Raises HubError, UsageError where `ref` names no file.
        """
        from dflash_gguf.storage.hub.remote_file import RemoteFile

        ref.require_file()
        if ref in self._open:
            return self._open[ref]
        if (ref.is_commit or _offline()) and (path := _cached(ref)):
            return _local(path, ref)
        remote = RemoteFile(ref)
        if path := _cached(remote.ref):
            return _local(path, ref)
        remote = self._open.setdefault((remote.etag, remote.size), remote)  # a sibling of the same content
        if ref.is_commit:  # which stays what it is
            self._open[ref] = remote
        return remote

    def _fetch_one(self, listing: Listing, path: str) -> Path:
        from huggingface_hub import constants, hf_hub_download

        ref, bar, file = listing.at(path), _bar(path), listing.files.get(path)

        def ask() -> Path:
            if file is not None and not listing.offline:
                fetch_large(ref, file, _repo_cache(ref), bar)
            return Path(
                hf_hub_download(
                    ref.repo,
                    path,
                    revision=ref.revision,
                    etag_timeout=constants.HF_HUB_ETAG_TIMEOUT,
                    tqdm_class=bar,
                )
            )

        with told(ref, lambda name: _nearest(listing, name)):
            return attempt(ref, ask)

    def _ask_listing(self, ref: Reference) -> Listing:
        from huggingface_hub import HfApi, constants

        def ask() -> Any:
            return HfApi().model_info(
                ref.repo, revision=ref.revision, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
            )

        where = replace(ref, path="")
        with told(where):
            info = attempt(where, ask)
            commit = replace(where, revision=str(info.sha))
            siblings = info.siblings or []
        if not commit.is_commit or len(siblings) > MAX_FILES:
            raise HubError("the Hub's answer cannot be used", where=str(where), hint="is HF_ENDPOINT a Hub?")
        files = (_entry(sibling) for sibling in siblings)
        held = {file.path: file for file in files if _is_safe(file.path)}
        return Listing(commit, held, ref.revision, private=info.private)

    def _cached_listing(self, ref: Reference) -> Listing:
        folder = _snapshot(ref)
        if folder is None:
            raise HubError("is not in the cache, and offline mode is on", where=str(ref), hint="unset HF_HUB_OFFLINE")
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        files = {name: RepoFile(name, (folder / name).stat().st_size) for name in sorted(names)}
        return Listing(Reference(ref.repo, folder.name), files, ref.revision, offline=True)


def _entry(sibling: Any) -> RepoFile:
    lfs = sibling.lfs
    return RepoFile(str(sibling.rfilename), sibling.size, lfs.sha256 if lfs else None, sibling.blob_id)


def _is_safe(path: str) -> bool:
    try:
        check_repo_path(path, "")
    except UsageError:
        return False
    return True


def _nearest(listing: Listing, path: str) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(path, listing.files, n=3, cutoff=0.5)


def _offline() -> bool:
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE


def _cached(ref: Reference) -> Path | None:
    """The cache's copy of a file, if it holds one of this very revision."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(ref.repo, ref.path, revision=ref.revision)
    return Path(found) if isinstance(found, str) else None


def _repo_cache(ref: Reference) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=ref.repo, repo_type="model")


def _snapshot(ref: Reference) -> Path | None:
    """The cache's folder of a revision."""
    cache = _repo_cache(ref)
    named = cache / "refs" / (ref.revision or "main")
    commit = ref.revision if ref.is_commit else named.read_text().strip() if named.is_file() else ""
    folder = cache / "snapshots" / (commit or "-")
    return folder if folder.is_dir() else None


def _remember(listing: Listing) -> None:
    """Let the cache know which commit the asked revision was, as the client does, so that it is found offline."""
    name = _repo_cache(listing.ref) / "refs" / (listing.asked or "main")
    commit = str(listing.ref.revision)
    if listing.offline or listing.asked == commit or (name.is_file() and name.read_text() == commit):
        return
    try:
        name.parent.mkdir(parents=True, exist_ok=True)
        partial = name.with_name(f".{name.name}.{os.getpid()}")
        partial.write_text(commit)
        partial.replace(name)
    except OSError as error:
        raise OutputError(
            f"the cache cannot be written: {error.strerror}", where=str(name), hint="see HF_HOME"
        ) from None


def _bar(path: str) -> Any:
    """The client's progress bar under the file's name: its own choice can be a signed link."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "desc": path})  # type: ignore[no-untyped-call]

    return Bar


def _local(path: Path, ref: Reference) -> LocalFile:
    file = LocalFile(path)
    file.name = str(ref)
    return file
