"""`patch(...)`: the library twin of the command."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_gguf.bytesio.atomic import check_output
from dflash_gguf.bytesio.hub import Hub, parse_reference
from dflash_gguf.bytesio.inplace import overwrite, restore
from dflash_gguf.bytesio.source import LocalFile
from dflash_gguf.errors import FormatError, UsageError
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.model.remote import gguf_path
from dflash_gguf.patching.copy import copy_whole, write_copy
from dflash_gguf.patching.edits import Change, Edits
from dflash_gguf.patching.mend import Helpers, chosen_rules, mend, open_helpers, what_is_left
from dflash_gguf.patching.values import check_key, parse_set

if TYPE_CHECKING:
    from dflash_gguf.checks.finding import Finding


@dataclass(frozen=True, slots=True)
class Patched:
    """What was done: `changes` in their order, and the errors and warnings that `check` has of the file now.

    `sha256` is that of the tensors' bytes, proved the same in the source and in the file (None where they were not
    touched: in place, or on a dry run); `bytes_written` counts what was written at all. `undone` says that an earlier
    patch of this file had been killed and was undone first.
    """

    path: Path
    changes: tuple[Change, ...]
    left: tuple[Finding, ...]
    tensors: int
    tensor_bytes: int
    file_size: int
    bytes_written: int
    sha256: str | None
    undone: bool


@dataclass(frozen=True, slots=True)
class Wishes:
    """Edits by hand, as the command line takes them: KEY=TYPE:VALUE, KEY, OLD=NEW."""

    sets: Sequence[str] = ()
    removes: Sequence[str] = ()
    renames: Sequence[str] = ()


def patch(
    source: str | Path,
    out: str | Path | None = None,
    *,
    sets: Sequence[str] = (),
    removes: Sequence[str] = (),
    renames: Sequence[str] = (),
    fixes: Sequence[str] = (),
    target: str | Path | None = None,
    original: str | Path | None = None,
    force: bool = False,
    dry_run: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Patched:
    """Write `source` with another header to `out`, or change it in place where `out` is None.

    First `removes` (keys), `renames` (OLD=NEW, tensors) and `sets` (KEY=TYPE:VALUE) are carried out, then the `fixes`
    (ids of rules of `check`, or the beginning of ids, or "all"), which take their values from the file, from `target`
    and from `original`, the draft's checkpoint. Tensor data are never changed; `on_bytes` is told of them twice, as
    they are copied and as they are hashed. Raises UsageError, FormatError (a file that cannot be read, or would not
    be), ModelError, InputError, HubError or OutputError; the old file then is as it was.
    """
    hub = Hub()
    if out is None and not dry_run and parse_reference(str(source)) is not None:
        raise _of_the_cache(str(source))
    path = gguf_path(str(source), hub)
    wishes = Wishes(sets, removes, renames)
    if out is not None:
        _check_output(path, Path(out), force=force or dry_run)
    elif not dry_run and Path(os.path.realpath(path)).parent.name == "blobs":
        raise _of_the_cache(str(source))
    helpers = open_helpers(_text(target), _text(original), hub)
    rules = chosen_rules(fixes, helpers)
    undone = out is None and not dry_run and restore(path)
    with LocalFile(path) as file:
        edits = plan_edits(file, wishes, rules, helpers)
        written, sha256 = (0, None) if dry_run else _write(file, edits, out, force=force, on_bytes=on_bytes)
        tensors = edits.original.tensors.values()
        return Patched(
            path if out is None else Path(out),
            tuple(edits.log),
            what_is_left(edits, file, str(out or source), helpers),
            len(tensors),
            sum(tensor.size for tensor in tensors),
            edits.encoded().file_size if edits.changed else file.size,
            written,
            sha256,
            undone,
        )


def plan_edits(file: LocalFile, wishes: Wishes, rules: Sequence[str], helpers: Helpers) -> Edits:
    """The header with all changes. Raises FormatError where it could not be read, or could not any more."""
    header = scan_header(file)
    header.require_sound(file.name)
    edits = Edits(header)
    for key in wishes.removes:
        check_key(key, "--remove")
        edits.remove(key)
    for text in wishes.renames:
        old, equals, new = text.partition("=")
        if not equals or not old or not new:
            raise UsageError(f"{text!a} is not OLD=NEW", where="--rename-tensor")
        edits.rename_tensor(old, new)
    for text in wishes.sets:
        edits.set(*parse_set(text))
    mend(edits, file, rules, helpers)
    try:
        edits.header.require_sound(file.name)
    except FormatError as error:
        raise FormatError(f"would not be read: {error.message}", where=error.where, rule=error.rule) from error
    return edits


def _write(
    file: LocalFile, edits: Edits, out: str | Path | None, *, force: bool, on_bytes: Callable[[int], None]
) -> tuple[int, str | None]:
    """Bytes written, and the hash of the tensor data where they were copied."""
    if out is not None:
        if not edits.changed:
            return file.size, copy_whole(file, Path(out), force=force, on_bytes=on_bytes)
        return edits.encoded().file_size, write_copy(file, edits, Path(out), force=force, on_bytes=on_bytes)
    if not edits.changed:
        return 0, None
    if edits.moves_nothing:
        return _overwrite_header(file, edits.encoded().data), None
    return edits.encoded().file_size, write_copy(file, edits, file.path, force=True, on_bytes=on_bytes)


def _overwrite_header(file: LocalFile, new: bytes) -> int:
    """Write from the first byte that differs to the last; returns how many those are."""
    old = file.read(0, len(new))
    first = next((at for at in range(0, len(new), _STEP) if new[at : at + _STEP] != old[at : at + _STEP]), None)
    if first is None:
        return 0
    last = next(at for at in range(len(new), 0, -_STEP) if new[max(0, at - _STEP) : at] != old[max(0, at - _STEP) : at])
    overwrite(file.path, first, new[first:last])
    return last - first


_STEP = 512


def _check_output(path: Path, out: Path, *, force: bool) -> None:
    if os.path.realpath(out) == os.path.realpath(path):
        raise UsageError("is the input", where=str(out), hint="--in-place changes a file where it is")
    check_output(out, force=force)


def _of_the_cache(source: str) -> UsageError:
    """Its blobs are named after what they hold."""
    return UsageError("belongs to the Hub's cache", where=source, hint="name an output instead of --in-place")


def _text(place: str | Path | None) -> str | None:
    return None if place is None else str(place)
