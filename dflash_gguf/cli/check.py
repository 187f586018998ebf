"""`check`: every way a draft file is silently bad."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dflash_gguf.cli.output import complain, emit_json, progress_bar
from dflash_gguf.errors import OutputError, UsageError

if TYPE_CHECKING:
    from dflash_gguf.checks import CheckReport, Severity


def run(
    files: Annotated[
        list[str],
        typer.Argument(
            help="GGUF files, folders of them, a README.md beside them, or org/name[@refs/pr/N] on the Hub.",
            metavar="FILE…",
        ),
    ],
    target: Annotated[
        str | None, typer.Option(help="The target: its folder (configs are read) or its GGUF (the header is).")
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="DRAFT", help="The checkpoint that the file was converted from.")
    ] = None,
    data: Annotated[bool, typer.Option("--data", help="Read all weights: NaN, zeros, constants.")] = False,
    output_format: Annotated[
        str, typer.Option("--format", metavar="F", help="text, json, sarif, junit or github.")
    ] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    select: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only rules whose id begins so; repeatable, or A,B.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="No rules whose id begins so; repeatable, or A,B.")
    ] = None,
    fail_on: Annotated[str, typer.Option(metavar="S", help="error or warn: what makes the exit code 1.")] = "error",
    baseline: Annotated[
        str | None, typer.Option(metavar="F", help="A report of --format json: its findings are known.")
    ] = None,
    sarif: Annotated[str | None, typer.Option(metavar="F", help="Write the report as SARIF to this file too.")] = None,
) -> None:
    """Check drafts: container, metadata, tokenizer, tensors; with --target the pair, with --source the conversion."""
    import gc

    from dflash_gguf.checks import check
    from dflash_gguf.checks.render import renderer

    gc.disable()  # vocabularies are a million strings and no cycle: looking for some takes a tenth of a second
    threshold = _threshold(fail_on)
    name = "json" if as_json else output_format
    render = renderer(name)
    if any(_is_checkpoint(Path(file)) for file in files):
        _verify(files, source, name)
    with progress_bar("checking") as (_, advance):
        report = check(
            files,
            target=target,
            source=source,
            data=data,
            select=select or (),
            ignore=ignore or (),
            baseline=baseline,
            on_bytes=advance,
        )
    sys.stdout.write(render(report))
    if name == "github":
        _write_summary(report)
    if sarif is not None:
        _write(Path(sarif), renderer("sarif")(report))
    for file in report.files:
        if file.error is not None:
            complain(f"error: {file.error}")
    raise typer.Exit(report.exit_code(threshold))


def _is_checkpoint(path: Path) -> bool:
    """Whether it is a folder with a checkpoint and no GGUF: an MXFP8 one is the only kind to check."""
    return (path / "config.json").is_file() and any(path.glob("*.safetensors")) and not any(path.glob("*.gguf"))


def _is_quantized(folder: Path) -> bool:
    """Whether anything says that it was written in a quantized form."""
    from dflash_gguf.model.checkpoint import read_config
    from dflash_gguf.model.quantization import HF_QUANT_CONFIG

    if (folder / HF_QUANT_CONFIG).exists() or (folder / "conversion_manifest.json").exists():
        return True
    return "quantization_config" in read_config(folder)


def _verify(files: list[str], source: str | None, render: str) -> NoReturn:
    """Verify an MXFP8 checkpoint as `mxfp8 --verify` does."""
    from dflash_gguf.cli.mxfp8 import show_report, verified

    if not _is_quantized(next(Path(file) for file in files if _is_checkpoint(Path(file)))):
        raise UsageError(
            "is a checkpoint that is not quantized", where=" ".join(files), hint="convert it: check reads GGUF"
        )
    if len(files) > 1:
        raise UsageError("a checkpoint is checked alone", where=" ".join(files), hint="name it only")
    if render not in ("text", "json"):
        raise UsageError(f"{render} is for GGUF files", where="--format", hint="text or json reports on a checkpoint")
    report = verified(files[0], source)
    if render == "text":
        show_report(report)
    else:
        findings = [
            {
                "rule": f"mxfp8-{finding.step}",
                "severity": "error",
                "message": finding.message,
                "hint": "write it anew with mxfp8",
                "where": finding.where,
            }
            for finding in report.findings
        ]
        file = {
            "path": files[0],
            "verdict": "pass" if report.passed else "fail",
            "error": None,
            "findings": findings,
            "passed": [f"mxfp8-{step}" for step in report.qualified_for],
            "not_checked": [f"mxfp8-{step}: {reason}" for step, reason in report.not_checked],
        }
        emit_json({"files": [file]})
    raise typer.Exit(0 if report.passed else 1)


def _threshold(text: str) -> Severity:
    from dflash_gguf.checks import Severity

    known = {"error": Severity.ERROR, "warn": Severity.WARNING, "warning": Severity.WARNING}
    if text not in known:
        raise UsageError(f"{text!a} is neither error nor warn", where="--fail-on")
    return known[text]


def _write_summary(report: CheckReport) -> None:
    """Append to the job summary, where GitHub says that there is one."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        from dflash_gguf.checks.render.github import summary

        _write(Path(path), summary(report), mode="a")


def _write(path: Path, text: str, mode: str = "w") -> None:
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", where=str(path)) from error
