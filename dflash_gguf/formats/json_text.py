"""JSON from files nobody vouches for: bounded, no duplicate keys, every fault one FormatError."""

from __future__ import annotations

import json
from typing import Any

from dflash_gguf.errors import FormatError


def parse_object(text: bytes, where: str) -> dict[str, Any]:
    """Parse `text` as one JSON object. Raises FormatError: not UTF-8, not JSON, no object, a key twice, too deep."""
    try:
        value = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_no_duplicates)
    except UnicodeDecodeError:
        raise FormatError("is not UTF-8 text", where=where) from None
    except json.JSONDecodeError as error:
        raise FormatError(f"is not JSON: {error.msg} at line {error.lineno}", where=where) from None
    except _DuplicateKeyError as error:
        raise FormatError(f"the key {error.args[0]!r} stands twice", where=where) from None
    except (RecursionError, ValueError) as error:  # ValueError: an integer of thousands of digits
        raise FormatError(f"is not JSON that can be read: {type(error).__name__}", where=where) from None
    if not isinstance(value, dict):
        raise FormatError(f"holds a {type(value).__name__}, expected an object", where=where)
    return value


class _DuplicateKeyError(Exception):
    pass


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return result
