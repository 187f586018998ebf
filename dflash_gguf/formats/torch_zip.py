"""A small file of torch.save, read without unpickling: its pickle is taken as a list of words, never obeyed.

Layout: a zip of stored members `<stem>/data.pkl` and `<stem>/data/<key>`. data.pkl describes a dict of numbers and
tensors; only the opcodes that torch writes for such a dict are read, and the few globals in it are compared as text.
Source: torch.serialization, and the pickle protocol's own description of its opcodes.
"""

from __future__ import annotations

import io
import pickletools
import struct
import warnings
import zipfile
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from dflash_gguf.errors import FormatError
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from dflash_gguf.storage.files import ByteFile

MAX_FILE = 1 << 20  # one embedding of float32 and its description take a few dozen KiB
MAX_PICKLE = 64 << 10
MAX_MEMBERS = 64

#: torch's storage classes → dtype and bytes of an item
_STORAGES = {"BFloat16Storage": ("BF16", 2), "HalfStorage": ("F16", 2), "FloatStorage": ("F32", 4)}
_REBUILD = "torch._utils _rebuild_tensor_v2"
_PARAMETER = "torch._utils _rebuild_parameter"
_ORDERED = "collections OrderedDict"
#: what zipfile and pickletools raise for bytes that are neither
_BROKEN = (
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    ValueError,
    EOFError,
    OSError,
    struct.error,
    DeprecationWarning,
)
_HINT = "was it written by torch.save({'mask_token_id': …, 'embedding': …})?"


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor: `data` are the bytes of its items, row-major."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class _Global:
    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    kind: str
    key: str
    count: int


class _Mark:
    pass


def read_saved(source: ByteFile) -> dict[str, int | SavedTensor]:
    """The numbers and tensors of a saved dict, by key.

    Raises FormatError for a file that is too large, no zip, compressed or damaged, and for a pickle with anything
    in it but such a dict.
    """
    where = source.name
    if source.size > MAX_FILE:
        raise FormatError(f"{counted(source.size, 'byte')}, expected at most {MAX_FILE:,}", where=where, hint=_HINT)
    raw = source.read(0, source.size)
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as file, warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # how pickletools meets odd escapes in a name
            return _Reader(file, where).read()
    except _BROKEN as error:
        raise FormatError(f"no file of torch.save: {error}", where=where, hint=_HINT) from None


class _Reader:
    def __init__(self, file: zipfile.ZipFile, where: str) -> None:
        members = file.infolist()
        if len(members) > MAX_MEMBERS:
            raise FormatError(f"{len(members)} members, expected at most {MAX_MEMBERS}", where=where, hint=_HINT)
        self.file, self.where = file, where
        self.members = {member.filename: member for member in members}
        pickles = [name for name in self.members if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickles) != 1 or len(self.members) != len(members):
            raise self.error("is not one saved object: data.pkl is missing, or a member stands twice")
        self.folder = pickles[0].removesuffix("data.pkl")
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def error(self, message: str) -> FormatError:
        return FormatError(message, where=self.where, hint=_HINT)

    def member(self, name: str, limit: int) -> bytes:
        """A stored member's bytes; a compressed one, or one of another size than it says, is refused."""
        found = self.members.get(self.folder + name)
        if found is None:
            raise self.error(f"has no member {name!a}")
        if found.compress_type != zipfile.ZIP_STORED or found.file_size > limit:
            raise self.error(f"member {name!a} is compressed, or larger than {limit:,} bytes")
        data = self.file.read(found)
        if len(data) != found.file_size:
            raise self.error(f"member {name!a} has {counted(len(data), 'byte')}, not {found.file_size}")
        return data

    def read(self) -> dict[str, int | SavedTensor]:
        if self.folder + "byteorder" in self.members and self.member("byteorder", 16) != b"little":
            raise self.error("is big-endian")
        for opcode, argument, _ in pickletools.genops(self.member("data.pkl", MAX_PICKLE)):
            if opcode.name == "STOP":
                break
            self._step(opcode.name, argument)
        result = self.stack[0] if len(self.stack) == 1 else None
        if not isinstance(result, dict) or not all(type(value) in (int, SavedTensor) for value in result.values()):
            raise self.error("is no dict of numbers and tensors")
        return result

    def _step(self, name: str, argument: Any) -> None:
        """One opcode as data: nothing is imported, called or built but dicts, tuples and the classes above."""
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        if name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else argument] = self._top()
        elif name in ("BINGET", "LONG_BINGET"):
            if argument not in self.memo:
                raise self.error(f"its pickle recalls {argument}, which it never stored")
            stack.append(self.memo[argument])
        elif name in ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"):
            stack.append(argument)
        elif name in ("NEWTRUE", "NEWFALSE"):
            stack.append(name == "NEWTRUE")
        elif name == "MARK":
            stack.append(_Mark())
        elif name in ("EMPTY_DICT", "EMPTY_TUPLE"):
            stack.append({} if name == "EMPTY_DICT" else ())
        elif name == "GLOBAL":
            stack.append(_Global(argument))
        elif name == "TUPLE":
            self._push(tuple(self._marked()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            self._push(tuple(self._pop() for _ in range(int(name[-1])))[::-1])
        elif name in ("SETITEM", "SETITEMS"):
            self._set(self._marked() if name == "SETITEMS" else [self._pop(), self._pop()][::-1])
        elif name == "BINPERSID":
            self._push(self._storage(self._pop()))
        elif name == "REDUCE":
            arguments = self._pop()
            self._push(self._reduce(self._pop(), arguments))
        else:
            raise self.error(f"its pickle holds {name}, which no dict of numbers and tensors needs: it is not read on")

    def _push(self, value: Any) -> None:
        self.stack.append(value)

    def _top(self) -> Any:
        if not self.stack or isinstance(self.stack[-1], _Mark):
            raise self.error("its pickle is damaged")
        return self.stack[-1]

    def _pop(self) -> Any:
        value = self._top()
        self.stack.pop()
        return value

    def _marked(self) -> list[Any]:
        """What was pushed since the last mark."""
        at = next((i for i in range(len(self.stack) - 1, -1, -1) if isinstance(self.stack[i], _Mark)), -1)
        if at < 0:
            raise self.error("its pickle is damaged")
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def _set(self, items: list[Any]) -> None:
        holder = self._top()
        if not isinstance(holder, dict) or len(items) % 2 or not all(isinstance(key, str) for key in items[::2]):
            raise self.error("its pickle is no dict of named values")
        holder |= dict(zip(items[::2], items[1::2], strict=True))

    def _storage(self, words: Any) -> _Storage:
        if not (isinstance(words, tuple) and len(words) == 5 and words[0] == "storage" and type(words[4]) is int):
            raise self.error("its pickle refers to something that is no storage")
        kind, key, count = words[1], words[2], words[4]
        name = kind.name.removeprefix("torch ") if isinstance(kind, _Global) else ""
        if name not in _STORAGES:
            raise self.error(f"a tensor of {name or 'no known type'}, expected one of {', '.join(_STORAGES)}")
        if not isinstance(key, str) or not key.isdigit() or not 0 <= count <= MAX_FILE:
            raise self.error("its pickle refers to a storage that cannot be")
        return _Storage(name, key, count)

    def _reduce(self, call: Any, arguments: Any) -> Any:
        if call == _Global(_ORDERED) and arguments == ():
            return {}
        if call == _Global(_REBUILD) and isinstance(arguments, tuple) and len(arguments) >= 4:
            return self._tensor(*arguments[:4])
        if (
            call == _Global(_PARAMETER)
            and isinstance(arguments, tuple)
            and arguments
            and isinstance(arguments[0], SavedTensor)
        ):
            return arguments[0]
        name = call.name if isinstance(call, _Global) else "something"
        raise self.error(f"its pickle calls {name!a}, which is never done: it is not read on")

    def _tensor(self, storage: Any, offset: Any, shape: Any, strides: Any) -> SavedTensor:
        if (
            not isinstance(storage, _Storage)
            or not _naturals((offset,))
            or not _naturals(shape)
            or not _naturals(strides)
        ):
            raise self.error("its pickle describes a tensor that cannot be")
        rows = [prod(shape[i + 1 :]) for i in range(len(shape))]
        if list(strides) != rows or offset + prod(shape) > storage.count:
            raise self.error(f"a tensor of shape {list(shape)} with strides {list(strides)} is not contiguous")
        dtype, size = _STORAGES[storage.kind]
        data = self.member(f"data/{storage.key}", MAX_FILE)
        if len(data) != storage.count * size:
            held, wanted = counted(len(data), "byte"), counted(storage.count, "item", "takes", "take")
            raise self.error(f"storage {storage.key} has {held}, {wanted} another number")
        return SavedTensor(dtype, tuple(shape), data[offset * size : (offset + prod(shape)) * size])


def _naturals(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(item) is int and 0 <= item <= MAX_FILE for item in values)
