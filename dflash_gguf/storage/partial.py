"""The hidden sibling `.<name>.<random>.partial` under which a file or a folder is made, locked while it is made.

One whose lock nobody holds belongs to a process that was killed: the next run removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path


class Partial:
    """The partial of `final`: a file, or a `folder`. `fd` is open while it is locked."""

    def __init__(self, final: Path, *, folder: bool = False) -> None:
        # no process id: processes of two containers that share a folder may have the same
        self.path = partial_of(final)
        self.fd = -1
        self._final, self._folder = final, folder

    def create(self) -> None:
        """Remove what killed processes left, then make it. Raises OSError, and leaves nothing then."""
        try:
            self.remove_stale()
            while not self._made():  # another run took it for a stale one before it was locked
                self._close()
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove what has the hidden name, and unlock."""
        try:
            self._remove(self.path)
        except BaseException:  # a signal; those that follow it are ignored
            self._remove(self.path)
            raise
        finally:
            self._close()

    def _made(self) -> bool:
        """Make and lock it; whether it is still there then."""
        if self._folder:
            self.path.mkdir()
        try:
            self.fd = self._open(self.path, os.O_CREAT | os.O_EXCL)
        except FileNotFoundError:
            if self._folder:
                return False
            raise
        with suppress(OSError):  # some network file systems have no locks: there nobody can take ours for a stale one
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        return self.path.exists()

    def _open(self, path: Path, flags: int) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY if self._folder else os.O_RDWR | flags
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)

    def remove_stale(self) -> None:
        """Remove partials that no living process holds locked."""
        for partial in self._final.parent.glob(f".{_glob_escape(self._final.name)}.*.partial"):
            try:
                fd = self._open(partial, 0)
            except OSError:
                continue  # of the other kind, gone already, or not ours to remove
            try:
                with suppress(OSError):  # another process is making it
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._remove(partial)
            finally:
                os.close(fd)

    def _remove(self, path: Path) -> None:
        if self._folder:
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):  # what remains is removed by the next run
                path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def partial_of(final: Path) -> Path:
    """A hidden name beside `final` that nothing has."""
    return final.with_name(f".{final.name}.{os.urandom(8).hex()}.partial")


def sync_folder(folder: Path) -> None:
    """As far as the folder may be read and its file system can: the file itself is in place."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _glob_escape(name: str) -> str:
    """`name` as a glob pattern that matches it alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
