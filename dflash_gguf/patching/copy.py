"""Writing a patched file: the new header, the tensors as they are, and the proof that they are the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_gguf.errors import OutputError
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.storage.atomic import AtomicFile, check_room

if TYPE_CHECKING:
    from dflash_gguf.formats.gguf.layout import TensorInfo
    from dflash_gguf.patching.edits import Edits
    from dflash_gguf.storage.files import LocalFile

_PIECE = 4 << 20


def write_copy(
    file: LocalFile,
    edits: Edits,
    out: Path,
    *,
    force: bool,
    on_bytes: Callable[[int], None],
    like: os.stat_result | None = None,
) -> str:
    """Write the patched file to `out`; returns the sha256 of its tensors' bytes, one behind the other.

    What was written is scanned, hashed and compared with the source while it goes to the disk. `on_bytes` is told of
    the tensor data twice, when they are copied and when they are hashed; `like` is whose permissions and owner the file
    gets. Raises InputError, or OutputError also where they differ.
    """
    encoded = edits.encoded()
    check_room({out: encoded.file_size})
    with AtomicFile(out, encoded.file_size, force=force, like=like) as target:
        target.write(0, encoded.data)
        for tensor, offset in edits.tensors():
            target.copy(file, tensor.offset, tensor.size, offset, on_bytes)
        sha256 = _prove(file, edits, target, on_bytes)
        target.commit()
    return sha256


def copy_whole(file: LocalFile, out: Path, *, force: bool, on_bytes: Callable[[int], None]) -> str:
    """Copy a file in which nothing is to be changed, byte for byte; returns the sha256 of its tensors' bytes."""
    check_room({out: file.size})
    tensors = scan_header(file).tensors.values()
    with AtomicFile(out, file.size, force=force) as target, target.reopen() as written:
        target.copy(file, 0, file.size, 0, on_bytes)
        with ThreadPoolExecutor() as pool:
            synced, sha256 = pool.submit(target.sync), pool.submit(hash_tensors, written, tensors, on_bytes)
            same = _equal(file, 0, written, 0, file.size)
            synced.result()
        if not same:
            raise _differs(target)
        target.commit()
    return sha256.result()


def _prove(file: LocalFile, edits: Edits, target: AtomicFile, on_bytes: Callable[[int], None]) -> str:
    """Hash what was written, as its own header finds it, and compare it with the source byte for byte."""
    before = list(edits.original.tensors.values())
    with ThreadPoolExecutor() as pool, target.reopen() as written:
        synced = pool.submit(target.sync)
        after = list(scan_header(written).tensors.values())
        sha256 = pool.submit(hash_tensors, written, after, on_bytes)
        found = [(t.name, t.type, t.shape) for t in after]
        same = found == [(new, t.type, t.shape) for new, t in zip(edits.names, before, strict=True)] and all(
            _equal(file, one.offset, written, other.offset, one.size) for one, other in zip(before, after, strict=True)
        )
        synced.result()
        if not same:
            raise _differs(target)
        return sha256.result()


def _differs(target: AtomicFile) -> OutputError:
    return OutputError("tensor data read back differ from the source's", where=str(target.path), hint="bad disk?")


def _equal(one: LocalFile, at: int, other: LocalFile, there: int, size: int) -> bool:
    """Whether two ranges hold the same bytes."""
    left, right = bytearray(min(_PIECE, size)), bytearray(min(_PIECE, size))
    for done in range(0, size, _PIECE):
        count = min(_PIECE, size - done)
        one.read_into(at + done, memoryview(left)[:count])
        other.read_into(there + done, memoryview(right)[:count])
        if left != right:  # behind `count` both hold what was compared before
            return False
    return True


def hash_tensors(file: LocalFile, tensors: Iterable[TensorInfo], on_bytes: Callable[[int], None]) -> str:
    """sha256 (hex) of the tensors' bytes in the order of the file, without the padding between them."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_PIECE))
    for tensor in tensors:
        for done in range(0, tensor.size, _PIECE):
            piece = buffer[: min(_PIECE, tensor.size - done)]
            file.read_into(tensor.offset + done, piece)
            digest.update(piece)
            on_bytes(len(piece))
    return digest.hexdigest()
