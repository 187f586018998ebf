"""`patch(...)`: the library twin of the command."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dflash_gguf.errors import FormatError, UsageError
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.model.remote import gguf_path
from dflash_gguf.patching.apply_fixes import FixSources, chosen_rules, mend, open_helpers, what_is_left
from dflash_gguf.patching.copy import copy_whole, write_copy
from dflash_gguf.patching.edits import Change, Edits
from dflash_gguf.patching.parse_values import check_key, is_text, parse_set
from dflash_gguf.storage.atomic import check_output
from dflash_gguf.storage.files import LocalFile
from dflash_gguf.storage.hub import Hub, parse_reference
from dflash_gguf.storage.inplace import TORN, InPlace

if TYPE_CHECKING:
    from dflash_gguf.checks.finding import Finding


@dataclass(frozen=True, slots=True)
class Patched:
    """What was done: `changes` in their order, and the errors and warnings that `check` has of the file now.

    `tried` are the rules whose fixes were asked for. `sha256` is that of the tensors' bytes, proved the same in the
    source and in the file (None where they were not touched: in place, or on a dry run); `bytes_written` counts what
    was written at all. `undone` says that an earlier patch of this file had been killed and was taken back first.
    """

    path: Path
    changes: tuple[Change, ...]
    left: tuple[Finding, ...]
    tried: tuple[str, ...]
    tensors: int
    tensor_bytes: int
    file_size: int
    bytes_written: int
    sha256: str | None
    undone: bool


@dataclass(frozen=True, slots=True)
class ManualEdits:
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
    if out is not None:
        _check_output(path, Path(out), force=force or dry_run)
    elif not dry_run and Path(os.path.realpath(path)).parent.name == "blobs":
        raise _of_the_cache(str(source))
    helpers = open_helpers(_text(target), _text(original), hub)
    task = _Task(ManualEdits(sets, removes, renames), chosen_rules(fixes, helpers), helpers, dry_run, on_bytes)
    name = str(out or source)
    if out is None and not dry_run:
        with InPlace(path) as held:
            return task.carry_out(path, name, lambda file, edits: task.change(held, file, edits), undone=held.undone)
    return task.carry_out(path, name, lambda file, edits: task.write(file, edits, out, force=force))


Written: TypeAlias = "tuple[int, str | None]"  # bytes written, and the tensors' hash where they were copied


@dataclass(frozen=True, slots=True)
class _Task:
    wishes: ManualEdits
    rules: Sequence[str]
    helpers: FixSources
    dry_run: bool
    on_bytes: Callable[[int], None]

    def carry_out(
        self, path: Path, name: str, write: Callable[[LocalFile, Edits], Written], *, undone: bool = False
    ) -> Patched:
        """Plan the changes of `path`, `write` them, and say what is left; `name` is what the result is called."""
        with LocalFile(path) as file:
            edits = plan_edits(file, self.wishes, self.rules, self.helpers)
            left = what_is_left(edits, file, name, self.helpers)
            written, sha256 = write(file, edits)
            tensors = edits.original.tensors.values()
            return Patched(
                Path(name),
                tuple(edits.log),
                left,
                tuple(self.rules),
                len(tensors),
                sum(tensor.size for tensor in tensors),
                edits.encoded().file_size if edits.changed else file.size,
                written,
                sha256,
                undone,
            )

    def write(self, file: LocalFile, edits: Edits, out: str | Path | None, *, force: bool) -> Written:
        """To another file; nowhere on a dry run that names none."""
        if out is None or self.dry_run:
            return 0, None
        if not edits.changed:
            return file.size, copy_whole(file, Path(out), force=force, on_bytes=self.on_bytes)
        return edits.encoded().file_size, write_copy(file, edits, Path(out), force=force, on_bytes=self.on_bytes)

    def change(self, held: InPlace, file: LocalFile, edits: Edits) -> Written:
        """The file itself."""
        if not edits.changed:
            return 0, None
        if edits.moves_nothing:
            return _overwrite_header(held, file, edits.encoded().data), None
        if held.status.st_nlink > 1:
            told = f"has {held.status.st_nlink} names (hard links), and would have to be written anew"
            raise UsageError(told, where=file.name, hint="name an output instead of --in-place")
        written, like = edits.encoded().file_size, held.status
        return written, write_copy(file, edits, held.path, force=True, on_bytes=self.on_bytes, like=like)


def plan_edits(file: LocalFile, wishes: ManualEdits, rules: Sequence[str], helpers: FixSources) -> Edits:
    """The header with all changes. Raises FormatError where it could not be read, or could not any more."""
    header = scan_header(file)
    header.require_sound(file.name)
    edits = Edits(header)
    for key in wishes.removes:
        check_key(key, "--remove")
        edits.remove(key)
    edits.rename_tensors(dict(map(_parse_rename, wishes.renames)))
    for text in wishes.sets:
        edits.set(*parse_set(text))
    mend(edits, file, rules, helpers)
    try:
        edits.header.require_sound(file.name)
    except FormatError as error:
        raise FormatError(f"would not be read: {error.message}", where=error.where, rule=error.rule) from error
    return edits


def _parse_rename(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not equals or not old or not new or not is_text(new) or not new.isprintable():
        raise UsageError(f"{text!a} is not OLD=NEW", where="--rename-tensor", hint="NEW is printable text")
    return old, new


def _overwrite_header(held: InPlace, file: LocalFile, new: bytes) -> int:
    """Write from the first byte that differs to the last; returns how many those are."""
    old = file.read(0, len(new))
    differing = [at for at in range(0, len(new), _STEP) if new[at : at + _STEP] != old[at : at + _STEP]]
    if not differing:
        return 0
    first, end = max(differing[0], len(TORN)), min(differing[-1] + _STEP, len(new))
    held.overwrite(first, new[first:end])
    return end - first


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
