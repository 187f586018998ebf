"""Writing a file so that its final name only ever holds a whole one.

Data goes to a locked sibling `.<name>.<random>.partial`; `commit` syncs it, renames it over the final name and
syncs the folder. Whatever goes wrong before that leaves the old file untouched. A partial file whose lock nobody
holds belongs to a process that was killed: the next run removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dflash_gguf.bytesio.source import LocalFile
from dflash_gguf.errors import OutputError, UsageError

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

    def __init__(self, path: Path, size: int, *, force: bool) -> None:
        self.path = check_output(path, force=force)
        self.force = force
        self.size = size
        # no process id: processes of two containers that share a folder may have the same
        self._partial = self.path.with_name(f".{self.path.name}.{os.urandom(8).hex()}.partial")
        self._fd = -1

    def __enter__(self) -> Self:
        self.create()
        return self

    def create(self) -> None:
        """Make the partial file and reserve its room; whoever calls this registers `__exit__` before."""
        _remove_stale(self.path)
        try:
            self._fd = _create_locked(self._partial)
            _reserve(self._fd, self.size)
        except BaseException as error:
            self._discard()
            if isinstance(error, OSError):
                raise self._failed(error) from error
            raise

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` at `offset`."""
        view = memoryview(data)
        try:
            while view:
                count = os.pwrite(self._fd, view, offset)
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
                count = os.copy_file_range(source.fileno(), self._fd, size, offset, at)
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
        return LocalFile(self._partial)

    def read(self, offset: int, length: int) -> bytes:
        """Bytes as they stand in the file now."""
        return os.pread(self._fd, length, offset)

    def sync(self) -> None:
        """Have all that was written on the disk."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._failed(error) from error

    def commit(self) -> None:
        """Make the file durable under its final name."""
        self.sync()
        check_output(self.path, force=self.force)  # somebody may have written it meanwhile
        try:
            os.rename(self._partial, self.path)
        except OSError as error:
            raise self._failed(error) from error
        self._close()
        sync_folder(self.path.parent)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._discard()

    def _discard(self) -> None:
        with suppress(OSError):  # what remains is removed by the next run
            self._partial.unlink(missing_ok=True)
        if self._fd >= 0:
            self._close()

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def _failed(self, error: OSError) -> OutputError:
        if error.errno in _NO_ROOM:
            return OutputError(
                f"no room for {self.size:,} bytes: {error.strerror}",
                where=str(self.path),
                hint="nothing was replaced",
            )
        return OutputError(f"cannot be written: {error.strerror}", where=str(self.path), hint="nothing was replaced")


def _create_locked(partial: Path) -> int:
    while True:
        fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # some network file systems have no locks: there nobody can take ours for a stale one
            fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:  # else another run took it for a stale one before it was locked
            return fd
        os.close(fd)


def _reserve(fd: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in _NO_RESERVING:
            raise
    os.ftruncate(fd, size)


def _remove_stale(path: Path) -> None:
    """Remove partial files of `path` that no living process holds locked."""
    for partial in path.parent.glob(f".{glob_escape(path.name)}.*.partial"):
        try:
            fd = os.open(partial, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # gone already, or not ours to remove
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink(missing_ok=True)
        except OSError:
            pass  # another process is writing it
        finally:
            os.close(fd)


def glob_escape(name: str) -> str:
    """`name` as a glob pattern that matches it alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def sync_folder(folder: Path) -> None:
    """As far as the folder may be read and its file system can: the file itself is in place."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
