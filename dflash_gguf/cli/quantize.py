"""`quantize`: GGUF to GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dflash_gguf.cli.plan_view import listening, report_files, show_plan


def run(
    source: Annotated[str, typer.Argument(help="A draft with F32, F16 or BF16 matrices.", metavar="IN.gguf")],
    out: Annotated[str, typer.Argument(help="The file to write.", metavar="OUT.gguf")],
    kind: Annotated[str, typer.Option("--type", help="q4_k_m, q8_0, … as for convert.")],
    tensor_type: Annotated[
        list[str] | None, typer.Option(metavar="REGEX=T", help="Another type for matching tensors; repeatable.")
    ] = None,
    no_fallback: Annotated[
        bool, typer.Option("--no-fallback", help="Refuse rows that do not fit the type's block.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an output that exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Quantize a draft that is GGUF already: the same kernels and recipes as convert, metadata kept."""
    from dflash_gguf.conversion.requantize import quantize_file
    from dflash_gguf.model.recipe import parse_override

    with listening("quantizing") as listener:
        plan, seconds = quantize_file(
            Path(source),
            Path(out),
            kind,
            overrides=tuple(parse_override(text) for text in tensor_type or []),
            fallback=not no_fallback,
            force=force,
            dry_run=dry_run,
            listener=listener,
        )
    if dry_run:
        show_plan(plan, as_json=as_json)
    else:
        report_files(plan, seconds, as_json=as_json)
