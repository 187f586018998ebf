"""Writing a folder so that its final name only ever holds a whole one.

Files are written into a locked hidden sibling `.<name>.<pid>.partial`; `commit` syncs it and renames it. Whatever
goes wrong before that leaves what stood under the final name untouched. What a killed process left behind is
removed by the next run.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from dflash_gguf.bytesio.atomic import glob_escape, sync_folder
from dflash_gguf.errors import OutputError, UsageError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def check_output_folder(path: Path, *, force: bool) -> Path:
    """The folder that writing to `path` will make or replace (a link's target). An empty one may stand there.

    Raises UsageError when something else is there, or a full folder and `force` is not given.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_dir():
        raise UsageError("is no folder", where=str(path), hint="name a folder that does not exist yet")
    if target.is_dir() and any(target.iterdir()) and not force:
        raise UsageError("exists already", where=str(path), hint="--force replaces it")
    if not target.parent.is_dir():
        raise UsageError("the folder it would stand in does not exist", where=str(path), hint=f"mkdir {target.parent}")
    return target


class AtomicFolder:
    """A folder that is filled under a hidden name, `partial`, and committed at the end."""

    def __init__(self, path: Path, *, force: bool) -> None:
        self.path = check_output_folder(path, force=force)
        self.force = force
        self.partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        self._fd = -1

    def __enter__(self) -> Self:
        _remove_stale(self.path)
        try:
            self._fd = _make_locked(self.partial)
        except OSError as error:
            raise self._failed(error) from error
        return self

    def commit(self) -> None:
        """Make the folder durable under its final name."""
        try:
            for folder, _, _ in os.walk(self.partial):
                sync_folder(Path(folder))
            check_output_folder(self.path, force=self.force)  # somebody may have made it meanwhile
            self._rename()
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._failed(error) from error

    def _rename(self) -> None:
        """Put the new folder under the final name; a replaced one gets the hidden name, and goes with it."""
        if not self.path.is_dir() or not any(self.path.iterdir()):
            os.rename(self.partial, self.path)
        elif not _exchange(self.partial, self.path):
            replaced = self.partial.with_name(f".{self.path.name}.{os.getpid()}.replaced.partial")
            os.rename(self.path, replaced)
            os.rename(self.partial, self.path)
            shutil.rmtree(replaced, ignore_errors=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        shutil.rmtree(self.partial, ignore_errors=True)
        os.close(self._fd)

    def _failed(self, error: OSError) -> OutputError:
        return OutputError(f"cannot be written: {error.strerror}", where=str(self.path), hint="nothing was replaced")


def _make_locked(partial: Path) -> int:
    while True:
        partial.mkdir()
        fd = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if partial.is_dir() and os.fstat(fd).st_ino == partial.stat().st_ino:
            return fd
        os.close(fd)  # another run took it for a stale one before it was locked


def _remove_stale(path: Path) -> None:
    """Remove partial folders of `path` that no living process holds locked."""
    for partial in path.parent.glob(f".{glob_escape(path.name)}.*.partial"):
        try:
            fd = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # a file, gone already, or not ours to remove
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(partial, ignore_errors=True)
        except OSError:
            pass  # another process is writing it
        finally:
            os.close(fd)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change names at once, so that the final name is never empty; False where that cannot be done."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:  # not Linux
        return False
    return bool(renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)
