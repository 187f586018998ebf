"""How a plan and the files it made are shown; `convert` and `quantize` share it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dflash_gguf.cli.output import complain, emit_json, progress_bar, safe, say, size_text, table
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from dflash_gguf.conversion import ConversionListener
    from dflash_gguf.conversion.plan import OutputPlan, Plan


@contextmanager
def listening(label: str) -> Iterator[ConversionListener]:
    """A progress bar, the plan's warnings, and a word when kernels have to be compiled first."""
    from dflash_gguf.conversion import ConversionListener

    with progress_bar(label) as (set_total, advance):

        def on_plan(plan: Plan) -> None:
            tell(plan)
            set_total(plan.source_bytes)

        yield ConversionListener(
            on_plan, lambda: complain("compiling quantization kernels, once for this machine …"), advance
        )


def report_files(plan: Plan, seconds: float, *, as_json: bool) -> None:
    """One line a file, or the JSON document."""
    if as_json:
        files = [_file(output) for output in plan.outputs]
        emit_json({"files": files, "warnings": list(plan.warnings), "seconds": round(seconds, 3)})
        return
    for output in plan.outputs:
        tensors = f"{counted(len(output.tensors), 'tensor')}" + _fallbacks(output)
        say(f"{safe(str(output.path))}: {output.recipe.upper()}, {size_text(output.header.file_size)}, {tensors}")


def tell(plan: Plan) -> None:
    """Warnings and dropped tensors, on stderr."""
    for warning in plan.warnings:
        complain(f"warning: {warning}")
    for name, reason in plan.dropped:
        complain(f"note: {name} is left out: {reason}")


def _fallbacks(output: OutputPlan) -> str:
    count = sum(tensor.reason.startswith("fallback") for tensor in output.tensors)
    return f", {count} of them in a fallback type (--dry-run lists them)" if count else ""


def _file(output: OutputPlan) -> dict[str, Any]:
    from dflash_gguf.conversion.api import file_sha256

    return {
        "path": str(output.path),
        "type": output.recipe.upper(),
        "bytes": output.header.file_size,
        "sha256": file_sha256(output),
        "tensors": len(output.tensors),
    }


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """What a dry run prints: every tensor of every output, and the totals."""
    if as_json:
        emit_json({"files": [_planned(output) for output in plan.outputs], "warnings": list(plan.warnings)})
        return
    for output in plan.outputs:
        header = len(output.header.data)
        say(f"{safe(str(output.path))}: {output.recipe.upper()}")
        rows = [("tensor", "source", "ne", "type", "bytes", "bits/weight", "why")]
        rows += [
            (
                tensor.out.name,
                safe(tensor.source.name),
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
                "source": tensor.source.name,
                "shape": list(tensor.out.shape),
                "type": tensor.out.type.name,
                "bytes": tensor.out.size,
                "bits_per_weight": 8 * tensor.out.size / tensor.out.n_weights,
                "reason": tensor.reason,
            }
            for tensor in output.tensors
        ],
    }
