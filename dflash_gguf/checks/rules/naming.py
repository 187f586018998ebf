"""NM: the file's name, and the model card beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dflash_gguf.checks.card import claims
from dflash_gguf.checks.finding import Severity
from dflash_gguf.checks.registry import Problem, rule
from dflash_gguf.checks.subject import Subject
from dflash_gguf.model.metadata import FILE_TYPES, file_type_name
from dflash_gguf.model.sidecars import DFLASH

_NAME = re.compile(r"(?P<target>.+)-(?P<type>[A-Za-z0-9_]+)\.gguf")
_TYPE = re.compile(r"(I?Q[1-8](_[A-Z0-9]+)*|T?BF16|F16|F32|TQ[12]_0|MXFP4|NVFP4)", re.IGNORECASE)


@rule(
    "NM601",
    Severity.WARNING,
    "the file's name is not dflash-<target>-<TYPE>.gguf",
    why="llama.cpp finds a draft beside its target, and picks it in a repository, by the lower-case prefix `dflash-` "
    "(`dspark-` for a DSpark draft) and the type in the name.",
    at_run_time="The draft is not found: the target runs alone, at its own speed, without a word.",
    fix="Rename the file.",
)
def file_name(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    name = subject.file_name
    prefix = (subject.sidecar or DFLASH).prefix
    match = _NAME.fullmatch(name.removeprefix(prefix))
    if match is None or not name.startswith(prefix) or not _TYPE.fullmatch(match["type"]):
        yield Problem(f"{name!a} does not tell llama.cpp, or a person, what it is", "file name")
        return
    value = subject.metadata.get("general.file_type")
    held = file_type_name(value.value) if value is not None and isinstance(value.value, int) else None
    if held and match["type"].upper() in FILE_TYPES and match["type"].upper() != held:
        yield Problem(f"says {match['type']}, general.file_type is {held}", "file name")


@rule(
    "NM602",
    Severity.WARNING,
    "the model card beside the file contradicts it",
    why="People choose by the card: a size, a tensor count, a block size or a license copied from another model's "
    "card sends them the wrong way.",
    at_run_time="Nothing; somebody sets n_max by a block size that the draft does not have.",
    fix="Write the card from the file: `dflash-gguf card FILE`.",
)
def model_card(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    if not subject.at_hand and not subject.place.is_of_repo:
        subject.not_checked.append("NM602: a card on the Hub is read where its repository is named")
        return
    text = subject.place.card()
    if text is not None:
        for claim in claims(text, subject):
            yield Problem(claim, "README.md")
