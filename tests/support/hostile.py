"""A tiny draft in memory, and ways to spoil it: what property tests and the fuzzer share."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

from dflash_gguf.checks import FileReport
from dflash_gguf.checks.place import Place
from dflash_gguf.checks.rules import all_rules
from dflash_gguf.checks.runner import Runner
from dflash_gguf.storage.files import MemoryFile
from dflash_gguf.storage.hub import Hub
from support.builders_gguf import Parts
from support.faults import I32, MASK, TOKENS, U32, Workshop

#: numbers that overflow something
EXTREMES = (0, 1, 2, 31, 33, 255, (1 << 16) - 1, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40)
EXTREMES_64 = (*EXTREMES, (1 << 61) + 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 33, (1 << 64) - 1)


class _OpenMemory(MemoryFile):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


@dataclass
class MemoryPlace:
    """A place whose file is in memory."""

    name: str
    data: bytes
    is_of_repo: bool = False

    def open(self, *, whole: bool) -> _OpenMemory:  # noqa: ARG002 - it is whole
        return _OpenMemory(self.data, self.name)

    def card(self) -> None:
        return None


def check_bytes(data: bytes, *, weights: bool = True, target: Any = None) -> FileReport:
    """The report on `data`; raises whatever is not a finding."""
    runner = Runner(all_rules(), target, None, hub=Hub(), data=weights)
    return runner.look_at(cast("Place", MemoryPlace("dflash-Tiny-BF16.gguf", data)))


def tiny(shop: Workshop) -> Parts:
    """A good draft of 64 tokens: small enough to be checked thousands of times."""
    parts = shop.parts()
    tokens = [*shop.good.strings(TOKENS)[:63], b"<mask>"]
    known = set(tokens)
    merges = [m for m in shop.good.strings("tokenizer.ggml.merges") if set(m.split(b" ")) <= known][:20]
    parts.set_strings(TOKENS, tokens).set_strings("tokenizer.ggml.merges", merges)
    parts.set_array("tokenizer.ggml.token_type", I32, [1] * 64).set(MASK, U32, 63)
    for key in list(parts.pairs):
        if key.endswith("_token_id") and key != MASK:
            parts.set(key, U32, 0)
        if "chat_template" in key:
            parts.remove(key)
    for side in ("predecessor", "successor"):
        parts.reshape(f"selector_{side}.weight", (32, 64))
    return parts


@dataclass(frozen=True)
class Layout:
    """Where in the tiny file the metadata, the tensor infos and the data begin."""

    infos: int
    data: int
    size: int

    @classmethod
    def of(cls, parts: Parts) -> Layout:
        whole = parts.encode()
        payload = sum(-(-len(raw) // 32) * 32 for _, _, raw in parts.tensors.values())
        first = next(iter(parts.tensors)).encode()
        return cls(whole.index(struct.pack("<Q", len(first)) + first), len(whole) - payload, len(whole))


def overwrite(data: bytes, at: int, raw: bytes) -> bytes:
    return (data[:at] + raw + data[at + len(raw) :])[: max(len(data), at)]


def insert(data: bytes, at: int, raw: bytes) -> bytes:
    return data[:at] + raw + data[at:]


def delete(data: bytes, at: int, count: int) -> bytes:
    return data[:at] + data[at + count :]


def duplicate(data: bytes, at: int, count: int) -> bytes:
    return data[: at + count] + data[at:]


Change = Callable[[bytes], bytes]
