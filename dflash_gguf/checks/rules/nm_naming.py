"""NM: the file's name, and the model card beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dflash_gguf.checks.expected_types import expected_types, fitting_label, main_type
from dflash_gguf.checks.finding import Severity
from dflash_gguf.checks.registry import NotChecked, Problem, rule
from dflash_gguf.checks.subject import Subject
from dflash_gguf.model.metadata import FILE_TYPES, file_type_name
from dflash_gguf.model.provenance import MEANINGLESS, sidecar_file_name
from dflash_gguf.model.sidecars import DFLASH

_NAME = re.compile(r"(?P<target>.+)-(?P<type>[A-Za-z0-9_]+)\.gguf")
_LONGEST = 128  # characters of a target's name; file names have 255 bytes
_TYPE = re.compile(r"(I?Q[1-8](_[A-Z0-9]+)*|T?BF16|F16|F32|TQ[12]_0|MXFP4|NVFP4)", re.IGNORECASE)


@rule(
    "NM601",
    Severity.WARNING,
    "the file's name is not dflash-<target>-<TYPE>.gguf",
    why="llama.cpp finds a draft beside its target, and picks it in a repository, by the lower-case prefix `dflash-` "
    "(`dspark-` for a DSpark draft) and the type in the name.",
    at_run_time="Without the prefix the draft is not found, and the target runs alone, at its own speed, without a "
    "word. With another type in the name, somebody (or a tool) picks the wrong file.",
    fix="Rename the file.",
)
def file_name(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    name, prefix = subject.file_name, (subject.sidecar or DFLASH).prefix
    match = _NAME.fullmatch(name.removeprefix(prefix))
    held = _file_type(subject)
    if not name.startswith(prefix):
        told = f"{name!a} does not begin with {prefix}: llama.cpp does not find it"
    elif match is None or not _TYPE.fullmatch(match["type"]):
        told = f"{name!a} does not end in a type, as in -{_actual_type(subject)}.gguf"
    elif held and match["type"].upper() in FILE_TYPES and match["type"].upper() not in (held, _actual_type(subject)):
        told = f"says {match['type']}, general.file_type is {held}"
    else:
        return
    yield Problem(told, "file name", f"rename it to {_right_name(subject, prefix)}")


def _file_type(subject: Subject) -> str | None:
    value = subject.metadata.get("general.file_type")
    return file_type_name(value.value) if value is not None and isinstance(value.value, int) else None


def _actual_type(subject: Subject) -> str:
    """The type by the file's label where most weights bear it out, else by its weights."""
    held, found = _file_type(subject), main_type(subject.tensors)
    if held and found and found is main_type(subject.tensors, expected_types(subject, held)):
        return held
    return fitting_label(subject) or held or "<TYPE>"


def _right_name(subject: Subject, prefix: str) -> str:
    """What the file should be called; `<target>` where neither its keys nor the card name one."""
    target = subject.string("general.base_model.0.name") or (subject.target_repo or "").rpartition("/")[2]
    if not target.strip() or MEANINGLESS.fullmatch(target[:_LONGEST].strip().lower()):
        return f"{prefix}<target>-{_actual_type(subject)}.gguf"
    return sidecar_file_name(prefix, target[:_LONGEST], _actual_type(subject))


@rule(
    "NM602",
    Severity.WARNING,
    "the model card beside the file contradicts it",
    why="People choose by the card: a size, a tensor count, a block size or a license copied from another model's "
    "card sends them the wrong way.",
    at_run_time="Nothing; somebody sets n_max by a block size that the draft does not have.",
    fix="Write the card from the file: `dflash-gguf card FILE`.",
)
def model_card(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    if not subject.at_hand and not subject.place.is_of_repo:
        yield NotChecked("a card on the Hub is read where its repository is named")
        return
    text = subject.place.card()
    if text is not None:
        from dflash_gguf.checks.card_claims import claims

        for claim in claims(text, subject):
            yield Problem(claim, "README.md")
