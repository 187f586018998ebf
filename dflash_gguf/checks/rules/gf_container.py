"""GF: the container. The scanner finds these; what is told here is what they mean."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

from dflash_gguf.checks.finding import Severity
from dflash_gguf.checks.registry import Needs, NotChecked, Problem, rule
from dflash_gguf.checks.subject import MERGES_KEY, TOKENS_KEY, Subject, is_absurd
from dflash_gguf.formats.gguf.values import Array

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf")
_BIDI = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}


def _from_scan(subject: Subject, identifier: str) -> Iterator[Problem | NotChecked]:
    """What the scanner found under this id: what made it stop, errors it read past, warnings."""
    refusal = subject.refusal
    if refusal is not None and refusal.rule == identifier:
        where = refusal.where.removeprefix(subject.source.name).removeprefix(": ")
        yield Problem(refusal.message, where, refusal.hint)
    elif refusal is not None and not _was_passed(identifier, refusal.rule, subject.source.size):
        yield NotChecked(f"reading stopped at {refusal.rule}")
    if subject.header is not None:
        errors = set(map(id, subject.header.errors))
        for defect in subject.header.defects:
            if defect.rule == identifier:
                severity = Severity.ERROR if id(defect) in errors else Severity.WARNING
                yield Problem(defect.message, defect.where, severity=severity)


def _was_passed(identifier: str, stopped: str, size: int) -> bool:
    """Whether the scanner had looked at all of a rule when another one stopped it: magic and version come first."""
    return identifier == "GF001" or (identifier == "GF002" and stopped != "GF001" and size >= 8)


@rule(
    "GF001",
    Severity.ERROR,
    "not a GGUF file",
    why="A Git-LFS pointer, an error page or another format often carries the name of a model file.",
    at_run_time="llama.cpp refuses the file: invalid magic characters.",
    fix="Fetch or convert the file itself; look at its first bytes when in doubt.",
    needs=Needs.BYTES,
)
def not_a_gguf(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    return _from_scan(subject, "GF001")


@rule(
    "GF002",
    Severity.ERROR,
    "a GGUF version that is not read",
    why="Versions 2 and 3 are read. A byte-swapped version means a file for big-endian machines.",
    at_run_time="llama.cpp refuses the file.",
    fix="Convert the checkpoint anew on (and for) a little-endian machine.",
    needs=Needs.BYTES,
)
def version(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    return _from_scan(subject, "GF002")


@rule(
    "GF003",
    Severity.ERROR,
    "a count, length or size that the file cannot hold",
    why="A number in the header asks for more bytes than remain: the file is cut off, corrupt or hostile.",
    at_run_time="llama.cpp refuses the file, or tries to allocate the impossible.",
    fix="Download or convert the file again, and compare its size with the source's.",
    needs=Needs.BYTES,
)
def impossible_size(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    return _from_scan(subject, "GF003")


@rule(
    "GF004",
    Severity.ERROR,
    "a metadata key or value that GGUF does not allow",
    why="Keys are 1 to 65,535 ASCII bytes and stand once; values have a known type; arrays do not nest.",
    at_run_time="llama.cpp refuses the file.",
    fix="Convert the checkpoint anew; report it to whoever wrote the tool that made the file.",
    needs=Needs.BYTES,
)
def keys(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    return _from_scan(subject, "GF004")


@rule(
    "GF005",
    Severity.ERROR,
    "a tensor that GGUF does not allow",
    why="A tensor has a name of its own of at most 63 bytes, up to 4 positive dims, a type that ggml still has, and "
    "rows that are a multiple of the type's block.",
    at_run_time="llama.cpp refuses the file.",
    fix="Convert the checkpoint anew; types that ggml removed need the original weights.",
    needs=Needs.BYTES,
)
def tensor_infos(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    return _from_scan(subject, "GF005")


@rule(
    "GF006",
    Severity.ERROR,
    "tensor data that are not where they have to be",
    why="Tensors lie one behind another, each on a multiple of the alignment, up to the end of the file. Most often "
    "the file was cut off by an interrupted download.",
    at_run_time="llama.cpp refuses the file, or reads weights from the wrong place and drafts noise.",
    fix="Download the file again and compare its size; if it is whole at the source, convert anew.",
    needs=Needs.BYTES,
)
def layout(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    return _from_scan(subject, "GF006")


@rule(
    "GF007",
    Severity.WARNING,
    "bytes that mean nothing, or something else than they seem",
    why="Trailing bytes, padding that is not zero, bools other than 0 and 1, NaN among the values, text that is not "
    "UTF-8 or hides control characters: the file was not written by a sound tool, or was changed afterwards.",
    at_run_time="llama.cpp loads the file; what it makes of such a value is chance.",
    fix="`dflash-gguf patch IN OUT --fix GF007` mends padding, bools and trailing bytes; else convert anew.",
    needs=Needs.BYTES,
)
def oddities(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    yield from _from_scan(subject, "GF007")
    for key, value in subject.metadata.items():
        if isinstance(value.value, str) and (bad := _hidden(value.value)):
            yield Problem(f"the string hides the control character U+{ord(bad):04X}", key)
        if isinstance(value.value, Array) and not _is_utf8(_strings(subject, key)):
            yield Problem("a string of the array is not UTF-8", key)
        if key != MERGES_KEY and (array := subject.strings(key)) and is_absurd(array):
            yield NotChecked(f"{key}: {array.count:,} strings, more than are looked at")


@rule(
    "GF008",
    Severity.ERROR,
    "one part of a split file",
    why="Drafts are small; a split one has to be opened by its first part with all others beside it, and most tools "
    "that pick a draft by its name do not look for parts.",
    at_run_time="llama.cpp misses the tensors of the other parts.",
    fix="Merge the parts: llama-gguf-split --merge FIRST-00001-of-0000N.gguf OUT.gguf",
    needs=Needs.HEADER,
)
def split_part(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    if subject.is_part:
        number, count = (subject.metadata.get(f"split.{word}") for word in ("no", "count"))
        which = number.value if number is not None and isinstance(number.value, int) else "?"
        yield Problem(f"part {which} (from 0) of {count.value if count else '?'}", "split.count")
    elif (match := _PART.search(subject.place.name)) and int(match[2]) > 1:
        yield Problem(f"its name says part {int(match[1])} of {int(match[2])}", "file name")


def _hidden(text: str) -> str:
    """The first character that would change what a terminal shows, or ""."""
    if text.isprintable():
        return ""
    odd = (c for c in text if unicodedata.category(c) == "Cc" and c not in "\t\n\r")
    return next(odd, "") or next((c for c in text if ord(c) in _BIDI), "")


def _strings(subject: Subject, key: str) -> Iterable[bytes]:
    """The strings of an array; none where it holds numbers, or so many that looking at them takes too long."""
    if key in (TOKENS_KEY, MERGES_KEY):  # a merge that is no UTF-8 is none of the tokens: TK204 tells
        return (subject.tokens if key == TOKENS_KEY else None) or ()
    array = subject.strings(key)
    return array.strings() if array and not is_absurd(array) else ()


def _is_utf8(strings: Iterable[bytes]) -> bool:
    """Whether all are UTF-8: joined by a byte that no sequence can hold inside."""
    try:
        b"\n".join(strings).decode()
    except UnicodeDecodeError:
        return False
    return True
