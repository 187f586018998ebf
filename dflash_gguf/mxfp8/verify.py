"""`verify_mxfp8(...)`: what an MXFP8 checkpoint has in fact been checked for, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dflash_gguf.model.checkpoint import Checkpoint, existing_folder, read_json
from dflash_gguf.model.remote import complete_folder
from dflash_gguf.mxfp8.checkpoint_plan import MANIFEST
from dflash_gguf.mxfp8.examine import (
    CLAIMS,
    Contents,
    PairedCheckpoint,
    examine_checksums,
    examine_manifest,
    examine_structure,
    read_contents,
)
from dflash_gguf.mxfp8.report import Record, VerificationReport
from dflash_gguf.mxfp8.reproduce import OURS, plan_again, reproduce_files, reproduce_tensors
from dflash_gguf.storage.hub import Hub

__all__ = ["VerificationReport", "verify_mxfp8"]


def verify_mxfp8(
    folder: str | Path, source: str | Path | None = None, *, on_bytes: Callable[[int], None] = lambda _: None
) -> VerificationReport:
    """Check the MXFP8 checkpoint in `folder`, and where `source` is given that it follows from that BF16 checkpoint.

    Both: folders, or repositories on the Hub. `on_bytes` is told bytes that have been read, from several threads.
    Raises UsageError (no such folder) and InputError; whatever is wrong with the files is in the report.
    """
    hub = Hub()
    folder, source = complete_folder(str(folder), hub), None if source is None else complete_folder(str(source), hub)
    existing_folder(folder)
    record, subject, document = Record(), None, None
    with ExitStack() as stack:
        with record.step("structure"):
            subject = examine_structure(stack.enter_context(Checkpoint(folder)), record)
        contents = read_contents(folder, subject, record, on_bytes)
        if (folder / MANIFEST).is_file():
            with record.step("checksums"):
                document = read_json(folder / MANIFEST)
                examine_checksums(folder, document, contents, record)
        if document and subject and CLAIMS & document.keys():
            with record.step("manifest"):
                examine_manifest(folder, document, subject, contents, record)
        if source is not None and subject:
            again = stack.enter_context(Checkpoint(source))
            _reproduce(folder, again, subject, document, contents, record, on_bytes)
    _explain_skipped(record, subject, document, source)
    counts = (len(subject.tensors), len(subject.quantized)) if subject else (0, 0)
    return record.report(folder, tensors=counts[0], quantized=counts[1])


def _reproduce(
    folder: Path,
    source: Checkpoint,
    subject: PairedCheckpoint,
    document: Mapping[str, Any] | None,
    contents: Contents,
    record: Record,
    on_bytes: Callable[[int], None],
) -> None:
    remade = None
    with record.step("tensors"):
        plan = plan_again(source, subject)
        remade = reproduce_tensors(plan, subject, record, on_bytes)
    if remade and document and document.get("converter") == OURS:
        with record.step("files"):
            reproduce_files(folder, plan, remade, document, contents, record)


def _explain_skipped(
    record: Record, subject: PairedCheckpoint | None, document: Mapping[str, Any] | None, source: Path | None
) -> None:
    """A reason for every step that did not take place; one that found something has its findings."""
    no_manifest = "" if document else f"there is no {MANIFEST} that can be read"
    silent = "" if document and CLAIMS & document.keys() else "the manifest says nothing of the tensors"
    unsound = "" if subject else "the structure is not sound"
    no_source = "" if source else "no source is given (--source)"
    foreign = "" if document and document.get("converter") == OURS else "the manifest is another tool's"
    reasons = {
        "values": unsound,
        "checksums": no_manifest,
        "manifest": no_manifest or unsound or silent,
        "tensors": no_source or unsound,
        "files": no_source or unsound or no_manifest or foreign or "its tensors are not those of the source",
    }
    for name, reason in reasons.items():
        if reason and name not in record.taken:
            record.skip(name, reason)
