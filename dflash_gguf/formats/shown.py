"""Text from files nobody vouches for, made fit to be shown."""

from __future__ import annotations

import re
import unicodedata

#: of every JSON document that is an answer
SCHEMA_VERSION = 1


def safe(text: str) -> str:
    """`text` from a file, so that it cannot move a terminal's cursor, change its colours or hide what follows."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c == " " or _printable(c) else c.encode("unicode_escape").decode() for c in text)


def _printable(char: str) -> bool:
    return char.isprintable() and unicodedata.category(char) not in ("Cf", "Cc", "Cs", "Co")


def inline(text: str) -> str:
    """Text that stays where Markdown puts it: no line breaks, no markup, no links."""
    return re.sub(r"([\\`*_\[\]<>|#])", "", safe(text)) if not re.fullmatch(r"[\w .+-]*", text) else text


def code(text: str) -> str:
    """Text as a code span, in a table too."""
    return "`" + safe(text).replace("`", "'").replace("|", "¦") + "`"
