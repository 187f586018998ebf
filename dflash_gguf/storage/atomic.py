"""Writing a file so that its final name only ever holds a whole one.

Data goes to a locked hidden sibling (partial.py); `commit` syncs it, gives it the final name and syncs the folder.
Whatever goes wrong before that leaves the old file untouched. Without `force` no file is ever replaced, not even one
that another run gave its name in the same moment.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dflash_gguf.errors import OutputError, UsageError
from dflash_gguf.storage.files import LocalFile
from dflash_gguf.storage.partial import Partial, sync_folder

_NO_ROOM = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
_NO_COPYING = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
_PIECE = 16 << 20
_NO_RESERVING = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


def check_output(path: Path, *, force: bool) -> Path:
    """The file that writing to `path` will replace (a link's target), after the checks that cost nothing.

    Raises UsageError when it exists and `force` is not given, or when it is no regular file.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = os.stat(target).st_mode
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.isdir(target.parent):
            hint = f"mkdir -p {target.parent}"
            raise UsageError("its folder does not exist", where=str(path), hint=hint) from None
        return target
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", where=str(path), hint="choose another") from error
    if stat.S_ISDIR(mode):
        raise UsageError("is a directory", where=str(path), hint="name a file")
    if not stat.S_ISREG(mode):
        raise UsageError("is not a regular file", where=str(path), hint="choose another output")
    if not force:
        raise UsageError("exists already", where=str(path), hint="--force replaces it")
    return target


def check_outputs(paths: Iterable[Path], *, force: bool) -> None:
    """`check_output` of each; UsageError also where two of them are one file, by a link."""
    taken: dict[Path, Path] = {}
    for path in paths:
        target = check_output(path, force=force)
        if target in taken:
            raise UsageError(f"is the same file as {taken[target]}", where=str(path), hint="choose another --out")
        taken[target] = path


def check_room(sizes: dict[Path, int]) -> None:
    """Raise OutputError unless every file system has room for the files that will be written to it."""
    needs: dict[int, tuple[Path, int]] = {}
    for path, size in sizes.items():
        device = os.stat(_folder(path)).st_dev
        first, total = needs.get(device, (path, 0))
        needs[device] = (first, total + size)
    for path, total in needs.values():
        free = shutil.disk_usage(_folder(path)).free
        if total > free:
            raise OutputError(
                f"no room: {total:,} bytes are needed, {free:,} are free",
                where=str(path),
                hint="free some space",
            )


def _folder(path: Path) -> str:
    """Where a file will lie: a link may lead to another file system."""
    return os.path.dirname(os.path.realpath(path))


class AtomicFile:
    """A file of a size known beforehand, written at any offset, from several threads, and committed at the end."""

    def __init__(self, path: Path, size: int, *, force: bool, like: os.stat_result | None = None) -> None:
        """`like`: whose owner and permissions the file gets, as far as this process may give them."""
        self.path = check_output(path, force=force)
        self.force = force
        self.size = size
        self.like = like
        self._partial = Partial(self.path)

    def __enter__(self) -> Self:
        self.create()
        return self

    def create(self) -> None:
        """Make the partial file and reserve its room; whoever calls this registers `__exit__` before."""
        try:
            self._partial.create()
            if self.like is not None:
                _resemble(self._partial.fd, self.like)
            _reserve(self._partial.fd, self.size)
        except BaseException as error:
            self._partial.discard()
            if isinstance(error, OSError):
                raise self._failed(error) from error
            raise

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` at `offset`."""
        view = memoryview(data)
        try:
            while view:
                count = os.pwrite(self._partial.fd, view, offset)
                view, offset = view[count:], offset + count
        except OSError as error:
            raise self._failed(error) from error

    def copy(
        self, source: LocalFile, offset: int, length: int, at: int, on_bytes: Callable[[int], None] = lambda _: None
    ) -> None:
        """Copy `length` bytes of `source` at `offset` to `at`, inside the kernel where it can do that."""
        end = offset + length
        while offset < end:
            size = min(_PIECE, end - offset)
            try:
                count = os.copy_file_range(source.fileno(), self._partial.fd, size, offset, at)
            except OSError as error:
                if error.errno not in _NO_COPYING:
                    raise self._failed(error) from error
                count = 0
            if count == 0:  # not between these file systems, or past the end, of which reading tells
                self.write(at, source.read(offset, size))
                count = size
            on_bytes(count)
            offset, at = offset + count, at + count

    def reopen(self) -> LocalFile:
        """What was written so far, to be read as any file."""
        return LocalFile(self._partial.path)

    def read(self, offset: int, length: int) -> bytes:
        """Bytes as they stand in the file now."""
        return os.pread(self._partial.fd, length, offset)

    def sync(self) -> None:
        """Have all that was written on the disk."""
        try:
            os.fsync(self._partial.fd)
        except OSError as error:
            raise self._failed(error) from error

    def commit(self) -> None:
        """Make the file durable under its final name."""
        self.sync()
        try:
            self._name()
        except OSError as error:
            raise self._failed(error) from error
        sync_folder(self.path.parent)

    def _name(self) -> None:
        if not self.force:
            try:
                os.link(self._partial.path, self.path)  # `discard` removes the hidden name
            except FileExistsError:
                raise UsageError("exists already", where=str(self.path), hint="--force replaces it") from None
            except OSError:  # a file system without a second name for a file, or one that will not rename either
                pass
            else:
                return
        check_output(self.path, force=self.force)  # somebody may have written it meanwhile
        os.rename(self._partial.path, self.path)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._partial.discard()

    def _failed(self, error: OSError) -> OutputError:
        if error.errno in _NO_ROOM:
            return OutputError(
                f"no room for {self.size:,} bytes: {error.strerror}",
                where=str(self.path),
                hint="nothing was replaced",
            )
        return OutputError(f"cannot be written: {error.strerror}", where=str(self.path), hint="nothing was replaced")


def _resemble(fd: int, like: os.stat_result) -> None:
    with suppress(PermissionError):
        os.fchown(fd, like.st_uid, like.st_gid)
    os.fchmod(fd, stat.S_IMODE(like.st_mode))


def _reserve(fd: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in _NO_RESERVING:
            raise
    os.ftruncate(fd, size)
