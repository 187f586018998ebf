"""Prompts from a file's bytes: what `compare` and `bench` run drafts on.

JSON: a list of texts, or of objects with `text` or `prompt`, or an object whose `prompts` is such a list.
JSONL: one such text or object a line. Anything else is one prompt, whole.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from dflash_gguf.errors import FormatError
from dflash_gguf.wording import counted

MAX_BYTES = 16 << 20
MAX_PROMPTS = 10_000
_SENTENCES = re.compile(r"[.!?\n]+")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One text to continue, and whether it mostly says the same thing again and again."""

    text: str
    repetitive: bool


def parse_prompts(data: bytes, where: str) -> tuple[Prompt, ...]:
    """All prompts; `where` is the file's name and tells JSON from text. Raises FormatError."""
    if len(data) > MAX_BYTES:
        raise FormatError(f"{counted(len(data), 'byte')} of prompts, expected at most {MAX_BYTES:,}", where=where)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise FormatError("is not UTF-8 text", where=where) from None
    rows: Any
    if where.endswith(".jsonl"):
        rows = [_json(line, where) for line in text.splitlines() if line.strip()]
    elif where.endswith(".json"):
        document = _json(text, where)
        rows = document.get("prompts") if isinstance(document, dict) else document
    else:
        rows = [text]
    if not isinstance(rows, list) or not 0 < len(rows) <= MAX_PROMPTS:
        raise FormatError("holds no list of prompts", where=where, hint='["text", …] or {"prompts": [{"text": …}, …]}')
    return tuple(prompt_of(_text(row, where)) for row in rows)


def prompt_of(text: str) -> Prompt:
    """A prompt; one of whose sentences (of three or more) at least half are the same is repetitive."""
    sentences = [part.strip() for part in _SENTENCES.split(text) if part.strip()]
    most = max(Counter(sentences).values(), default=0)
    return Prompt(text, most >= 3 and 2 * most >= len(sentences))


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"is no JSON: {error}", where=where) from None


def _text(row: Any, where: str) -> str:
    value = row.get("text", row.get("prompt")) if isinstance(row, dict) else row
    if not isinstance(value, str) or not value.strip():
        raise FormatError(f"a prompt is {str(value)[:40]!r}, expected text", where=where)
    return value
