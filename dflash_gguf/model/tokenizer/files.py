"""The target directory's JSON files: read whole, checked for size and encoding, never followed to another path."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dflash_gguf.errors import FormatError
from dflash_gguf.formats.json_text import parse_object
from dflash_gguf.model.checkpoint import read_config, read_json
from dflash_gguf.storage.files import LocalFile
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from pathlib import Path

#: No tokenizer file is larger; the largest known tokenizer.json (262,144 tokens) has 34 MB.
MAX_FILE_BYTES = 256 * 1024 * 1024

#: Characters of a file's own text that a message quotes.
MAX_QUOTED = 60

_MERGES = re.compile(rb'"merges"\s*:\s*\[')
_END_OF_MERGES = re.compile(rb"\]\s*\}\s*\}\s*\Z")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a target's directory says about its tokenizer.

    `tokenizer` is empty without a tokenizer.json, `settings` is None without a tokenizer_config.json.
    """

    folder: Path
    tokenizer: dict[str, Any]
    settings: dict[str, Any] | None
    config: dict[str, Any]

    @property
    def tokenizer_path(self) -> str:
        """tokenizer.json, as messages name it."""
        return str(self.folder / "tokenizer.json")

    @property
    def settings_path(self) -> str:
        """tokenizer_config.json, as messages name it."""
        return str(self.folder / "tokenizer_config.json")

    @property
    def text_config(self) -> dict[str, Any]:
        """The text part of a multimodal target's config; empty where there is none."""
        part = self.config.get("text_config")
        return part if isinstance(part, dict) else {}

    @property
    def architecture(self) -> str:
        """Architecture of the text model, lower case and without punctuation; "" where the config names none."""
        for part in (self.text_config, self.config):
            names = part.get("architectures")
            if isinstance(names, list) and names and isinstance(names[0], str):
                return _plain(names[0])
        name = self.text_config.get("model_type") or self.config.get("model_type")
        return _plain(name) if isinstance(name, str) else ""


def read_target(folder: Path) -> TokenizerFiles:
    """Read the three files that decide a tokenizer.

    Raises UsageError without the directory, ModelError without a config.json, FormatError for a file that is not
    JSON, InputError for one that cannot be read.
    """
    config = read_config(folder)
    tokenizer_file = folder / "tokenizer.json"
    tokenizer = read_json(tokenizer_file, MAX_FILE_BYTES) if tokenizer_file.is_file() else {}
    return _target(folder, config, tokenizer)


def _target(folder: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> TokenizerFiles:
    settings_file = folder / "tokenizer_config.json"
    return TokenizerFiles(folder, tokenizer, read_json(settings_file) if settings_file.is_file() else None, config)


def read_target_texts(folder: Path) -> TokenizerFiles:
    """The same without the merges, where they can be left unread: they are two thirds of a tokenizer.json."""
    path = folder / "tokenizer.json"
    tokenizer = _without_merges(path) if path.is_file() else None
    return read_target(folder) if tokenizer is None else _target(folder, read_config(folder), tokenizer)


def _without_merges(path: Path) -> dict[str, Any] | None:
    """tokenizer.json with an empty list of merges; None unless it ends with them, as the library writes it."""
    with LocalFile(path) as source:
        raw = source.read(0, min(source.size, MAX_FILE_BYTES))
    start = _MERGES.search(raw)
    if start is None or not _END_OF_MERGES.search(raw[-64:]):
        return None
    try:
        tokenizer = parse_object(raw[: start.end()] + b"]}}", str(path))
    except FormatError:
        return None
    model = tokenizer.get("model")
    return tokenizer if isinstance(model, dict) and "vocab" in model else None


def read_bytes(path: Path) -> bytes:
    """All of `path`, if it is no larger than a tokenizer's file may be."""
    with LocalFile(path) as source:
        if source.size > MAX_FILE_BYTES:
            raise FormatError(f"{counted(source.size, 'byte')}, expected at most {MAX_FILE_BYTES:,}", where=str(path))
        return source.read(0, source.size)


def read_text(path: Path) -> str:
    """The UTF-8 text of `path`."""
    raw = read_bytes(path)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 at byte {error.start}", where=str(path)) from None


def as_object(value: Any, where: str) -> dict[str, Any]:
    """`value` as a JSON object, else FormatError."""
    if not isinstance(value, dict):
        raise FormatError(f"found {brief(value)}, expected a JSON object", where=where)
    return value


def as_list(value: Any, where: str) -> list[Any]:
    """`value` as a JSON array, else FormatError."""
    if not isinstance(value, list):
        raise FormatError(f"found {brief(value)}, expected a JSON array", where=where)
    return value


def check_text(text: str, where: str) -> str:
    """`text` if it can be written as UTF-8; a lone surrogate, which JSON can escape, cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise FormatError(f"a lone surrogate at character {error.start}", where=where) from None
    return text


def brief(value: Any) -> str:
    """A JSON value for one line of a message: quoted and printable, cut where long, containers by name only."""
    names = {type(None): "null", list: "an array", dict: "an object"}
    if type(value) in names:
        return names[type(value)]
    text = repr(value[:MAX_QUOTED] if isinstance(value, str) else value)
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
