"""The GGUF scanner: reads any header, or says what is wrong with it, without trusting a single number in it.

Every count, length and offset is compared with the bytes that remain before anything is allocated. What makes
the rest unreadable raises FormatError; what can be read past is kept as a `Defect`, so that `check` can list
every fault of a file and `inspect` can still show it. Layout: ggml's docs/gguf.md.
"""

from __future__ import annotations

import struct
import sys
from array import array
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, TypeAlias

from dflash_gguf.errors import FormatError
from dflash_gguf.formats.gguf.layout import Defect, RawTensorInfo, TensorInfo, lay_out
from dflash_gguf.formats.gguf.types import SCALAR_FORMAT, ValueType
from dflash_gguf.formats.gguf.values import Array, Metadata, MetaValue, Scalar
from dflash_gguf.wording import counted

_RawArray: TypeAlias = tuple[ValueType, int, int, int]  # item type, count, first byte, end
_RawMetadata: TypeAlias = dict[str, tuple[ValueType, Scalar | _RawArray]]

if TYPE_CHECKING:
    from dflash_gguf.storage.files import ByteFile

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_HEADER = 48 << 20  # read within 100 MB of memory; the largest published vocabulary needs 14 MB
MAX_COUNT = 65_536  # keys or tensors; ggml itself stops at 512 blocks of a few dozen tensors
MAX_KEY = 65_535
MAX_DIMS = 4
FIRST_READ = 256 << 10
#: how far is read next, where one more byte is needed; a request to a remote file costs as much as a megabyte
READ_UPTO = (FIRST_READ, 3 << 20, 12 << 20)
MAX_READ = 16 << 20
_PIECE = 1 << 20

_ITEM_SIZE = {value_type: struct.calcsize(fmt) for value_type, fmt in SCALAR_FORMAT.items()}
_SCALAR = {value_type: struct.Struct("<" + fmt) for value_type, fmt in SCALAR_FORMAT.items()}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Header:
    """Everything in front of the tensor data. `size` is the whole file's, `data_offset` where the data starts."""

    version: int
    alignment: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]
    data_offset: int
    size: int
    defects: tuple[Defect, ...]
    errors: tuple[Defect, ...]

    def require_sound(self, name: str) -> None:
        """Raise FormatError for the first defect that makes llama.cpp refuse the file, or read it wrongly."""
        for defect in self.errors:
            where = f"{name}: {defect.where}" if defect.where else name
            raise FormatError(defect.message, where=where, rule=defect.rule)


@dataclass(frozen=True, slots=True)
class HeaderStart:
    """What the first FIRST_READ bytes of a file tell: its first keys; `complete` where there are no others."""

    version: int
    n_tensors: int
    n_keys: int
    metadata: Metadata
    size: int
    complete: bool


def scan_start(source: ByteFile) -> HeaderStart:
    """Scan no further than FIRST_READ bytes: identity and draft stand in front of the vocabulary.

    For a remote file, whose whole header is several megabytes. Raises FormatError as `scan_header` does.
    """
    return _HeaderScanner(source, FIRST_READ).scan_start()


def scan_header(source: ByteFile) -> Header:
    """Scan the header of `source`.

    Raises FormatError (with the rule's id) when the bytes are no GGUF or cannot be read on: see CHECKS GF001-GF005.
    """
    return _HeaderScanner(source).scan()


class _LimitReachedError(Exception):
    """The header goes on behind the bytes that may be read."""


class _HeaderScanner:
    """A cursor over the first bytes of a file, which are fetched as they are needed, up to `limit`."""

    def __init__(self, source: ByteFile, limit: int = MAX_HEADER) -> None:
        self.source = source
        self.limit = limit
        self.data = bytearray()
        self.position = 0
        self.warnings: list[Defect] = []
        self.errors: list[Defect] = []

    def scan(self) -> Header:
        version, n_tensors, n_keys = self._preamble()
        raw: _RawMetadata = {}
        self._metadata(n_keys, raw)
        alignment = self._alignment(raw)
        infos = [self._tensor_info(i) for i in range(n_tensors)]
        data_offset = -(-self.position // alignment) * alignment
        layout = lay_out(infos, data_offset, alignment, self.source.size)
        self._check_padding(data_offset)
        self.errors += layout.errors
        self.warnings += layout.warnings
        return Header(
            version,
            alignment,
            self._views(raw),
            layout.tensors,
            data_offset,
            self.source.size,
            (*self.errors, *self.warnings),
            tuple(self.errors),
        )

    def scan_start(self) -> HeaderStart:
        version, n_tensors, n_keys = self._preamble()
        raw: _RawMetadata = {}
        complete = True
        try:
            self._metadata(n_keys, raw)
        except _LimitReachedError:
            complete = False  # the key that goes on behind the limit is left out
        return HeaderStart(version, n_tensors, n_keys, self._views(raw), self.source.size, complete)

    def fail(self, rule: str, message: str, where: str = "", hint: str = "") -> FormatError:
        at = where or f"byte {self.position}"
        return FormatError(message, where=f"{self.source.name}: {at}", hint=hint, rule=rule)

    def need(self, length: int, what: str) -> None:
        """Have `length` bytes from the cursor in memory, or raise GF003."""
        end = self.position + length
        if end <= len(self.data):
            return
        if end > self.source.size:
            raise self.fail(
                "GF003",
                f"{what} needs {counted(length, 'byte')}, {max(0, self.source.size - self.position):,} remain",
                hint="the file is truncated or this number is corrupt",
            )
        if end > MAX_HEADER:
            raise self.fail("GF003", f"{what} makes the header larger than {MAX_HEADER >> 20} MiB")
        if end > self.limit:
            raise _LimitReachedError
        have = len(self.data)
        grown = next((upto for upto in READ_UPTO if upto > have), have + MAX_READ)
        upto = min(max(end, grown), self.source.size, self.limit)
        while have < upto:  # in pieces, so that a large header is not held twice
            self.data += self.source.read(have, min(upto - have, MAX_READ))
            have = len(self.data)

    def take(self, form: struct.Struct, what: str) -> int:
        self.need(form.size, what)
        value: int = form.unpack_from(self.data, self.position)[0]
        self.position += form.size
        return value

    def take_bytes(self, length: int, what: str) -> bytes:
        self.need(length, what)
        start, self.position = self.position, self.position + length
        with memoryview(self.data) as view:
            return bytes(view[start : self.position])

    def _preamble(self) -> tuple[int, int, int]:
        if self.source.size < 4 or self.source.read(0, 4) != MAGIC:
            raise self.fail("GF001", f"not a GGUF file: {_describe(self.source)}", where="byte 0")
        self.position = 4
        version = self.take(_U32, "the version")
        if version not in (2, 3):
            raise self._bad_version(version)
        n_tensors = self.take(_U64, "the tensor count")
        n_keys = self.take(_U64, "the key count")
        remaining = self.source.size - self.position
        # the smallest key takes 8 + 1 + 4 + 1 bytes, the smallest tensor info 8 + 1 + 4 + 8 + 4 + 8
        for count, smallest, what in ((n_keys, 14, "key"), (n_tensors, 33, "tensor")):
            if count > min(MAX_COUNT, remaining // smallest):
                raise self.fail(
                    "GF003",
                    f"{counted(count, what)} cannot be right: {counted(remaining, 'byte', 'remains', 'remain')}",
                    where=f"{what} count",
                )
        return version, n_tensors, n_keys

    def _bad_version(self, version: int) -> FormatError:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in (1, 2, 3):
            return self.fail(
                "GF002",
                f"big-endian file (version {swapped}, byte-swapped)",
                where="version",
                hint="convert anew",
            )
        return self.fail("GF002", f"GGUF version {version}, expected 2 or 3", where="version", hint="convert anew")

    def _metadata(self, n_keys: int, raw: _RawMetadata) -> None:
        for index in range(n_keys):
            key = self._key(index)
            value_type = self._value_type(self.take(_U32, f"the type of {key}"), key)
            value = self._array(key) if value_type is ValueType.ARRAY else self._scalar(value_type, key)
            if key in raw:
                self.errors.append(Defect("GF004", "the key stands twice", key))
            else:
                raw[key] = (value_type, value)

    def _views(self, raw: _RawMetadata) -> Metadata:
        """Arrays as views of the bytes read; nothing may be read any more once they are handed out."""
        view = memoryview(self.data).toreadonly()
        return {
            key: MetaValue(t, Array(v[0], v[1], view[v[2] : v[3]]) if isinstance(v, tuple) else v)
            for key, (t, v) in raw.items()
        }

    def _key(self, index: int) -> str:
        where = f"key {index}"
        length = self.take(_U64, f"the length of {where}")
        if not 0 < length <= MAX_KEY:
            raise self.fail("GF004", f"a key of {counted(length, 'byte')}, expected 1 to {MAX_KEY:,}", where=where)
        raw = self.take_bytes(length, where)
        if not raw.isascii():
            raise self.fail("GF004", f"the key {raw[:80]!r} is not ASCII", where=where)
        key = raw.decode("ascii")
        if not key.isprintable():
            self.warnings.append(Defect("GF007", f"control characters in the key {key!r}", where))
        return key

    def _value_type(self, number: int, key: str) -> ValueType:
        try:
            return ValueType(number)
        except ValueError:
            raise self.fail("GF004", f"unknown value type {number}", where=key) from None

    def _scalar(self, value_type: ValueType, key: str) -> Scalar:
        if value_type is ValueType.STRING:
            return self._string(key)
        form = _SCALAR[value_type]
        self.need(form.size, key)
        byte = self.data[self.position]
        value: Scalar = form.unpack_from(self.data, self.position)[0]
        self.position += form.size
        if value_type is ValueType.BOOL and byte > 1:
            self.warnings.append(Defect("GF007", f"a bool of {byte}, expected 0 or 1", key))
        if isinstance(value, float) and value - value != 0:  # NaN and both infinities
            self.warnings.append(Defect("GF007", f"the value is {value}", key))
        return value

    def _string(self, key: str) -> str:
        length = self.take(_U64, f"the length of {key}")
        self.need(length, f"the string {key}")
        start, self.position = self.position, self.position + length
        with memoryview(self.data) as data, data[start : self.position] as raw:  # a string may be most of the file
            try:
                return str(raw, "utf-8")
            except UnicodeDecodeError:  # which holds a copy of the string: it goes before the next one is made
                self.warnings.append(Defect("GF007", "the string is not UTF-8", key))
            return str(raw, "utf-8", "surrogateescape")

    def _array(self, key: str) -> _RawArray:
        item_type = self._value_type(self.take(_U32, f"the item type of {key}"), key)
        if item_type is ValueType.ARRAY:
            raise self.fail("GF004", "arrays of arrays are not read by llama.cpp", where=key)
        count = self.take(_U64, f"the item count of {key}")
        smallest = 8 if item_type is ValueType.STRING else _ITEM_SIZE[item_type]
        remaining = self.source.size - self.position
        if count > remaining // smallest:
            raise self.fail(
                "GF003",
                f"{counted(count, 'item')} cannot be right: {counted(remaining, 'byte', 'remains', 'remain')}",
                where=key,
            )
        start = self.position
        if item_type is ValueType.STRING:
            self._skip_strings(count, key)
        else:
            self.need(count * smallest, key)
            self.position += count * smallest
            self._check_items(item_type, start, key)
        return item_type, count, start, self.position

    def _check_items(self, item_type: ValueType, start: int, key: str) -> None:
        data, end = self.data, self.position
        if item_type is ValueType.BOOL and data.count(0, start, end) + data.count(1, start, end) < end - start:
            self.warnings.append(Defect("GF007", "bools other than 0 and 1", key))
        if item_type in (ValueType.FLOAT32, ValueType.FLOAT64):
            parts = (data[at : min(at + _PIECE, end)] for at in range(start, end, _PIECE))
            if not all(_all_finite(SCALAR_FORMAT[item_type], part) for part in parts):
                self.warnings.append(Defect("GF007", "NaN or infinity among the values", key))

    def _skip_strings(self, count: int, key: str) -> None:
        """Walk over `count` strings: the one loop that decides how fast a large vocabulary opens."""
        unpack, position, done = _U64.unpack_from, self.position, 0
        while done < count:
            data = self.data
            try:
                for done in range(done, count):  # noqa: B007, B020 - goes on where bytes were missing
                    position += 8 + unpack(data, position)[0]
                done = count
            except (struct.error, OverflowError):
                self.position = position
                self.need(8, f"string {done:,} of {key}")
        self.position = position
        self.need(0, f"the last string of {key}")

    def _alignment(self, raw: _RawMetadata) -> int:
        if "general.alignment" not in raw:
            return DEFAULT_ALIGNMENT
        value_type, alignment = raw["general.alignment"]
        if value_type is not ValueType.UINT32 or not isinstance(alignment, int):
            self.errors.append(Defect("GF006", f"type {value_type.name}, expected UINT32", "general.alignment"))
            return DEFAULT_ALIGNMENT
        if alignment == 0 or alignment & (alignment - 1):
            self.errors.append(Defect("GF006", f"{alignment} is not a power of two", "general.alignment"))
            return DEFAULT_ALIGNMENT
        return alignment

    def _tensor_info(self, index: int) -> RawTensorInfo:
        where = f"tensor {index}"
        length = self.take(_U64, f"the name length of {where}")
        if length > MAX_KEY:
            raise self.fail("GF003", f"a tensor name of {counted(length, 'byte')}", where=where)
        name = self.take_bytes(length, f"the name of {where}").decode("utf-8", "surrogateescape")
        n_dims = self.take(_U32, f"the dims of {name}")
        if n_dims > MAX_DIMS:
            raise self.fail("GF005", f"{counted(n_dims, 'dim')}, at most {MAX_DIMS} are allowed", where=name)
        shape = tuple(self.take(_U64, f"a dim of {name}") for _ in range(n_dims))
        ggml_type = self.take(_U32, f"the type of {name}")
        return RawTensorInfo(name, ggml_type, shape, self.take(_U64, f"the offset of {name}"))

    def _check_padding(self, data_offset: int) -> None:
        """Look at the padding, or its start: an alignment may be 2 GiB."""
        end = min(data_offset, self.source.size, self.position + _PIECE)
        padding = self.source.read(self.position, end - self.position)
        if padding.strip(b"\0"):
            self.warnings.append(Defect("GF007", "the padding before the tensor data is not zero", "header"))


def _all_finite(form: str, raw: bytearray) -> bool:
    """One NaN or infinity spreads over a sum; a sum of finite doubles that overflows is looked at one by one."""
    values = array(form)
    values.frombytes(raw)
    if sys.byteorder == "big":
        values.byteswap()
    return isfinite(sum(values)) or all(map(isfinite, values))


def _describe(source: ByteFile) -> str:
    """What a file that is no GGUF seems to be."""
    from dflash_gguf.storage.inplace import TORN

    head = source.read(0, min(source.size, 512))
    start = head.lstrip().lower()
    kinds = (
        (not head, "it is empty"),
        (head.startswith(TORN), "a patch of it was interrupted; `dflash-gguf patch FILE --in-place` takes that back"),
        (
            head.startswith(b"version https://git-lfs"),
            "a Git LFS pointer; fetch the file itself (git lfs pull)",
        ),
        (
            start.startswith((b"<!doctype", b"<html", b"<?xml")),
            "an HTML page, probably an error or login page",
        ),
        (head.startswith(b"PK\x03\x04"), "a zip archive (a torch checkpoint?)"),
        (len(head) > 8 and head[8:9] == b"{", "a safetensors file; convert it first"),
        (head.startswith((b"lmgg", b"fmgg", b"tjgg", b"algg")), "a GGML file from before GGUF; convert anew"),
        (head[:4] == b"FUGG", "its magic is byte-swapped"),
        (MAGIC.startswith(head[:4]), "its magic is truncated"),
        (start.startswith((b"{", b"[")), "a JSON text"),
        (not head.strip(b"\0"), "it holds only zero bytes (an interrupted download?)"),
    )
    return next((text for hit, text in kinds if hit), f"it starts with {head[:4]!r}")
