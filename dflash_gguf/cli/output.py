"""What every command shares: escaped text, one JSON document, tables of plain text, a progress bar on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dflash_gguf.wording import SCHEMA_VERSION, json_line, safe

MAX_LINE = 4096  # characters of a message; files can hold names of many MiB
_PIECE = 1 << 16  # characters

__all__ = ["complain", "emit_json", "progress_bar", "safe", "say", "say_lines", "size_text", "table"]


def complain(line: str) -> None:
    """One line on stderr, cut where it is endless; a stderr that nobody reads stops no work."""
    shown = safe(line[: MAX_LINE + 1])
    with suppress(OSError):
        sys.stderr.write((shown if len(shown) <= MAX_LINE else shown[:MAX_LINE] + "…") + "\n")


def say(line: str = "") -> None:
    """One line of the answer; text from files has been passed through `safe`."""
    sys.stdout.write(line + "\n")


def say_lines(text: str) -> None:
    """A text from a file, its line breaks kept; in pieces, since it may be most of the file."""
    for at in range(0, len(text), _PIECE):
        sys.stdout.write("\n".join(map(safe, text[at : at + _PIECE].split("\n"))))
    sys.stdout.write("\n")


def emit_json(document: dict[str, Any]) -> None:
    """The one JSON document of a `--json` answer."""
    sys.stdout.write(json_line({"schema_version": SCHEMA_VERSION, **document}))


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Aligned columns, two spaces apart; columns in `right` are flush right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def size_text(size: int) -> str:
    """Bytes exactly, and in a unit that can be grasped."""
    for unit, label in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size:,} B ({size / unit:.2f} {label})"
    return f"{size:,} B"


@contextmanager
def progress_bar(label: str) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """(set the total, advance), both in bytes; silent unless stderr is a terminal."""
    if not sys.stderr.isatty():
        yield (lambda _: None), (lambda _: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield (lambda total: bar.update(task, total=total)), (lambda count: bar.advance(task, count))
