"""Overwriting a part of a file so that whatever interrupts it can be undone.

What stood there goes to a sibling `.<name>.undo` first, synced; it is removed when the new bytes are on the disk. An
error or a signal puts the old bytes back at once; after SIGKILL or a power cut the next `restore` does.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from contextlib import suppress
from pathlib import Path

from dflash_gguf.bytesio.atomic import AtomicFile
from dflash_gguf.bytesio.partial import sync_folder
from dflash_gguf.errors import OutputError

_PREFIX = struct.Struct("<QQ32s")  # where, the file's size, sha256 of where, size and bytes
MAX_UNDO = 64 << 20


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Replace `len(data)` bytes of `path` at `offset`. Raises OutputError; the file then is as it was."""
    real = Path(os.path.realpath(path))
    fd = _open(real)
    try:
        old = os.pread(fd, len(data), offset)
        undo = _undo(real)
        _keep(undo, offset, os.fstat(fd).st_size, old)
        try:
            _write(fd, offset, data)
        except BaseException as error:
            _write(fd, offset, old)  # where this fails too, the next restore does it
            undo.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise _failed(real, error) from error
            raise
        undo.unlink(missing_ok=True)
        sync_folder(real.parent)
    finally:
        os.close(fd)


def restore(path: Path) -> bool:
    """Put back what an interrupted `overwrite` left; whether there was anything to put back. Raises OutputError."""
    real = Path(os.path.realpath(path))
    undo = _undo(real)
    if not undo.is_file():
        return False
    fd = _open(real)
    try:
        with undo.open("rb") as file:
            raw = file.read(MAX_UNDO)
        kept = _unpack(raw, os.fstat(fd).st_size)
        if kept is not None:
            _write(fd, *kept)
        undo.unlink(missing_ok=True)  # also one of another file that had this name
    except FileNotFoundError:
        return False  # whoever held the lock has done it
    except OSError as error:
        raise _failed(real, error) from error
    finally:
        os.close(fd)
    return kept is not None


def _unpack(raw: bytes, size: int) -> tuple[int, bytes] | None:
    """Offset and bytes, where they belong to a file of this size."""
    if len(raw) < _PREFIX.size:
        return None
    offset, of, digest = _PREFIX.unpack_from(raw)
    old = raw[_PREFIX.size :]
    sound = of == size and offset + len(old) <= size and digest == _digest(offset, size, old)
    return (offset, old) if sound else None


def _undo(real: Path) -> Path:
    return real.with_name(f".{real.name}.undo")


def _keep(undo: Path, offset: int, size: int, old: bytes) -> None:
    """Have the old bytes on the disk, whole."""
    raw = _PREFIX.pack(offset, size, _digest(offset, size, old)) + old
    with AtomicFile(undo, len(raw), force=True) as file:
        file.write(0, raw)
        file.commit()


def _digest(offset: int, size: int, old: bytes) -> bytes:
    return hashlib.sha256(struct.pack("<QQ", offset, size) + old).digest()


def _open(real: Path) -> int:
    """The file, once nobody else overwrites it."""
    try:
        fd = os.open(real, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise _failed(real, error) from error
    with suppress(OSError):  # some network file systems have no locks
        fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def _write(fd: int, offset: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count
    os.fsync(fd)


def _failed(real: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot be written: {error.strerror}", where=str(real), hint="nothing was changed")
