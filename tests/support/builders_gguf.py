"""GGUF files made on the spot: a converted draft is taken apart, changed in one place, and put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_gguf.formats.gguf.emit import OutTensor, encode_header
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.formats.gguf.types import GGMLType, ValueType, tensor_bytes
from dflash_gguf.formats.gguf.values import Array, Item, MetaValue
from dflash_gguf.model.tokenizer import load_tokenizer
from dflash_gguf.storage.files import LocalFile
from support.builders import target_config, write_target


@dataclass
class Parts:
    """A file in parts: keys in order, and tensors as (type, ne, bytes)."""

    pairs: dict[str, MetaValue] = field(default_factory=dict)
    tensors: dict[str, tuple[GGMLType, tuple[int, ...], bytes]] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path) -> Parts:
        """Take a sound file apart."""
        with LocalFile(path) as source:
            header = scan_header(source)
            tensors = {
                name: (info.type, info.shape, source.read(info.offset, info.size))
                for name, info in header.tensors.items()
            }
        return cls(dict(header.metadata), tensors)

    def copy(self) -> Parts:
        """A copy that can be changed."""
        return Parts(dict(self.pairs), dict(self.tensors))

    def encode(self) -> bytes:
        """The file's bytes."""
        header = encode_header(self.pairs.items(), [OutTensor(n, t, ne) for n, (t, ne, _) in self.tensors.items()])
        data = bytearray(header.file_size)
        data[: len(header.data)] = header.data
        for offset, (_, _, raw) in zip(header.offsets, self.tensors.values(), strict=True):
            data[offset : offset + len(raw)] = raw
        return bytes(data)

    # changes, each of one place

    def set(self, key: str, kind: ValueType, value: Any) -> Parts:
        """Set a scalar key."""
        self.pairs[key] = MetaValue(kind, value)
        return self

    def set_array(self, key: str, kind: ValueType, items: Sequence[Item]) -> Parts:
        """Set an array key."""
        self.pairs[key] = MetaValue(ValueType.ARRAY, Array.of(kind, items))
        return self

    def set_strings(self, key: str, items: Sequence[bytes]) -> Parts:
        """Set an array of strings, given as bytes."""
        self.pairs[key] = MetaValue(ValueType.ARRAY, Array.of_strings(list(items)))
        return self

    def remove(self, *keys: str) -> Parts:
        """Remove keys."""
        for key in keys:
            del self.pairs[key]
        return self

    def rename(self, old: str, new: str) -> Parts:
        """Give a key another name, in its place."""
        self.pairs = {new if key == old else key: value for key, value in self.pairs.items()}
        return self

    def rename_tensor(self, old: str, new: str) -> Parts:
        """Give a tensor another name, in its place."""
        self.tensors = {new if name == old else name: value for name, value in self.tensors.items()}
        return self

    def drop(self, *names: str) -> Parts:
        """Remove tensors."""
        for name in names:
            del self.tensors[name]
        return self

    def reshape(self, name: str, ne: tuple[int, ...], kind: GGMLType | None = None) -> Parts:
        """Give a tensor another shape (and type), its bytes repeated to fill it."""
        old, _, raw = self.tensors[name]
        size = tensor_bytes(kind or old, _product(ne))
        self.tensors[name] = (kind or old, ne, (raw * (size // len(raw) + 1))[:size])
        return self

    def fill(self, name: str, raw: bytes) -> Parts:
        """Give a tensor other bytes."""
        kind, ne, old = self.tensors[name]
        assert len(raw) == len(old)
        self.tensors[name] = (kind, ne, raw)
        return self

    def strings(self, key: str) -> list[bytes]:
        """The strings of an array."""
        value = self.pairs[key].value
        assert isinstance(value, Array)
        return list(value.strings())


def _product(ne: Sequence[int]) -> int:
    total = 1
    for dim in ne:
        total *= dim
    return total


def target_gguf(path: Path, *, config: Mapping[str, Any] | None = None, embedding_rows: int | None = None) -> Path:
    """A target's GGUF: metadata and an embedding, which is all that a pair check reads."""
    config = {**target_config(), **(config or {})}
    folder = write_target(path.parent / f"{path.stem}-folder", dict(config))
    arch = str(config["model_type"])
    tokenizer = load_tokenizer(folder, vocab_size=config["vocab_size"], mask_token_id=0)
    pairs = {
        "general.architecture": MetaValue(ValueType.STRING, arch),
        f"{arch}.embedding_length": MetaValue(ValueType.UINT32, config["hidden_size"]),
        f"{arch}.block_count": MetaValue(ValueType.UINT32, config["num_hidden_layers"]),
        **{key: value for key, value in tokenizer.key_values if not key.endswith("mask_token_id")},
    }
    ne: tuple[int, ...] = (config["hidden_size"], embedding_rows or config["vocab_size"])
    tensors = {"token_embd.weight": (GGMLType.BF16, ne, bytes(2 * ne[0] * ne[1]))}
    path.write_bytes(Parts(pairs, tensors).encode())
    return path
