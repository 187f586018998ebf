"""A checkpoint folder: its config, its card, its safetensors (one file, or shards named by an index)."""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dflash_gguf.errors import FormatError, InputError, ModelError, UsageError
from dflash_gguf.formats.json_text import parse_object
from dflash_gguf.formats.safetensors import SourceTensor, read_header
from dflash_gguf.storage.files import LocalFile
from dflash_gguf.wording import counted

MAX_CONFIG = 16 << 20
MAX_INDEX = 64 << 20
INDEX = "model.safetensors.index.json"
_SNAPSHOT = re.compile(r"models--(?P<org>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<revision>[0-9a-f]{40})(?:/|$)")


def existing_folder(folder: Path) -> Path:
    """`folder`; raises UsageError when it is none, InputError when its files cannot be reached."""
    try:
        mode = os.stat(folder).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError("no such folder", where=str(folder), hint="check the path") from None
    except OSError as error:
        raise InputError(f"cannot be opened: {error.strerror}", where=str(folder)) from error
    if not stat.S_ISDIR(mode):
        raise UsageError("is not a folder", where=str(folder), hint="name the folder that holds config.json")
    if not os.access(folder, os.X_OK):
        raise InputError(f"cannot be opened: {os.strerror(errno.EACCES)}", where=str(folder))
    return folder


def read_json(path: Path, limit: int = MAX_CONFIG) -> dict[str, Any]:
    """The object in a JSON file. Raises UsageError (absent), InputError (unreadable) or FormatError."""
    with LocalFile(path) as source:
        if source.size > limit:
            raise FormatError(f"{counted(source.size, 'byte')}, expected at most {limit:,}", where=str(path))
        return parse_object(source.read(0, source.size), str(path))


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json."""
    path = existing_folder(folder) / "config.json"
    if not path.is_file():
        raise ModelError("has no config.json", where=str(folder), hint="is this the checkpoint's folder?")
    return read_json(path)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a checkpoint is called: a Hub repository with its commit where that can be told, else its folder's name."""

    name: str
    organization: str | None = None
    revision: str | None = None

    @property
    def repo_url(self) -> str | None:
        """Link of the Hub repository, if it is one."""
        return f"https://huggingface.co/{self.organization}/{self.name}" if self.organization else None

    @classmethod
    def of_folder(cls, folder: Path) -> Identity:
        """Read off the path: the Hub's cache layout names repository and commit."""
        resolved = folder.resolve()
        if match := _SNAPSHOT.search(resolved.as_posix()):
            return cls(match["name"], match["org"], match["revision"])
        return cls(resolved.name)


class Checkpoint:
    """The safetensors of a folder, opened for reading; `tensors` maps every name to its place."""

    def __init__(self, folder: Path) -> None:
        self.folder = existing_folder(folder)
        self.files: list[LocalFile] = []  # closed with the checkpoint
        try:
            self.tensors = self._open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all shards."""
        for file in self.files:
            file.close()
        self.files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> dict[str, SourceTensor]:
        index = self.folder / INDEX
        if index.is_file():
            return self._open_shards(read_json(index, limit=MAX_INDEX), str(index))
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise ModelError("holds no safetensors file", where=str(self.folder), hint=self._hint_without_weights())
        if len(files) > 1:
            names = ", ".join(file.name for file in files[:4])
            raise ModelError(f"{len(files)} safetensors files ({names}) but no {INDEX}", where=str(self.folder))
        return self._read(files[0])

    def _hint_without_weights(self) -> str:
        others = [path.name for path in self.folder.iterdir() if path.suffix in {".bin", ".pt", ".pth", ".gguf"}]
        return f"only safetensors are read, found {others[0]}" if others else "was the download finished?"

    def _read(self, path: Path) -> dict[str, SourceTensor]:
        file = LocalFile(path)
        self.files.append(file)
        return read_header(file)

    def _open_shards(self, index: dict[str, Any], where: str) -> dict[str, SourceTensor]:
        tensors: dict[str, SourceTensor] = {}
        for shard, expected in shards(index, where).items():
            path = self.folder / shard
            if not os.path.isfile(path):  # unlike Path.is_file, false for a name that no file can have
                raise ModelError(f"the shard {shard} is missing", where=where, hint="was the download finished?")
            held = self._read(path)
            if held.keys() != expected:
                odd = sorted(held.keys() ^ expected)[:3]
                raise FormatError(f"{shard} does not hold what the index says: {', '.join(odd)}", where=where)
            tensors |= held
        return tensors


def shards(index: dict[str, Any], where: str) -> dict[str, set[str]]:
    """Shard → names of its tensors, by an index; shards are sorted.

    Raises FormatError for an index that is none, or names a shard that is not a plain file name.
    """
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise FormatError("weight_map does not map names to files", where=where)
    names: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        names.setdefault(shard, set()).add(tensor)
    for name in names:
        if not name or name != Path(name).name or "\\" in name or name in {".", ".."}:
            raise FormatError(
                f"the shard {name!r} is not a plain file name", where=where, hint="paths are not followed"
            )
    return {name: names[name] for name in sorted(names)}
