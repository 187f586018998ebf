"""TN306: the weights themselves. They are read once, in tiles, by a thread per core."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_gguf.checks.finding import Severity
from dflash_gguf.checks.registry import Needs, NotChecked, Problem, rule
from dflash_gguf.checks.subject import Subject
from dflash_gguf.formats.gguf.types import GGMLType
from dflash_gguf.wording import counted

#: mean of |weight| of a norm; trained ones lie between about 0.01 and 100
_USUAL = (1e-4, 1e4)


@rule(
    "TN306",
    Severity.ERROR,
    "weights that cannot have been trained",
    why="One NaN or infinity spreads over every token that passes it; a matrix of zeros or of one value is a tensor "
    "that was never filled.",
    at_run_time="The draft runs and proposes noise, or the same token again and again: nothing is accepted.",
    fix="Convert anew and compare with the source (`check --source`); if the source has them too, it is damaged.",
    needs=Needs.DATA,
)
def weights(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    from dflash_gguf.checks.scan_weights import SCANNED, scan_weights

    tensors = [t for t in subject.tensors.values() if t.offset + t.size <= subject.source.size]
    unread = sorted({t.type.name for t in tensors if t.type not in SCANNED})
    if unread:
        yield NotChecked(f"weights of type {', '.join(unread)} are not read")
    if len(tensors) < len(subject.tensors):
        yield NotChecked(f"{counted(len(subject.tensors) - len(tensors), 'tensor')} beyond the end of the file")
    if not subject.tensors:
        yield NotChecked("the file holds no tensors")
    for tensor, seen in scan_weights(subject.source, [t for t in tensors if t.type in SCANNED], subject.on_bytes):
        if seen.not_finite is not None:
            what = "scale" if tensor.type not in (GGMLType.F32, GGMLType.F16, GGMLType.BF16) else "weight"
            yield Problem(f"a {what} is NaN or infinite, first in row {seen.not_finite:,}", tensor.name)
        elif seen.all_zero:
            yield Problem("all weights are zero", tensor.name)
        elif seen.constant and tensor.n_weights > 1:
            yield Problem("all weights are equal", tensor.name, severity=Severity.WARNING)
        elif tensor.name.endswith("norm.weight") and not _USUAL[0] <= (seen.mean or 1.0) <= _USUAL[1]:
            told = f"a norm's weights are {seen.mean:.3g} in the mean, far from what training gives"
            yield Problem(told, tensor.name, severity=Severity.WARNING)
