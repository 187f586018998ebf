"""sha256 of files: of one that is read from its start, and of one that is written out of order."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

from dflash_gguf.storage.files import LocalFile

PIECE = 1 << 20


def sha256_of(path: Path, on_piece: Callable[[bytes], None] = lambda _: None) -> str:
    """sha256 of a file, in hex; `on_piece` gets its bytes as they are read."""
    digest = hashlib.sha256()
    with LocalFile(path) as file:
        for at in range(0, file.size, PIECE):
            piece = file.read(at, min(PIECE, file.size - at))
            digest.update(piece)
            on_piece(piece)
    return digest.hexdigest()


class RunningSha256:
    """Hashes a file behind the threads that write it: whatever is whole from its start on.

    `read(offset, length)` reads back what was written. A thread that finds nobody hashing does it.
    """

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._digest = hashlib.sha256()
        self._lock = threading.Lock()
        self._ends: dict[int, int] = {}
        self._at = 0
        self._busy = False

    def written(self, offset: int, length: int) -> None:
        """Tell that bytes have been written; each is told once."""
        with self._lock:
            self._ends[offset] = offset + length
            if self._busy:
                return
            self._busy = True
        while (end := self._next()) is not None:
            for at in range(self._at, end, PIECE):
                self._digest.update(self._read(at, min(PIECE, end - at)))
            self._at = end

    def _next(self) -> int | None:
        with self._lock:
            end = self._ends.pop(self._at, None)
            self._busy = end is not None
            return end

    def hexdigest(self, size: int) -> str:
        """sha256 of the file of `size` bytes, all of which have been told."""
        if self._at != size:
            msg = f"hashed to {self._at} of {size}"
            raise ValueError(msg)
        return self._digest.hexdigest()
