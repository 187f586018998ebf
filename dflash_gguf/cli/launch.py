"""`launch`: ready lines for an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dflash_gguf.cli.output import emit_json, safe, say

if TYPE_CHECKING:
    from dflash_gguf.presenting.launch import LaunchDraft


def run(
    file: Annotated[str, typer.Argument(help="The draft's GGUF, or hf://org/name/file.gguf.", metavar="FILE")],
    target: Annotated[str, typer.Option(help="The target as the engine gets it: a GGUF, a folder, or org/name.")],
    engine: Annotated[str, typer.Option(help="llama.cpp, ollama, vllm or sglang.")] = "llama.cpp",
    p_min: Annotated[float | None, typer.Option(help="End a block before a slot less probable than this.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Print the lines that start an engine with this draft, the oldest engine that can, and what not to combine."""
    from dflash_gguf.presenting.launch import OLDEST, launch

    draft = _draft(file)
    made = launch(draft, target, engine, p_min)
    if as_json:
        emit_json(
            {
                "engine": engine,
                "lines": list(made.lines),
                "notes": list(made.notes),
                "oldest_engine": OLDEST.get((engine, draft.spec.version)),
                "n_max": draft.spec.max_draft,
            }
        )
        return
    for line in made.lines:
        say(safe(line))
    for note in made.notes:
        say(f"# {safe(note)}")


def _draft(file: str) -> LaunchDraft:
    from dflash_gguf.formats.gguf.scan import scan_header
    from dflash_gguf.model.draft_header import require_spec
    from dflash_gguf.model.remote import open_gguf
    from dflash_gguf.presenting.card import CardFile
    from dflash_gguf.presenting.launch import LaunchDraft

    with open_gguf(file) as source:
        header = scan_header(source)
        header.require_sound(source.name)
        spec = require_spec(header.metadata, source.name)
        card = CardFile.of(source.name, header)
        name = source.name
    return LaunchDraft(name, spec, card.repo("general.source."), card.repo("general.base_model.0."))
