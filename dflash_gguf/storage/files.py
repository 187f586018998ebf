"""Reading at offsets: one protocol for a local file, bytes in memory and (elsewhere) a file on the Hub."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from dflash_gguf.errors import InputError, UsageError
from dflash_gguf.wording import counted


class ByteFile(Protocol):
    """Bytes of a known size that can be read at any offset, from several threads at once."""

    @property
    def name(self) -> str:
        """What to call this source in a message."""

    @property
    def size(self) -> int:
        """Bytes in all."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; raises InputError when they cannot be had."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`; raises InputError when it cannot be filled."""


class MemoryFile:
    """Bytes that are already in memory."""

    def __init__(self, data: bytes, name: str = "<memory>") -> None:
        self._data = data
        self.name = name
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        part = self._data[offset : offset + length]
        if len(part) != length:
            raise InputError(
                f"{counted(length, 'byte')} at {offset} beyond the end ({counted(self.size, 'byte')})", where=self.name
            )
        return part

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """See ByteSource."""
        buffer[:] = self.read(offset, len(buffer))


class PatchedFile:
    """Another source with `data` in place of what stands at `offset`."""

    def __init__(self, base: ByteFile, offset: int, data: bytes) -> None:
        self._base, self._offset, self._data = base, offset, data
        self.name, self.size = base.name, base.size

    def read(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        buffer = bytearray(self._base.read(offset, length))
        self._lay_over(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """See ByteSource."""
        self._base.read_into(offset, buffer)
        self._lay_over(offset, buffer)

    def _lay_over(self, offset: int, buffer: memoryview) -> None:
        first = max(offset, self._offset)
        last = min(offset + len(buffer), self._offset + len(self._data))
        if first < last:
            buffer[first - offset : last - offset] = self._data[first - self._offset : last - self._offset]


class LocalFile:
    """A local file read with pread: a file that shrinks meanwhile is an error, not a crash (as with mmap)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        try:
            # without O_NONBLOCK a FIFO would wait for its writer; regular files do not mind
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise UsageError("no such file", where=self.name, hint="check the path") from None
        except OSError as error:
            raise InputError(f"cannot be opened: {error.strerror}", where=self.name) from error
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            raise UsageError("is not a regular file", where=self.name, hint="name the file itself")
        self.size = status.st_size

    def read(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        try:
            data = os.pread(self._fd, length, offset)
            while len(data) < length:  # Linux returns at most 2 GiB a call
                more = os.pread(self._fd, length - len(data), offset + len(data))
                if not more:
                    raise self._short(offset, length)
                data += more
        except OSError as error:
            raise InputError(f"cannot be read at {offset}: {error.strerror}", where=self.name) from error
        return data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """See ByteSource; no copy is made."""
        done = 0
        try:
            while done < len(buffer):
                count = os.preadv(self._fd, [buffer[done:]], offset + done)
                if count == 0:
                    raise self._short(offset, len(buffer))
                done += count
        except OSError as error:
            raise InputError(f"cannot be read at {offset}: {error.strerror}", where=self.name) from error

    def _short(self, offset: int, length: int) -> InputError:
        wanted, had = counted(length, "byte"), counted(self.size, "byte")
        return InputError(
            f"the file ended while {wanted} at {offset} were to be read (it had {had} when opened)",
            where=self.name,
            hint="was it still being written?",
        )

    def fileno(self) -> int:
        """The descriptor, for what copies inside the kernel."""
        return self._fd

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
