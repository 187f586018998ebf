"""`patch`: a file's header mended without converting it anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_gguf.cli.output import complain, emit_json, progress_bar, safe, say, size_text
from dflash_gguf.errors import UsageError
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash_gguf.formats.gguf.values import MetaValue
    from dflash_gguf.patching import Change, Patched

_SHOWN, _ITEMS = 72, 16


def run(
    source: Annotated[str, typer.Argument(help="A GGUF: a path, or hf://org/name/file.gguf.", metavar="IN")],
    out: Annotated[str | None, typer.Argument(help="The file to write.", metavar="OUT")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="K=TYPE:V", help="Set a key: u32:8, f32:1e-6, str:x, i32:[1,2]; repeatable."),
    ] = None,
    removes: Annotated[
        list[str] | None, typer.Option("--remove", metavar="K", help="Remove a key; repeatable.")
    ] = None,
    renames: Annotated[
        list[str] | None, typer.Option("--rename-tensor", metavar="OLD=NEW", help="Rename a tensor; repeatable.")
    ] = None,
    fixes: Annotated[
        list[str] | None,
        typer.Option("--fix", metavar="RULE", help="Mend what a rule of check finds, or `all`; repeatable, or A,B."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="The target, for fixes that ask for it.")] = None,
    original: Annotated[
        str | None, typer.Option("--source", metavar="DRAFT", help="The draft's checkpoint, for fixes that ask for it.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Change IN itself; OUT is left out.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes, write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an output that exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Change keys and tensor names, mend what check finds, migrate foreign dialects; tensor data stay as they are."""
    from dflash_gguf.patching import patch

    if (out is None) == (not in_place) and not (dry_run and out is None):
        told = "names two places to write to" if in_place else "is missing"
        raise UsageError(told, where="OUT", hint="name an output, or give --in-place")
    with progress_bar("patching") as (_, advance):
        done = patch(
            source,
            out,
            sets=sets or (),
            removes=removes or (),
            renames=renames or (),
            fixes=fixes or (),
            target=target,
            original=original,
            force=force,
            dry_run=dry_run,
            on_bytes=advance,
        )
    if done.undone:
        complain("note: an earlier patch of this file was interrupted; it was taken back first")
    if as_json:
        emit_json(_document(done))
    else:
        given = [option for option, value in (("--target", target), ("--source", original)) if value is not None]
        _show(done, _hints(done.tried, given), dry_run=dry_run)
    failed = bool(fixes) and any(finding.severity.value == "error" for finding in done.left)
    raise typer.Exit(1 if failed else 0)


def _show(done: Patched, hints: dict[str, str], *, dry_run: bool) -> None:
    for change in done.changes:
        say(_line(change))
    if not done.changes and not done.bytes_written:
        say("nothing to change")
    if done.bytes_written:
        name = safe(str(done.path))
        told = f"{counted(done.tensors, 'tensor')}, {size_text(done.tensor_bytes)}, "
        told += f"the same as before, sha256 {done.sha256}" if done.sha256 else "not touched"
        say(f"{name}: {size_text(done.bytes_written)} written; {told}")
    elif dry_run:
        say("nothing was written (--dry-run)")
    for finding in done.left if done.tried else [f for f in done.left if f.severity.value == "error"]:
        where = f"{finding.where}: " if finding.where else ""
        hint = hints.get(finding.rule, finding.hint)
        complain(f"left: {finding.rule} {finding.severity.value}: {where}{finding.message} ({hint})")


def _hints(tried: Sequence[str], given: Sequence[str]) -> dict[str, str]:
    """How to go on with rules that have a fix: give what it needs; where it had that, nothing tells the right value."""
    from dflash_gguf.patching.fix_context import FIXES

    hints = {}
    for rule, mend in FIXES.items():
        needs = [option for option in ("--source", "--target") if option in mend.needs and option not in given]
        if needs:
            hints[rule] = f"--fix {rule} needs {' and '.join(needs)}"
        elif rule in tried:
            hints[rule] = "nothing given tells what is right"
    return hints


def _line(change: Change) -> str:
    because = f"{change.rule}: " if change.rule else ""
    if change.kind == "tensor":
        return f"{because}tensor {safe(change.old)} → {safe(change.new)}"
    if change.kind == "container":
        return f"{because}{change.old}"
    if not change.old:
        return f"{because}{safe(change.new)} = {_value(change.after)}"
    if not change.new:
        return f"{because}{safe(change.old)} removed (was {_value(change.before)})"
    name = safe(change.old) if change.old == change.new else f"{safe(change.old)} → {safe(change.new)}"
    same = change.old != change.new and change.before == change.after
    return f"{because}{name}: {_value(change.after) if same else f'{_value(change.before)} → {_value(change.after)}'}"


def _value(value: MetaValue | None) -> str:
    """A value with its type, short enough for a line."""
    from dflash_gguf.formats.gguf.values import Array
    from dflash_gguf.model.draft_header import value_type

    if value is None:
        return "absent"
    if isinstance(value.value, Array) and value.value.count > _ITEMS:
        return f"{value_type(value)} of {counted(value.value.count, 'item')}"
    shown = value.value.items() if isinstance(value.value, Array) else value.value
    text = f"{shown:g}" if isinstance(shown, float) else safe(str(shown))
    return f"{text if len(text) <= _SHOWN else text[: _SHOWN - 1] + '…'} ({value_type(value)})"


def _document(done: Patched) -> dict[str, Any]:
    from dflash_gguf.model.draft_header import plain

    return {
        "path": str(done.path),
        "changes": [
            {
                "kind": change.kind,
                "rule": change.rule or None,
                "old": change.old or None,
                "new": change.new or None,
                "before": None if change.before is None else plain(change.before),
                "after": None if change.after is None else plain(change.after),
            }
            for change in done.changes
        ],
        "left": [
            {"rule": f.rule, "severity": f.severity.value, "message": f.message, "hint": f.hint, "where": f.where}
            for f in done.left
        ],
        "tensors": done.tensors,
        "tensor_bytes": done.tensor_bytes,
        "tensor_sha256": done.sha256,
        "file_size": done.file_size,
        "bytes_written": done.bytes_written,
        "undone": done.undone,
    }
