"""What `--set` takes: KEY=TYPE:VALUE."""

from __future__ import annotations

import json
import math
from typing import Any

from dflash_gguf.errors import UsageError
from dflash_gguf.formats.gguf.scan import MAX_KEY
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, MetaValue, Scalar
from dflash_gguf.model.metadata import convert_scalar

TYPES: dict[str, ValueType] = {
    "u8": ValueType.UINT8,
    "i8": ValueType.INT8,
    "u16": ValueType.UINT16,
    "i16": ValueType.INT16,
    "u32": ValueType.UINT32,
    "i32": ValueType.INT32,
    "u64": ValueType.UINT64,
    "i64": ValueType.INT64,
    "f32": ValueType.FLOAT32,
    "f64": ValueType.FLOAT64,
    "bool": ValueType.BOOL,
    "str": ValueType.STRING,
}
_FLOATS = (ValueType.FLOAT32, ValueType.FLOAT64)


def parse_set(text: str) -> tuple[str, MetaValue]:
    """KEY=TYPE:VALUE, where VALUE is a scalar or (any type) a JSON list. Raises UsageError."""
    key, equals, rest = text.partition("=")
    name, colon, value = rest.partition(":")
    if not equals or not colon:
        raise UsageError(f"{text!a} is not KEY=TYPE:VALUE", where="--set", hint="as in dflash.block_size=u32:8")
    check_key(key, "--set")
    if name not in TYPES:
        raise UsageError(f"{name!a} is no type", where=f"--set {key}", hint=f"one of {', '.join(TYPES)}")
    kind, where = TYPES[name], f"--set {key}"
    if value.startswith("[") and (items := _list(value)) is not None:
        parsed = [_item(item, kind, where) for item in items]
        return key, MetaValue(ValueType.ARRAY, Array.of(kind, parsed))
    return key, MetaValue(kind, _item(value if kind is ValueType.STRING else _plain(value), kind, where))


def check_key(key: str, where: str) -> None:
    """Raise UsageError for a key that GGUF does not allow."""
    if not 0 < len(key) <= MAX_KEY or not key.isascii() or not key.isprintable():
        raise UsageError(f"{key[:80]!a} is no key: 1 to {MAX_KEY:,} ASCII characters", where=where)


def is_text(text: str) -> bool:
    """Whether UTF-8 has it; arguments and JSON may hold halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _list(text: str) -> list[Any] | None:
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return items if isinstance(items, list) else None


def _plain(text: str) -> Any:
    """A number, true or false as typed; other text as it is."""
    lowered = text.strip().lower()
    if "_" in lowered or not lowered.isascii():  # Python's own ways to write a number
        return text
    if lowered in ("true", "false"):
        return lowered == "true"
    for make in (int, float):
        try:
            return make(lowered)
        except ValueError:
            continue
    return text


def _item(item: Any, kind: ValueType, where: str) -> Scalar:
    fits = isinstance(item, bool | int | float | str) and not (isinstance(item, bool) and kind is not ValueType.BOOL)
    value = convert_scalar(item, kind) if fits and is_text(str(item)) else None
    if value is None or (kind in _FLOATS and not math.isfinite(value)):  # type: ignore[arg-type]
        hint = "a list is [1,2,3]" if isinstance(item, str) and "," in item else ""
        raise UsageError(f"{str(item)[:80]!a} does not fit {kind.name}", where=where, hint=hint)
    return value
