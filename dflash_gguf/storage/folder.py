"""Writing a folder so that its final name only ever holds a whole one.

Files are written into a locked hidden sibling (partial.py); `commit` syncs it and renames it. Whatever goes wrong
before that leaves what stood under the final name untouched. Without `force` nothing is replaced but an empty folder,
not even what another run gave its name in the same moment.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from dflash_gguf.errors import OutputError, UsageError
from dflash_gguf.storage.partial import Partial, partial_of, sync_folder

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
        self._partial = Partial(self.path, folder=True)
        self.partial = self._partial.path

    def __enter__(self) -> Self:
        try:
            self._partial.create()
        except OSError as error:
            raise self._failed(error) from error
        return self

    def commit(self) -> None:
        """Make the folder durable under its final name."""
        try:
            for folder, _, _ in os.walk(self.partial):
                sync_folder(Path(folder))
            check_output_folder(self.path, force=self.force)  # somebody may have made it meanwhile
            self._name()
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._failed(error) from error

    def _name(self) -> None:
        try:
            os.rename(self.partial, self.path)  # takes the place of nothing, or of an empty folder
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not self.force:
                raise UsageError("exists already", where=str(self.path), hint="--force replaces it") from None
            self._replace()

    def _replace(self) -> None:
        """Put the new folder under the final name; the replaced one gets a hidden name, and goes with it."""
        if _exchange(self.partial, self.path):
            return
        replaced = partial_of(self.path)
        try:
            os.rename(self.path, replaced)
            os.rename(self.partial, self.path)
        finally:
            if self.path.exists():
                shutil.rmtree(replaced, ignore_errors=True)
            else:
                os.rename(replaced, self.path)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._partial.discard()

    def _failed(self, error: OSError) -> OutputError:
        return OutputError(f"cannot be written: {error.strerror}", where=str(self.path), hint="nothing was replaced")


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change names at once, so that the final name is never empty; False where that cannot be done."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:  # not Linux
        return False
    return bool(renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)
