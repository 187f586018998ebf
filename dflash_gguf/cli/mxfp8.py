"""`mxfp8`: BF16 checkpoint to MXFP8 checkpoint, and verification of one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_gguf.cli.output import complain, emit_json, progress_bar, safe, say, size_text
from dflash_gguf.errors import UsageError
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from dflash_gguf.mxfp8 import VerificationReport, Written
    from dflash_gguf.mxfp8.checkpoint_plan import CheckpointPlan


def run(
    draft: Annotated[
        str | None, typer.Argument(help="The BF16 checkpoint: a folder, or org/name on the Hub.", metavar="DRAFT")
    ] = None,
    out_dir: Annotated[str | None, typer.Argument(help="The folder to write.", metavar="OUT_DIR")] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Leave matching modules in BF16: part of a name, or a wildcard; repeatable. lm_head always is.",
        ),
    ] = None,
    verify: Annotated[
        str | None, typer.Option(metavar="DIR", help="Verify an MXFP8 checkpoint (or org/name) instead.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="DRAFT", help="With --verify: the BF16 checkpoint that it comes from.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a checkpoint that this command wrote.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Write a DFlash checkpoint as MXFP8, the form that vLLM serves, or verify such a checkpoint."""
    if verify is not None:
        if draft or out_dir or exclude or force:
            raise UsageError("takes --source and --json only", where="--verify")
        _verify(verify, source, as_json=as_json)
    elif not draft or not out_dir:
        raise UsageError("DRAFT and OUT_DIR are needed, or --verify DIR", where="mxfp8", hint="see mxfp8 --help")
    elif source is not None:
        raise UsageError("goes with --verify", where="--source")
    else:
        _write(draft, Path(out_dir), tuple(exclude or ()), force=force, as_json=as_json)


def _write(draft: str, out: Path, exclude: tuple[str, ...], *, force: bool, as_json: bool) -> None:
    from dflash_gguf.model.remote import complete_folder
    from dflash_gguf.mxfp8 import Mxfp8Listener, write_mxfp8
    from dflash_gguf.storage.hub import Hub

    folder = complete_folder(draft, Hub())
    with progress_bar("quantizing") as (set_total, advance):

        def on_plan(plan: CheckpointPlan) -> None:
            set_total(plan.source_bytes)

        def on_compile() -> None:
            complain("compiling quantization kernels, once for this machine …")

        written = write_mxfp8(
            folder, out, exclude=exclude, force=force, listener=Mxfp8Listener(on_plan, on_compile, advance)
        )
    if as_json:
        document = {key: value for key, value in written.manifest.items() if key != "schema"}
        size = written.plan.output_bytes
        emit_json({"path": str(out), "bytes": size, **document, "seconds": round(written.seconds, 3)})
    else:
        _show_written(written)


def _show_written(written: Written) -> None:
    coverage, error = written.manifest["coverage"], written.manifest["aggregate_error"]
    tensors = counted(coverage["tensors"], "tensor")
    say(f"{safe(str(written.folder))}: MXFP8, {size_text(written.plan.output_bytes)}")
    say(f"  {coverage['quantized']} of {tensors} quantized, {coverage['kept']} as they were")
    noise = "" if error["sqnr_db"] is None else f", SQNR {error['sqnr_db']:.2f} dB"
    say(f"  relative RMSE {100 * error['relative_rmse']:.3f} %{noise}, cosine {error['cosine']:.6f}")
    if left := written.plan.left_out:
        say(f"  left out: {safe(', '.join(left))}")


def _verify(folder: str, source: str | None, *, as_json: bool) -> None:
    report = verified(folder, source)
    if as_json:
        emit_json(report_document(report))
    else:
        show_report(report)
    if not report.passed:
        raise typer.Exit(1)


def verified(folder: str, source: str | None) -> VerificationReport:
    """Verify a checkpoint, with a progress bar; folders or repositories on the Hub."""
    from dflash_gguf.model.remote import complete_folder
    from dflash_gguf.mxfp8 import verify_mxfp8
    from dflash_gguf.storage.hub import Hub

    hub = Hub()
    subject, original = complete_folder(folder, hub), complete_folder(source, hub) if source else None
    with progress_bar("verifying") as (_, advance):
        return verify_mxfp8(subject, original, on_bytes=advance)


def report_document(report: VerificationReport) -> dict[str, object]:
    """A report as JSON."""
    return {
        "path": str(report.folder),
        "verdict": "pass" if report.passed else "fail",
        "tensors": report.tensors,
        "quantized": report.quantized,
        "qualified_for": list(report.qualified_for),
        "not_checked": [{"step": name, "reason": reason} for name, reason in report.not_checked],
        "findings": [
            {"step": finding.step, "where": finding.where, "message": finding.message} for finding in report.findings
        ],
    }


def show_report(report: VerificationReport) -> None:
    """A report for a person."""
    from dflash_gguf.mxfp8.report import STEPS

    counts = f", {report.quantized} quantized of {counted(report.tensors, 'tensor')}" if report.tensors else ""
    say(f"{safe(str(report.folder))}: {'pass' if report.passed else 'FAIL'}{counts}")
    for finding in report.findings:
        say(f"  wrong: {safe(finding.where)}: {safe(finding.message)}")
    for name in report.qualified_for:
        say(f"  qualified for {name}: {STEPS[name]}")
    for name, reason in report.not_checked:
        say(f"  not checked, {name}: {reason}")
