"""SentencePiece vocabularies: tokenizer.model, or the same tokens in a tokenizer.json with byte fallback.

llama.cpp calls this kind "llama". It merges by the tokens' scores, which only tokenizer.model holds: a
tokenizer.json has merges instead, in the order of the scores.
Source of the layout: sentencepiece_model.proto; of the rules for added tokens: llama.cpp's converter.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from dflash_gguf.errors import FormatError
from dflash_gguf.formats.protobuf import BYTES, FIXED32, VARINT, fields
from dflash_gguf.model.tokenizer.added import (
    Added,
    all_added,
    decoder_tokens,
    listed_tokens,
    looks_special,
    mapped_tokens,
    named_tokens,
)
from dflash_gguf.model.tokenizer.files import brief, read_bytes
from dflash_gguf.model.tokenizer.vocabulary import (
    TokenType,
    Vocabulary,
    base_vocabulary,
    beyond,
    encode_texts,
    place_base,
)
from dflash_gguf.storage.files import LocalFile

if TYPE_CHECKING:
    from pathlib import Path

    from dflash_gguf.model.tokenizer.files import TokenizerFiles

MODEL_FILE = "tokenizer.model"
#: Scores that llama.cpp's converter gives to rows that no piece defines, and to added tokens.
UNUSED_SCORE, ADDED_SCORE = -10000.0, -1000.0

_PIECES, _TEXT, _SCORE, _TYPE = 1, 1, 2, 3  # field numbers
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
#: a piece's type is llama.cpp's, except that its converter takes user-defined pieces for normal ones
_TYPES = {kind.value: kind for kind in TokenType} | {TokenType.USER_DEFINED.value: TokenType.NORMAL}


@dataclass(slots=True)
class _Rows:
    """A vocabulary in the making; rows that nothing defines stay `[PADn]`, unused."""

    texts: list[bytes]
    scores: list[float]
    types: bytearray

    @classmethod
    def empty(cls, count: int) -> _Rows:
        types = bytearray([TokenType.UNUSED]) * count
        return cls([f"[PAD{i}]".encode() for i in range(count)], [UNUSED_SCORE] * count, types)

    def put(self, token_id: int, text: bytes, score: float, kind: TokenType) -> None:
        self.texts[token_id], self.scores[token_id], self.types[token_id] = text, score, kind

    def vocabulary(self, added: dict[str, int], listed: dict[str, Added], warnings: list[str]) -> Vocabulary:
        ids = {text: token.id for text, token in listed.items() if token.id < len(self.texts)}
        pads = sum(text == f"[PAD{i}]".encode() for i, text in enumerate(self.texts))
        return Vocabulary(
            self.texts, self.types, len(self.texts) - pads, added, ids, tuple(warnings), scores=self.scores
        )


def is_model(path: Path) -> bool:
    """Whether `path` is a SentencePiece model: Llama 3's tokenizer.model is a tiktoken file."""
    if not path.is_file():
        return False
    with LocalFile(path) as source:
        return source.size > 0 and source.read(0, 1) == b"\x0a"


def from_model(target: TokenizerFiles, vocab_size: int) -> Vocabulary:
    """The pieces of tokenizer.model with the added tokens of the JSON files laid over.

    An added token beyond the rows is left out, with a warning: vision models number theirs past the embedding.
    Raises FormatError for a file that is no SentencePiece model, ModelError for pieces beyond the rows.
    """
    path = target.folder / MODEL_FILE
    rows, warnings = _Rows.empty(vocab_size), list[str]()
    pieces = _read_pieces(read_bytes(path), str(path))
    if len(pieces) > vocab_size:
        raise beyond(len(pieces), len(pieces) - 1, vocab_size, str(path))
    for token_id, piece in enumerate(pieces):
        rows.put(token_id, *piece)
    added = _lay_over(target, rows, warnings)
    return rows.vocabulary(added, listed_tokens(target, {}) if target.tokenizer else {}, warnings)


def _lay_over(target: TokenizerFiles, rows: _Rows, warnings: list[str]) -> dict[str, int]:
    """Added tokens of added_tokens.json, then those of tokenizer_config.json, into their rows."""
    added: dict[str, int] = {}
    tokens = [(token, False) for token in mapped_tokens(target)]
    tokens += [(token, True) for token in decoder_tokens(target) or []]
    for token, typed in tokens:
        if token.id >= len(rows.texts):
            warnings.append(f"added token {brief(token.text)} with id {token.id} is beyond the rows: left out")
            continue
        control = typed and (token.special or looks_special(token.text))
        kind = TokenType.CONTROL if control else TokenType.USER_DEFINED
        text = token.text.replace("\u2581", " ") if typed and not control else token.text
        rows.put(token.id, encode_texts([text], target.settings_path)[0], ADDED_SCORE, kind)
        added[token.text] = token.id
    return added


def _read_pieces(raw: bytes, where: str) -> list[tuple[bytes, float, TokenType]]:
    pieces: list[tuple[bytes, float, TokenType]] = []
    for number, wire, value in fields(raw, where):
        if number == _PIECES:
            if wire != BYTES:
                raise FormatError(f"piece {len(pieces)} is no message: no SentencePiece model", where=where)
            pieces.append(_piece(cast("bytes", value), f"{where}: piece {len(pieces)}"))
    if not pieces:
        raise FormatError("holds no pieces: no SentencePiece model", where=where)
    return pieces


def _piece(raw: bytes, where: str) -> tuple[bytes, float, TokenType]:
    text, score, kind = b"", 0.0, TokenType.NORMAL
    for number, wire, value in fields(raw, where):
        if (number, wire) == (_TEXT, BYTES):
            text = cast("bytes", value)
        elif (number, wire) == (_SCORE, FIXED32):
            (score,) = struct.unpack("<f", cast("bytes", value))
        elif (number, wire) == (_TYPE, VARINT):
            found = _TYPES.get(cast("int", value))
            if found is None:
                raise FormatError(f"has the unknown type {value!r}", where=where)
            kind = found
        elif number in (_TEXT, _SCORE, _TYPE):
            raise FormatError(f"field {number} has wire type {wire}: no SentencePiece model", where=where)
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"is not UTF-8 at byte {error.start}", where=where) from None
    if score != score or not text:  # noqa: PLR0124 - NaN
        raise FormatError(f"has {'no text' if not text else 'NaN as its score'}", where=where)
    return text, score, kind


def from_json(target: TokenizerFiles, vocab_size: int) -> Vocabulary:
    """The same tokens from a tokenizer.json, every score −1000: what llama.cpp's converter writes for such files.

    A draft's scores are never used: llama.cpp splits text with the target's tokenizer.
    """
    base, where = base_vocabulary(target), target.tokenizer_path
    texts: list[str | None] = [None] * vocab_size
    place_base(base, texts, where)
    rows, warnings = _Rows.empty(vocab_size), list[str]()
    listed = listed_tokens(target, base)
    tokens, doubts = all_added(target, listed, base)
    warnings += doubts
    special = set(named_tokens(target))
    encoded = encode_texts([text or "" for text in texts], f"{where}: token")
    for token_id, text in enumerate(texts):
        if text is not None:
            rows.put(token_id, encoded[token_id], ADDED_SCORE, _json_type(text, control=text in special))
    for token in tokens:
        if token.id >= vocab_size:
            warnings.append(f"added token {brief(token.text)} with id {token.id} is beyond the rows: left out")
        elif texts[token.id] is None:
            kind = TokenType.CONTROL if token.text in special else TokenType.USER_DEFINED
            rows.put(token.id, encode_texts([token.text], where)[0], ADDED_SCORE, kind)
    added = {token.text: token.id for token in tokens}
    return rows.vocabulary(added, listed, warnings)


def _json_type(text: str, *, control: bool) -> TokenType:
    if _BYTE_TOKEN.fullmatch(text):
        return TokenType.BYTE
    return TokenType.CONTROL if control else TokenType.NORMAL
