"""Changing a file where it is, one process at a time, so that nobody ever reads a half of it.

What stood there goes to a sibling `.<name>.undo` first. While bytes change the file begins with `TORN` instead of its
own magic, on the disk too before the first of them: whatever interrupts it, no reader takes the file for a whole one.
An error or a signal puts the old bytes back at once; after SIGKILL or a power cut the next `InPlace` does.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import struct
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dflash_gguf.errors import InputError, OutputError, UsageError
from dflash_gguf.storage.atomic import AtomicFile
from dflash_gguf.storage.partial import Partial

TORN = b"TORN"
MAX_UNDO = 64 << 20
_PREFIX = struct.Struct("<QQ4s32s")  # the file's size, where, its magic, sha256 of all that and the bytes


class InPlace:
    """A file that this process alone changes; `undone` says that an interrupted change was taken back first."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError (no such file, or one that no reader could find again) or OutputError."""
        self.path = Path(os.path.realpath(path))
        self.undone = False
        self._undo = self.path.with_name(f".{self.path.name}.undo")
        self._fd = -1

    def __enter__(self) -> Self:
        self._fd = self._locked()
        try:
            self.status = os.fstat(self._fd)
            self.undone = self._restore()
            self._undo.unlink(missing_ok=True)
            Partial(self._undo).remove_stale()
        except OSError as error:
            self._close()
            raise self._failed(error) from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def overwrite(self, offset: int, data: bytes) -> None:
        """Replace `len(data)` bytes at `offset`, behind the magic. Raises OutputError; the file then is as it was."""
        magic, old = os.pread(self._fd, len(TORN), 0), os.pread(self._fd, len(data), offset)
        try:
            self._keep(magic, offset, old)
            self._write(0, TORN)
            self._write(offset, data)
            self._write(0, magic)
            self._undo.unlink(missing_ok=True)
        except BaseException as error:
            self._put_back(magic, offset, old)
            if isinstance(error, OSError):
                raise self._failed(error) from error
            raise

    def _put_back(self, magic: bytes, offset: int, old: bytes) -> None:
        """As far as that can be written; where it cannot, the file stays torn, and the next one does it."""
        with suppress(OSError):
            self._write(offset, old)
        with suppress(OSError):
            if os.pread(self._fd, len(old), offset) == old:
                self._write(0, magic)
                self._undo.unlink(missing_ok=True)

    def _locked(self) -> int:
        """The file, once nobody else changes it; another may have put a new one in its place meanwhile."""
        while True:
            try:
                fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except FileNotFoundError:
                raise UsageError("no such file", where=str(self.path), hint="check the path") from None
            except OSError as error:
                raise self._failed(error) from error
            with suppress(OSError):  # some network file systems have no locks
                fcntl.flock(fd, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(self.path)):
                    return fd
            os.close(fd)

    def _keep(self, magic: bytes, offset: int, old: bytes) -> None:
        """Have the old bytes on the disk, whole."""
        raw = _PREFIX.pack(self.status.st_size, offset, magic, _digest(self.status.st_size, offset, magic, old)) + old
        with AtomicFile(self._undo, len(raw), force=True) as file:
            file.write(0, raw)
            file.commit()

    def _restore(self) -> bool:
        """Put back what was kept, if the file is torn. Raises InputError where that is of another file."""
        now = os.pread(self._fd, len(TORN), 0)
        kept = self._kept()
        if kept is None and now == TORN:
            raise InputError(
                "is torn, and what was kept of it is of another file", where=str(self.path), hint=str(self._undo)
            )
        if kept is None or now == kept[0]:
            return False
        magic, offset, old = kept
        self._write(offset, old)
        self._write(0, magic)
        return True

    def _kept(self) -> tuple[bytes, int, bytes] | None:
        """Magic, where, and the bytes there; None where they are not of this file."""
        try:
            fd = os.open(self._undo, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            if os.pread(self._fd, len(TORN), 0) == TORN:
                raise
            return None
        try:
            raw = os.read(fd, MAX_UNDO) if os.fstat(fd).st_size <= MAX_UNDO else b""
        finally:
            os.close(fd)
        size, offset, magic, digest = _PREFIX.unpack_from(raw.ljust(_PREFIX.size, b"\0"))
        old = raw[_PREFIX.size :]
        sound = size == self.status.st_size and digest == _digest(size, offset, magic, old)
        return (magic, offset, old) if sound else None

    def _write(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = os.pwrite(self._fd, view, offset)
            view, offset = view[count:], offset + count
        os.fsync(self._fd)

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def _failed(self, error: OSError) -> OutputError:
        where, hint = str(self.path), "name an output instead of --in-place"
        if error.errno == errno.ENOENT:
            return OutputError(
                f"was left torn by a patch, and {self._undo.name} is not beside it", where=where, hint=hint
            )
        return OutputError(f"cannot be changed in place: {error.strerror}", where=where, hint=hint)


def _digest(size: int, offset: int, magic: bytes, old: bytes) -> bytes:
    return hashlib.sha256(struct.pack("<QQ4s", size, offset, magic) + old).digest()
