"""How facts become text: numbers with their nouns, and text from files nobody vouches for made fit to be shown."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

#: of every JSON document that is an answer
SCHEMA_VERSION = 1
_PIECE = 1 << 16  # characters


def safe(text: str) -> str:
    """`text` from a file, so that it cannot move a terminal's cursor, change its colours or hide what follows."""
    if text.isascii() and text.isprintable():
        return text
    if len(text) > _PIECE:  # a string may be most of a file, and a list of its characters is fifty times as large
        return "".join(safe(text[at : at + _PIECE]) for at in range(0, len(text), _PIECE))
    return "".join(c if c == " " or _printable(c) else c.encode("unicode_escape").decode() for c in text)


def _printable(char: str) -> bool:
    return char.isprintable() and unicodedata.category(char) not in ("Cf", "Cc", "Cs", "Co")


def json_line(document: dict[str, Any]) -> str:
    """A document as one line of ASCII that strict parsers take too.

    Floats that JSON cannot hold become null; a lone surrogate (a byte that was no UTF-8) becomes the text that `safe`
    shows for it.
    """
    import json

    return json.dumps(_strict(document), ensure_ascii=True, allow_nan=False) + "\n"


def _strict(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {_strict(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value


def inline(text: str) -> str:
    """Text that stays where Markdown puts it: no line breaks, no markup, no links."""
    return re.sub(r"([\\`*_\[\]<>|#])", "", safe(text)) if not re.fullmatch(r"[\w .+-]*", text) else text


def code(text: str) -> str:
    """Text as a code span, in a table too."""
    return "`" + safe(text).replace("`", "'").replace("|", "¦") + "`"


def counted(number: int, noun: str, one: str = "", many: str = "") -> str:
    """A number with its noun, and the verb that goes with it: `1 tensor is`, `2,048 tensors are`, `0 entries`."""
    plural = noun[:-1] + "ies" if noun.endswith("try") else noun + "s"
    words = (f"{number:,}", noun, one) if number == 1 else (f"{number:,}", plural, many)
    return " ".join(filter(None, words))
