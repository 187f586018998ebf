"""The header of a file while it is edited, and the log of what was done to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_gguf.errors import ModelError, UsageError
from dflash_gguf.formats.gguf.emit import EncodedHeader, OutTensor, encode_header, encode_value
from dflash_gguf.formats.gguf.scan import DEFAULT_ALIGNMENT, Header, scan_header
from dflash_gguf.model.metadata import KEYS
from dflash_gguf.wording import safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dflash_gguf.formats.gguf.layout import TensorInfo
    from dflash_gguf.formats.gguf.values import Metadata, MetaValue
    from dflash_gguf.storage.files import ByteFile

_ALIGNMENT_KEY = "general.alignment"
_MAX_ALIGNMENT = 1 << 16
_ORDER = {key.full: number for number, key in enumerate(KEYS)}


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that was done; `rule` is the check rule that asked for it, "" for the caller.

    `kind` is "key", "tensor" (a new name) or "container" (encoding the header anew; `old` says so).
    A key that only appears has no `old`, one that goes no `new`; `before` and `after` are its values.
    """

    kind: str
    old: str
    new: str
    before: MetaValue | None = None
    after: MetaValue | None = None
    rule: str = ""


class Edits:
    """A header's keys and tensor names, to be changed; every change that has an effect is logged."""

    def __init__(self, header: Header) -> None:
        self.original = header
        self.metadata: Metadata = dict(header.metadata)
        self.names: dict[str, str] = {name: name for name in header.tensors}  # the name to be → the file's
        self.log: list[Change] = []
        self.rule = ""
        self._encoded: EncodedHeader | None = None
        self._header: Header = header

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.log)

    def set(self, key: str, value: MetaValue) -> None:
        """Set a key in its place, or put a new one where converting would have put it."""
        before = self.metadata.get(key)
        if before is not None and _identical(before, value):
            return
        if before is None:
            self._insert(key, value)
        else:
            self.metadata[key] = value
        self._done(Change("key", key if before is not None else "", key, before, value, self.rule))

    def remove(self, key: str) -> None:
        """Remove a key. Raises UsageError where there is none."""
        if key not in self.metadata:
            from difflib import get_close_matches

            near = get_close_matches(key, self.metadata, n=3, cutoff=0.5)
            hint = f"did you mean {', '.join(near)}?" if near else "`dflash-gguf inspect FILE --json` lists them"
            raise UsageError("has no such key", where=key, hint=safe(hint))
        before = self.metadata.pop(key)
        self._done(Change("key", key, "", before, None, self.rule))

    def move(self, moves: Mapping[str, tuple[str, MetaValue]]) -> None:
        """Put values under other keys, each in the place of its old one: old → (new, value)."""
        before = self.metadata
        self.metadata = dict(moves.get(key, (key, value)) for key, value in before.items())
        for old, (new, value) in moves.items():
            self._done(Change("key", old, new, before[old], value, self.rule))

    def arrange(self, keys: Iterable[str]) -> None:
        """Have these keys one behind the other in this order, where the first of them stands; no change by itself."""
        block = {key: self.metadata[key] for key in keys}
        first = next(number for number, key in enumerate(self.metadata) if key in block)
        rest = [(key, value) for key, value in self.metadata.items() if key not in block]
        self.metadata = dict([*rest[:first], *block.items(), *rest[first:]])
        self._encoded, self._header = None, self.original

    def rename_tensors(self, renames: Mapping[str, str]) -> None:
        """Rename tensors by the names they have now, all at once, so that two can change places.

        Raises UsageError (no such tensor, or two that would have one name).
        """
        for old in renames:
            if old not in self.names:
                raise UsageError(
                    "has no such tensor", where=old, hint="`dflash-gguf inspect FILE --tensors` lists them"
                )
        names: dict[str, str] = {}
        for now, first in self.names.items():
            new = renames.get(now, now)
            if new in names:
                raise UsageError(f"cannot be called {new}: another tensor is", where=now if new != now else first)
            names[new] = first
        self.names = names
        for old, new in renames.items():
            if new != old:
                self._done(Change("tensor", old, new, rule=self.rule))

    def reencode(self) -> None:
        """Encode the header anew though nothing in it changes: that mends padding, odd bools and trailing bytes."""
        self._done(Change("container", "header and padding written anew", "", rule=self.rule))

    def encoded(self) -> EncodedHeader:
        """The header's bytes as they will be. Raises ModelError for an alignment that makes a file of padding."""
        if self._encoded is None:
            value = self.metadata.get(_ALIGNMENT_KEY)
            alignment = value.value if value is not None and type(value.value) is int else DEFAULT_ALIGNMENT
            if not 0 < alignment <= _MAX_ALIGNMENT:
                raise ModelError(f"{alignment:,}, expected 1 to {_MAX_ALIGNMENT:,}", where=_ALIGNMENT_KEY)
            infos = self.original.tensors
            tensors = [OutTensor(new, infos[name].type, infos[name].shape) for new, name in self.names.items()]
            version = self.original.version
            pairs = self.metadata.items()
            self._encoded = encode_header(pairs, tensors, version=version, alignment=alignment)
        return self._encoded

    @property
    def header(self) -> Header:
        """The header as it will be read: encoded, and scanned as any file's. Raises FormatError."""
        if self.changed and self._header is self.original:
            encoded = self.encoded()
            self._header = scan_header(_Preview(encoded.data, encoded.file_size))
        return self._header

    def preview(self, file: ByteFile) -> ByteFile:
        """What rules read: the file itself, or (once it is changed) the header as it will be with nothing behind."""
        return _Preview(self.encoded().data, self.encoded().file_size) if self.changed else file

    @property
    def moves_nothing(self) -> bool:
        """Whether header and tensors stay where they are, so that only the header has to be written."""
        encoded, tensors = self.encoded(), self.original.tensors.values()
        return encoded.file_size == self.original.size and encoded.offsets == tuple(t.offset for t in tensors)

    def tensors(self) -> list[tuple[TensorInfo, int]]:
        """Every tensor of the file with the offset it will have."""
        return list(zip(self.original.tensors.values(), self.encoded().offsets, strict=True))

    def _done(self, change: Change) -> None:
        self.log.append(change)
        self._encoded, self._header = None, self.original

    def _insert(self, key: str, value: MetaValue) -> None:
        """In front of the first key that the table has later, else behind the last of the same first word."""
        names = list(self.metadata)
        later = [name for name in names if key in _ORDER and _ORDER.get(name, -1) > _ORDER[key]]
        group = [n for n, name in enumerate(names) if name.partition(".")[0] == key.partition(".")[0]]
        at = names.index(later[0]) if later else group[-1] + 1 if group else len(names)
        pairs = list(self.metadata.items())
        self.metadata = dict([*pairs[:at], (key, value), *pairs[at:]])


def _identical(one: MetaValue, other: MetaValue) -> bool:
    return one.type is other.type and encode_value(one) == encode_value(other)


class _Preview:
    """A file that does not exist yet: its header, and zeros up to its size."""

    name = "the patched file"

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self.size = data, size

    def read(self, offset: int, length: int) -> bytes:
        part = self._data[offset : offset + length]
        return part + b"\0" * (length - len(part))

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))
