"""`convert`: checkpoint to GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_gguf.cli.output import complain, emit_json, progress_bar, safe, say, size_text, table
from dflash_gguf.errors import UsageError

if TYPE_CHECKING:
    from dflash_gguf.convert.plan import OutputPlan, Plan


def run(
    draft: Annotated[str, typer.Argument(help="The draft's checkpoint folder.", metavar="DRAFT")],
    target: Annotated[str, typer.Option(help="The target's folder: its config and tokenizer are read.")],
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace outputs that exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Convert a DFlash or DFlash 2 checkpoint plus its target's tokenizer to GGUF for llama.cpp."""
    from dflash_gguf.convert import Options, convert
    from dflash_gguf.convert import dry_run as plan_only
    from dflash_gguf.model.recipe import parse_override

    options = Options(
        types=tuple(types or ["bf16"]),
        out=out,
        overrides=tuple(parse_override(text) for text in tensor_type or []),
        fallback=not no_fallback,
        name=name,
        tokenizer_pre=tokenizer_pre,
        target_layers=_layer_ids(target_layers),
        force=force,
    )
    if dry_run:
        _show_plan(plan_only(Path(draft), Path(target), options), as_json=as_json)
        return
    with progress_bar("converting") as (set_total, advance):

        def on_plan(plan: Plan) -> None:
            _tell(plan)
            set_total(sum(tensor.pair.source.size for tensor in plan.outputs[0].tensors))

        done = convert(Path(draft), Path(target), options, progress=advance, on_plan=on_plan)
    if as_json:
        emit_json({"files": [_file(output) for output in done.plan.outputs], "seconds": round(done.seconds, 3)})
        return
    for output in done.plan.outputs:
        tensors = f"{len(output.tensors)} tensors" + _fallbacks(output)
        say(f"{safe(str(output.path))}: {output.recipe.upper()}, {size_text(output.header.file_size)}, {tensors}")


def _layer_ids(text: str | None) -> tuple[int, ...] | None:
    """Ids as config.json has them, shifted to what GGUF holds."""
    if text is None:
        return None
    try:
        ids = [int(part) for part in text.split(",")]
    except ValueError:
        ids = []
    if not ids or ids != sorted(set(ids)) or ids[0] < 0:
        raise UsageError(f"{text!r} is no increasing list of layer ids", where="--target-layers")
    return tuple(item + 1 for item in ids)


def _tell(plan: Plan) -> None:
    for warning in plan.warnings:
        complain(f"warning: {warning}")
    for name, reason in plan.dropped:
        complain(f"note: {name} is left out: {reason}")


def _fallbacks(output: OutputPlan) -> str:
    count = sum(tensor.reason.startswith("fallback") for tensor in output.tensors)
    return f", {count} of them in a fallback type (--dry-run lists them)" if count else ""


def _file(output: OutputPlan) -> dict[str, Any]:
    from dflash_gguf.convert.api import file_sha256

    return {
        "path": str(output.path),
        "type": output.recipe.upper(),
        "bytes": output.header.file_size,
        "sha256": file_sha256(output),
        "tensors": len(output.tensors),
    }


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    _tell(plan)
    if as_json:
        emit_json({"files": [_planned(output) for output in plan.outputs]})
        return
    for output in plan.outputs:
        header = len(output.header.data)
        say(f"{safe(str(output.path))}: {output.recipe.upper()}")
        rows = [("tensor", "source", "ne", "type", "bytes", "bits/weight", "why")]
        rows += [
            (
                tensor.out.name,
                safe(tensor.pair.source.name),
                "×".join(map(str, tensor.out.shape)),
                tensor.out.type.name,
                f"{tensor.out.size:,}",
                f"{8 * tensor.out.size / tensor.out.n_weights:.2f}",
                tensor.reason,
            )
            for tensor in output.tensors
        ]
        for line in table(rows, right=(4, 5)):
            say("  " + line)
        weights = sum(tensor.out.n_weights for tensor in output.tensors)
        size = output.header.file_size
        bits = 8 * (size - header) / weights
        say(f"  header {header:,} B, tensor data {size - header:,} B, file {size_text(size)}, {bits:.2f} bits/weight")


def _planned(output: OutputPlan) -> dict[str, Any]:
    return {
        "path": str(output.path),
        "type": output.recipe.upper(),
        "bytes": output.header.file_size,
        "header_bytes": len(output.header.data),
        "tensors": [
            {
                "name": tensor.out.name,
                "source": tensor.pair.source.name,
                "shape": list(tensor.out.shape),
                "type": tensor.out.type.name,
                "bytes": tensor.out.size,
                "bits_per_weight": 8 * tensor.out.size / tensor.out.n_weights,
                "reason": tensor.reason,
            }
            for tensor in output.tensors
        ],
    }
