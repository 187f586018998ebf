"""`bench`: drafts in the real engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_gguf.cli.compare import read_prompts
from dflash_gguf.cli.draft import parse_memory
from dflash_gguf.cli.output import complain, emit_json, say
from dflash_gguf.errors import UsageError

if TYPE_CHECKING:
    from dflash_gguf.engine import BenchReport


def run(
    drafts: Annotated[list[Path], typer.Argument(help="Drafts as GGUF.", metavar="DRAFT.gguf…")],
    target: Annotated[Path, typer.Option(help="The target as GGUF.")],
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prompts (.json, .jsonl, or one text). [built-in ones]")
    ] = None,
    n_predict: Annotated[int, typer.Option("-n", "--n-predict", help="Tokens after each prompt.")] = 128,
    n_max: Annotated[str | None, typer.Option(help="Tokens a block, as in 3,7: a row each. [block_size − 1]")] = None,
    p_min: Annotated[float, typer.Option(help="End a block before a slot less probable than this.")] = 0.0,
    context: Annotated[
        str | None, typer.Option(help="Context ladder, as in 1024,8192: rows with prompts filled up to each.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs, after a warm-up; speeds are medians.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads; -1: the engine's choice.")] = -1,
    gpu_layers: Annotated[int, typer.Option(help="Layers on the GPU.")] = 0,
    time_limit: Annotated[float, typer.Option(help="Seconds for each row's process.")] = 600.0,
    memory: Annotated[
        str | None, typer.Option(help="Bound of each process's address space, as in 8G. [the machine's memory, on CPU]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Measure drafts in the real llama.cpp engine (extra `engine`): speed, acceptance, and a control without draft.

    Each row runs in a process of its own; one that crashes or refuses a file is reported with the engine's reason.
    """
    from dflash_gguf.engine import BenchSettings, bench
    from dflash_gguf.engine.api import physical_memory
    from dflash_gguf.engine.prompt_sets import REPETITIVE, UNIQUE

    bound = parse_memory(memory) if memory else physical_memory() if gpu_layers == 0 else None
    settings = BenchSettings(
        n_predict,
        _numbers(n_max, "--n-max"),
        p_min,
        _numbers(context, "--context"),
        repeats,
        threads,
        gpu_layers,
        time_limit,
        bound,
    )
    texts = (*UNIQUE, *REPETITIVE) if prompts is None else read_prompts(prompts)
    report = bench(target, drafts, texts, settings, on_row=lambda row: complain(f"measuring {row} …"))
    if as_json:
        emit_json(report.document())
    else:
        _show(report)
    if all(row.error for row in report.rows if row.draft is not None):
        raise typer.Exit(1)


def _show(report: BenchReport) -> None:
    from dflash_gguf.presenting.tables import bench_lines

    for line in bench_lines(report.document(), "bench"):
        say(line)


def _numbers(text: str | None, where: str) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise UsageError(f"{text!r} is no list of numbers", where=where, hint="as in 3,7")
    return tuple(dict.fromkeys(map(int, parts)))
