"""`convert`: checkpoint to GGUF."""

from __future__ import annotations

from typing import Annotated

import typer

from dflash_gguf.cli.plan_view import listening, report_files, show_plan, tell
from dflash_gguf.errors import UsageError


def run(
    draft: Annotated[
        str, typer.Argument(help="The draft's checkpoint: a folder, or org/name on the Hub.", metavar="DRAFT")
    ],
    target: Annotated[
        str, typer.Option(help="The target, likewise, or its GGUF: only its config and tokenizer are read.")
    ],
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type", help="bf16 (default), f16, f32, q8_0, q4_k_m, q4_k_s, q5_k_m, q6_k, q4_0, q5_0; repeatable."
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="A file, a folder, or a name with {type}. [dflash-<target>-<TYPE>.gguf]")
    ] = None,
    tensor_type: Annotated[
        list[str] | None, typer.Option(metavar="REGEX=T", help="Another type for matching tensors; repeatable.")
    ] = None,
    no_fallback: Annotated[
        bool, typer.Option("--no-fallback", help="Refuse rows that do not fit the type's block.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="general.name of the file.")] = None,
    tokenizer_pre: Annotated[str | None, typer.Option(help="tokenizer.ggml.pre, where it cannot be told.")] = None,
    target_layers: Annotated[
        str | None, typer.Option(metavar="I,J,…", help="Target layer ids as in config.json, where it has none.")
    ] = None,
    embed: Annotated[
        str,
        typer.Option(metavar="keep|drop|from-target", help="Embedding and head: the draft's own, none, the target's."),
    ] = "keep",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace outputs that exist.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a config with keys that nothing reads.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Convert a DFlash or DFlash 2 checkpoint plus its target's tokenizer to GGUF for llama.cpp."""
    from dflash_gguf.conversion import ConvertOptions, convert
    from dflash_gguf.conversion import dry_run as plan_only
    from dflash_gguf.model.recipe import parse_override
    from dflash_gguf.model.remote import open_pair
    from dflash_gguf.storage.hub import Hub

    options = ConvertOptions(
        types=tuple(types or ["bf16"]),
        out=out,
        overrides=tuple(parse_override(text) for text in tensor_type or []),
        fallback=not no_fallback,
        name=name,
        tokenizer_pre=tokenizer_pre,
        target_layers=_layer_ids(target_layers),
        embed=embed,
        force=force,
        strict=strict,
    )
    draft_folder, opened = open_pair(draft, target, Hub())
    if dry_run:
        plan = plan_only(draft_folder, opened, options)
        tell(plan)
        show_plan(plan, as_json=as_json)
        return
    with listening("converting") as listener:
        done = convert(draft_folder, opened, options, listener)
    report_files(done.plan, done.seconds, as_json=as_json)


def _layer_ids(text: str | None) -> tuple[int, ...] | None:
    """Ids as config.json has them, shifted to what GGUF holds."""
    from dflash_gguf.library import shifted

    if text is None:
        return None
    try:
        return shifted([int(part) for part in text.split(",")])
    except ValueError:
        raise UsageError(f"{text!r} is no list of layer ids", where="--target-layers") from None
