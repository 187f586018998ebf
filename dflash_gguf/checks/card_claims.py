"""What a model card claims of the file beside it, where it can be proved wrong.

A card may speak of several files and of the target as well, so a number is a contradiction only when the card
gives numbers of that kind and none of them is the file's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dflash_gguf.model.draft_header import draft_spec
from dflash_gguf.model.metadata import FILE_TYPES, MASK_KEY, PREFIX, file_type_name
from dflash_gguf.model.provenance import parse_card
from dflash_gguf.presenting.card import MARK, geometry_lines, kind_words, metadata_rows
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from dflash_gguf.checks.subject import Subject

_TENSORS = re.compile(r"(?<![\d.,])(\d[\d,]*)\s+tensors\b", re.IGNORECASE)
_BYTES = re.compile(r"(?<![\d.,])(\d{1,3}(?:,\d{3})+|\d{6,})(?:\s*(?:B|bytes))?(?![\w.,]*\d)", re.IGNORECASE)
_SIZE = re.compile(r"(?<![\d.,])(\d+(?:\.\d+)?)\s*(GB|GiB|MB|MiB)\b")
_KIND = re.compile(r"A DFlash(?: \d+)? speculative-decoding draft")
_UNITS = {"GB": 10**9, "GiB": 1 << 30, "MB": 10**6, "MiB": 1 << 20}
_KEYS = (
    "block_size",
    "conv_kernel_size",
    "conv_group_size",
    "selector_rank",
    "selector_top_k",
    "mask_token_id",
    "attention.sliding_window",
)


def claims(text: str, subject: Subject) -> Iterator[str]:
    """One line for each contradiction."""
    card = parse_card(text)
    held = subject.string("general.license")
    if card.license and held and card.license.lower() != held.lower():
        yield f"license {card.license!r}, the file says {held!r}"
    yield from _base_model(card.base_model, subject)
    yield from _sizes(text, subject)
    yield from _rows(text, subject)
    yield from _own_words(text, subject)
    counts = {int(match.replace(",", "")) for match in _TENSORS.findall(text)}
    if counts and len(subject.tensors) not in counts:
        yield f"says tensors: {_told(counts)}, the file holds {len(subject.tensors)}"
    for name in _KEYS:
        key = MASK_KEY if name == "mask_token_id" else PREFIX + name
        value, word = subject.natural(key), re.escape(name.rpartition(".")[2])
        said = {int(n.replace(",", "")) for n in re.findall(rf"\b{word}\b[`*\"']*\s*[:=|]\s*[`*]*(\d[\d,]*)", text)}
        if said and value is not None and value not in said:
            yield f"{name} {_told(said)}, the file says {value}"


def _base_model(claimed: str | None, subject: Subject) -> Iterator[str]:
    """The card's base_model may be the target or the draft that was converted: both are recorded."""
    prefixes = ("general.base_model.0.", "general.source.")
    known = [
        name.lower()
        for prefix in prefixes
        for key in ("repo_url", "name")
        if (name := subject.string(prefix + key)) is not None
    ]
    if claimed and known:
        last = claimed.lower().rpartition("/")[2]
        if not any(name.rstrip("/").rpartition("/")[2] == last for name in known):
            told = ", ".join(dict.fromkeys(name.rpartition("/")[2] for name in known))
            yield f"base_model {claimed!a}, the file names {told!a}"


def _rows(text: str, subject: Subject) -> Iterator[str]:
    """Type and tensors in a table's rows that name the file, and how many tokens the run lines let it draft."""
    columns: list[str] = []
    number = subject.metadata.get("general.file_type")
    label = file_type_name(number.value) if number is not None and isinstance(number.value, int) else None
    for line in text.splitlines():
        row = line.strip()
        cells = [cell.strip(" `*") for cell in row.strip("|").split("|")] if row.startswith("|") else []
        if subject.file_name not in cells:
            if not cells or "tensors" in map(str.lower, cells):
                columns = [cell.lower() for cell in cells]
            continue
        said = dict(zip(columns, cells, strict=False))
        if (held := said.get("tensors", "")).isdecimal() and int(held) != len(subject.tensors):
            yield f"says {counted(int(held), 'tensor')}, the file holds {len(subject.tensors)}"
        if label and (kind := said.get("type", label)) in FILE_TYPES and kind != label:
            yield f"{subject.file_name!a} is of type {kind}, the file says {label}"
    block = subject.natural(PREFIX + "block_size")
    drafted = {int(count) for count in re.findall(r"--spec-draft-n-max[ =](\d{1,6})\b", text)}
    if block and drafted and min(drafted) >= block:
        yield f"--spec-draft-n-max {_told(drafted)}, a block of {block} drafts at most {block - 1}"


def _own_words(text: str, subject: Subject) -> Iterator[str]:
    """A card that this package wrote: each line is known by what it says up to its first number or value."""
    spec = draft_spec(subject.metadata) if MARK in text else None
    if spec is None:
        return
    lines = text.splitlines()
    told = {re.split(r"\d", line, maxsplit=1)[0]: line for line in geometry_lines(spec)}
    told |= {row[: row.index(" | ") + 3]: row for row in metadata_rows(subject.metadata)}
    for label, line in told.items():
        said = [other for other in lines if other.startswith(label)]
        if said and line not in said:
            yield f"{said[0].strip('- |')!a}, by the file {line.strip('- |')!a}"
    kinds = {match.group() for other in lines if (match := _KIND.match(other))}
    if kinds and kind_words(spec) not in kinds:
        yield f"{min(kinds)!a}, by the file {kind_words(spec)!a}"


def _sizes(text: str, subject: Subject) -> Iterator[str]:
    """Sizes in lines that name the file."""
    name, size = subject.file_name, subject.source.size
    lines = [line.replace(name, "") for line in text.splitlines() if name in line]
    exact = {int(m.replace(",", "")) for line in lines for m in _BYTES.findall(line)}
    rough = [match for line in lines for match in _SIZE.findall(line)]
    if exact and size not in exact:
        yield f"{name!a} has {_told(exact)} bytes, the file has {size:,}"
    elif not exact and rough and not any(_fits(number, unit, size) for number, unit in rough):
        yield f"{name!a} has {rough[0][0]} {rough[0][1]}, the file has {counted(size, 'byte')}"


def _fits(number: str, unit: str, size: int) -> bool:
    """Whether `size` rounds to the number, in this unit or in the one that is confused with it."""
    step = 10.0 ** -len(number.partition(".")[2])
    units = (_UNITS[unit], _UNITS[unit.replace("iB", "B") if "i" in unit else unit.replace("B", "iB")])
    return any(abs(size / scale - float(number)) <= step for scale in units)


def _told(numbers: set[int]) -> str:
    return " or ".join(f"{number:,}" for number in sorted(numbers)[:3])
