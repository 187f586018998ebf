"""`convert(...)`: the library twin of the command."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_gguf.conversion.plan import ConvertOptions, OutputPlan, Plan, make_plan
from dflash_gguf.conversion.stream import ConversionListener, run_plan
from dflash_gguf.errors import UsageError
from dflash_gguf.model.checkpoint import Checkpoint
from dflash_gguf.model.target import Target, open_target

_NOBODY = ConversionListener()


@dataclass(frozen=True, slots=True)
class Converted:
    """A conversion that was carried out: its plan, and the seconds it took."""

    plan: Plan
    seconds: float


def convert(
    draft: Path, target: Path | Target, options: ConvertOptions, listener: ConversionListener = _NOBODY
) -> Converted:
    """Convert a checkpoint folder to one GGUF per type; the target is a checkpoint's folder or a GGUF.

    Raises the errors of `make_plan` and `run_plan`.
    """
    start = time.perf_counter()
    with Checkpoint(draft) as checkpoint:
        plan = _plan(checkpoint, target, options)
        listener.on_plan(plan)
        run_plan(plan, listener, force=options.force)
    return Converted(plan, time.perf_counter() - start)


def dry_run(draft: Path, target: Path | Target, options: ConvertOptions) -> Plan:
    """The plan of a conversion, without writing anything."""
    with Checkpoint(draft) as checkpoint:
        return _plan(checkpoint, target, replace(options, force=True))  # what exists is not touched


def _plan(checkpoint: Checkpoint, target: Path | Target, options: ConvertOptions) -> Plan:
    opened = open_target(target) if isinstance(target, Path) else target
    plan = make_plan(checkpoint, opened, options)
    _refuse_input_as_output(plan, checkpoint.folder, opened.path)
    return plan


def file_sha256(output: OutputPlan) -> str:
    """sha256 of a file that was written, in hex."""
    with output.path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse_input_as_output(plan: Plan, draft: Path, target: Path) -> None:
    # not Path.resolve, which raises RuntimeError for a link to itself
    inputs = {os.path.realpath(path) for folder in (draft, target) if folder.is_dir() for path in folder.iterdir()}
    inputs.add(os.path.realpath(target))
    for output in plan.outputs:
        if os.path.realpath(output.path) in inputs:
            raise UsageError("is one of the inputs", where=str(output.path), hint="choose another --out")
