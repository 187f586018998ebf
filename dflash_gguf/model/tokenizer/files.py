"""The target directory's JSON files: read whole, checked for size and encoding, never followed to another path."""

from __future__ import annotations

import gc
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dflash_gguf.errors import FormatError, InputError, ModelError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

#: No tokenizer file is larger; the largest known tokenizer.json (262,144 tokens) has 34 MB.
MAX_FILE_BYTES = 256 * 1024 * 1024

#: Vocabularies that are not byte-level BPE, by the file that only they have.
_OTHER_KINDS = {
    "tokenizer.model": "SentencePiece",
    "tiktoken.model": "tiktoken",
    "qwen.tiktoken": "tiktoken",
    "tekken.json": "tekken",
    "vocab.json": "slow BPE (vocab.json and merges.txt)",
    "vocab.txt": "WordPiece",
}


@dataclass(frozen=True, slots=True)
class Target:
    """What a target's directory says about its tokenizer. `settings` is None without a tokenizer_config.json."""

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


def read_target(folder: Path) -> Target:
    """Read the three files that decide a tokenizer.

    Raises UsageError without the directory, ModelError for a tokenizer of another kind, FormatError for a file
    that is missing or not JSON, InputError for one that cannot be read.
    """
    if not folder.is_dir():
        raise UsageError("no such directory", where=str(folder), hint="the target's checkpoint directory")
    tokenizer_file = folder / "tokenizer.json"
    if not tokenizer_file.is_file():
        raise _no_tokenizer_json(folder)
    settings_file = folder / "tokenizer_config.json"
    return Target(
        folder,
        read_object(tokenizer_file),
        read_object(settings_file) if settings_file.is_file() else None,
        read_object(folder / "config.json"),
    )


def read_object(path: Path) -> dict[str, Any]:
    """One JSON object from `path`; see read_target for the errors."""
    text = read_text(path)
    collecting = gc.isenabled()
    gc.disable()  # a vocabulary is half a million objects and no cycle
    try:
        value = json.loads(text)
    except RecursionError:
        raise FormatError("nested too deeply to be a tokenizer's JSON", where=str(path)) from None
    except ValueError as error:
        raise FormatError(f"not JSON: {error}", where=str(path), hint="download the file again") from None
    finally:
        if collecting:
            gc.enable()
    return as_object(value, str(path))


def read_text(path: Path) -> str:
    """The UTF-8 text of `path`."""
    if not path.is_file():
        raise FormatError("no such file", where=str(path), hint="the target's directory must hold it")
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if len(raw) > MAX_FILE_BYTES:
        raise FormatError(f"larger than {MAX_FILE_BYTES >> 20} MiB, no tokenizer file is", where=str(path))
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 at byte {error.start}", where=str(path)) from None


def as_object(value: Any, where: str) -> dict[str, Any]:
    """`value` as a JSON object, else FormatError."""
    if not isinstance(value, dict):
        raise FormatError(f"found {_json_type(value)}, expected a JSON object", where=where)
    return value


def as_list(value: Any, where: str) -> list[Any]:
    """`value` as a JSON array, else FormatError."""
    if not isinstance(value, list):
        raise FormatError(f"found {_json_type(value)}, expected a JSON array", where=where)
    return value


def check_text(text: str, where: str) -> str:
    """`text` if it can be written as UTF-8; a lone surrogate, which JSON can escape, cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise FormatError(f"a lone surrogate at character {error.start}", where=where) from None
    return text


def _json_type(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "a number")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _no_tokenizer_json(folder: Path) -> FormatError | ModelError:
    for name, kind in _OTHER_KINDS.items():
        if (folder / name).is_file():
            return ModelError(
                f"a {kind} tokenizer is not supported, byte-level BPE is",
                where=str(folder / name),
                hint="no tokenizer.json beside it",
            )
    return FormatError("no tokenizer.json", where=str(folder), hint="pass the target's checkpoint directory")
