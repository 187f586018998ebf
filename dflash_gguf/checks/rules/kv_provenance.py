"""KV109, KV110: what the file says about itself."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_gguf.checks.expected_types import expected_types, main_type
from dflash_gguf.checks.finding import Severity
from dflash_gguf.checks.registry import Needs, NotChecked, Problem, rule
from dflash_gguf.checks.subject import Subject
from dflash_gguf.formats.gguf.types import GGMLType
from dflash_gguf.model.metadata import file_type_name
from dflash_gguf.model.provenance import MEANINGLESS
from dflash_gguf.model.sidecars import DSPARK, MARKOV


@rule(
    "KV109",
    Severity.WARNING,
    "the file is not of the kind it says, or of a kind that drafts badly",
    why="general.file_type is what tools show and choose by. Activations of these drafts overflow F16. DSpark drafts "
    "share the architecture but have a Markov head.",
    at_run_time="A wrong label misleads whoever picks a file by size. F16 can give infinities and no accepted token.",
    fix="A wrong label: `dflash-gguf patch IN OUT --fix KV109`. F16 weights: convert anew as bf16 or a quantized type.",
    needs=Needs.DRAFT,
)
def kind(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    where, value = "general.file_type", subject.metadata.get("general.file_type")
    if subject.is_dspark:
        told = "a DSpark draft: recognised, not supported, its tensors are not checked"
        yield Problem(told, MARKOV, f"llama.cpp runs it with {DSPARK.flag}")
        return
    number = value.value if value is not None and isinstance(value.value, int) else -1
    name, found = file_type_name(number), main_type(subject.tensors)
    if found is None:
        yield NotChecked("the file holds no matrices")
        return
    expected = main_type(subject.tensors, expected_types(subject, name)) if name else None
    if name and expected is not None and found is not expected:
        yield Problem(f"says {name}, but most weights are {found.name}", where)
    elif found is GGMLType.F16 and (name == "F16" or expected is None):
        yield Problem("F16 weights: activations may overflow, BF16 is as large and does not", where)


@rule(
    "KV110",
    Severity.WARNING,
    "the file does not say what it is and where it comes from",
    why="A draft fits one target only. A name like `model` or `snapshot`, no license where the source has one, and no "
    "base model or source leave nobody able to tell which.",
    at_run_time="Nothing, until somebody pairs it with the wrong target.",
    fix="`dflash-gguf patch IN OUT --fix KV110 --source DRAFT --target T`, or --set general.name=str:NAME.",
)
def identity(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    name = subject.string("general.name")
    if name is None or MEANINGLESS.fullmatch(name[:200].strip().lower()):
        told = "is missing" if name is None else f"{name!r} says nothing"
        yield Problem(told, "general.name")
    if subject.original and (license_id := subject.original.card.license) and not subject.string("general.license"):
        yield Problem(f"is missing, the source has {license_id!r}", "general.license")
    if not any(key.startswith(("general.base_model.", "general.source.")) for key in subject.metadata):
        yield Problem("neither a base model nor a source is named", "general.base_model.count")
