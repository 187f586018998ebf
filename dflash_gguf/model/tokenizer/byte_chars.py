"""GPT-2's printable stand-ins for bytes: Latin-1 characters stand for themselves, the rest from U+0100 on."""

from __future__ import annotations


def _byte_of_char() -> dict[str, int]:
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {chr(byte): byte for byte in own}
    rest = (byte for byte in range(256) if byte not in own)
    return table | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


BYTE_OF_CHAR = _byte_of_char()
#: Latin-1 character of a byte → its stand-in, for str.translate
_STAND_INS = {byte: char for char, byte in BYTE_OF_CHAR.items()}


def as_chars(raw: bytes) -> str:
    """The stand-ins of `raw`'s bytes."""
    return raw.decode("latin-1").translate(_STAND_INS)


def through_bytes(text: str) -> str:
    """What a byte-level decoder makes of a token: text that is no byte string stays as it is."""
    if text.isascii() and text.isprintable() and " " not in text:
        return text
    if not all(char in BYTE_OF_CHAR for char in text):
        return text
    return bytes(BYTE_OF_CHAR[char] for char in text).decode("utf-8", "replace")
