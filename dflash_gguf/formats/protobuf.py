"""The protobuf wire format, as far as a SentencePiece model needs it: fields by number, nothing about messages.

Layout: key varint (field number << 3 | wire type), then a varint (0), 8 bytes (1), a length and bytes (2) or 4 bytes
(5). Source: the encoding page of the protobuf documentation.
"""

from __future__ import annotations

from collections.abc import Iterator

from dflash_gguf.errors import FormatError
from dflash_gguf.wording import counted

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}


def fields(raw: bytes, where: str) -> Iterator[tuple[int, int, int | bytes]]:
    """Number, wire type and value of each field of one message: an int for a varint, else the value's bytes.

    Raises FormatError for a field that passes the end, a varint of more than 64 bits, a group or an unknown type.
    """
    position = 0
    while position < len(raw):
        key, position = _varint(raw, position, where)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, position = _varint(raw, position, where)
            yield number, wire, value
            continue
        if wire == BYTES:
            length, position = _varint(raw, position, where)
        elif wire in _FIXED:
            length = _FIXED[wire]
        else:
            raise FormatError(f"field {number} has wire type {wire} at byte {position}: no protobuf", where=where)
        if not number or length > len(raw) - position:
            raise FormatError(f"field {number} of {counted(length, 'byte')} passes the end of its message", where=where)
        yield number, wire, raw[position : position + length]
        position += length


def _varint(raw: bytes, position: int, where: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(raw):
            raise FormatError("ends inside a number: truncated?", where=where)
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise FormatError(f"a number of more than 64 bits at byte {position - 10}: no protobuf", where=where)
