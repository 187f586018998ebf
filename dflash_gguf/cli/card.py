"""`card`: the model card of a repository of drafts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_gguf.cli.output import say

if TYPE_CHECKING:
    from dflash_gguf.presenting.card import CardFile


def run(
    files: Annotated[
        list[str], typer.Argument(help="Files of one draft, or hf://org/name/file.gguf.", metavar="FILE…")
    ],
    bench: Annotated[Path | None, typer.Option(metavar="FILE.json", help="A report of `bench --json`.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write it here, as README.md. [stdout]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a model card from the files' own headers; `check` compares a README.md with the files beside it."""
    from dflash_gguf.model.checkpoint import read_json
    from dflash_gguf.presenting.card import require_one_draft, write_card
    from dflash_gguf.presenting.tables import bench_lines
    from dflash_gguf.storage.atomic import AtomicFile, check_output

    if out is not None:
        check_output(out, force=force)
    held = [_card_file(file) for file in files]
    require_one_draft(held)
    card = write_card(held, bench_lines(read_json(bench), str(bench)) if bench else ())
    if out is None:
        for line in card.splitlines():
            say(line)
        return
    data = card.encode()
    with AtomicFile(out, len(data), force=force) as file:
        file.write(0, data)
        file.commit()


def _card_file(name: str) -> CardFile:
    from dflash_gguf.formats.gguf.scan import scan_header
    from dflash_gguf.model.remote import open_gguf
    from dflash_gguf.presenting.card import CardFile

    with open_gguf(name) as source:
        header = scan_header(source)
        header.require_sound(source.name)
        return CardFile.of(source.name.rpartition("/")[2], header)
