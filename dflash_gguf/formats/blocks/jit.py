"""How the room's functions are compiled: no fast-math, no GIL, and a cache on disk that cannot go stale or fail."""

from __future__ import annotations

import hashlib
import pickle
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from numba import config, njit, types
from numba.core.caching import FunctionCache

from dflash_gguf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_Function = TypeVar("_Function", bound="Callable[..., Any]")

#: Argument types of kernels. Sources may be read-only and unaligned: they are views of a file's bytes.
F32_SOURCE = types.Array(types.float32, 1, "C", readonly=True, aligned=False)
U16_SOURCE = types.Array(types.uint16, 1, "C", readonly=True, aligned=False)
U8_SOURCE = types.Array(types.uint8, 1, "C", readonly=True, aligned=False)
U8_TARGET = types.Array(types.uint8, 1, "C")
U16_TARGET = types.Array(types.uint16, 1, "C", aligned=False)


@cache
def _room_digest() -> str:
    """SHA-256 of the room's sources: numba itself only looks at the one file that a kernel is written in."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()


class _RoomCache(FunctionCache):  # type: ignore[misc]  # numba has no type information
    """Numba's cache, keyed by all sources of the room; a cache that cannot be read or written is no error."""

    #: What unpickling damaged bytes may raise: they can spell any instruction.
    _DAMAGED = (
        ArithmeticError,
        AttributeError,
        EOFError,
        ImportError,
        LookupError,
        MemoryError,
        TypeError,
        ValueError,
        pickle.UnpicklingError,
    )

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), _room_digest())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except OSError:
            return None
        except self._DAMAGED:
            with suppress(OSError):
                self.flush()  # else nothing could be saved in its place
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError, *self._DAMAGED):
            super().save_overload(sig, data)


def inner(function: _Function) -> _Function:
    """Compile a function that only kernels call; it becomes part of each of them."""
    return cast("_Function", njit(nogil=True, error_model="numpy")(function))


def kernel(*arguments: Any) -> Callable[[_Function], _Function]:
    """Compile a function for these argument types now, or take it from the cache (beside the source, else the user's).

    A kernel returns nothing, keeps no state and allocates its own scratch: calls from several threads do not meet.
    """

    def compile_now(function: _Function) -> _Function:
        if config.DISABLE_JIT:
            raise UsageError("NUMBA_DISABLE_JIT is set: the kernels are only right when compiled", hint="unset it")
        dispatcher = njit(nogil=True, error_model="numpy")(function)
        with suppress(RuntimeError):  # neither directory can be written: compile at each start
            dispatcher._cache = _RoomCache(function)  # noqa: SLF001 - what enable_caching() does, with our class
        dispatcher.compile(types.void(*arguments))
        dispatcher.disable_compile()
        return cast("_Function", dispatcher)

    return compile_now
