"""Files of torch.save: what torch wrote is read, anything else is refused, and nothing is ever obeyed."""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders import ROOT

from dflash_gguf.errors import FormatError
from dflash_gguf.formats.torch_zip import MAX_FILE, SavedTensor, read_saved
from dflash_gguf.storage.files import MemoryFile

DATA = ROOT / "tests/data/mask_embedding"
VALUES = np.array(json.loads((DATA / "values.json").read_text())["f32"], np.float32)


def read(raw: bytes) -> dict[str, int | SavedTensor]:
    return read_saved(MemoryFile(raw, "mask_embedding.pt"))


def remade(name: str = "bf16", /, **members: bytes | None) -> bytes:
    """A file of torch's, members replaced, added or (None) left out; `__` stands for a dot, `__slash__` for a slash."""
    changes = {f"{name}/{key.replace('__slash__', '/').replace('__', '.')}": value for key, value in members.items()}
    out = io.BytesIO()
    with zipfile.ZipFile(DATA / f"{name}.pt") as old, zipfile.ZipFile(out, "w") as new:
        kept = {item.filename: old.read(item) for item in old.infolist()}
        for key, value in (kept | changes).items():
            if value is not None:
                new.writestr(key, value)
    return out.getvalue()


def pickled(name: str = "bf16") -> bytes:
    with zipfile.ZipFile(DATA / f"{name}.pt") as file:
        return file.read(f"{name}/data.pkl")


@pytest.mark.parametrize("name", ["f32", "parameter"])
def test_float32_and_parameters(name: str) -> None:
    saved = read((DATA / f"{name}.pt").read_bytes())
    assert saved == {"mask_token_id": 2030, "embedding": SavedTensor("F32", (64,), VALUES.tobytes())}


def test_bf16_and_a_view_into_a_larger_storage() -> None:
    bf16 = read((DATA / "bf16.pt").read_bytes())["embedding"]
    assert isinstance(bf16, SavedTensor)
    wide = (np.frombuffer(bf16.data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    assert np.abs(wide - VALUES).max() < 0.01
    view = read((DATA / "f16-view.pt").read_bytes())["embedding"]
    assert isinstance(view, SavedTensor)
    assert (view.dtype, view.shape, len(view.data)) == ("F16", (64,), 128)
    with zipfile.ZipFile(DATA / "f16-view.pt") as file:
        assert view.data == file.read("f16-view/data/0")[128:256]  # the second of three rows


class Evil:
    """An object whose pickle runs a command when it is loaded."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, ("touch obeyed",)


REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "no file of torch.save"),
    "text": (b"version https://git-lfs.github.com/spec/v1\n", "no file of torch.save"),
    "plain pickle": (pickle.dumps({"mask_token_id": 1}), "no file of torch.save"),
    "huge": (b"\0" * (MAX_FILE + 1), "expected at most"),
    "no pickle": (remade(data__pkl=None), "data.pkl is missing"),
    "big-endian": (remade(byteorder=b"big"), "big-endian"),
    "storage missing": (remade(data__slash__0=None), "no member 'data/0'"),
    "storage short": (remade(data__slash__0=b"\0" * 126), "has 126 bytes"),
    "storage long": (remade(data__slash__0=b"\0" * 130), "has 130 bytes"),
    "command": (remade(data__pkl=pickle.dumps(Evil(), 2)), "never done"),
    "command, protocol 4": (remade(data__pkl=pickle.dumps({"a": Evil()}, 4)), "not read on"),
    "list": (remade(data__pkl=pickle.dumps([1], 2)), "EMPTY_LIST"),
    "number alone": (remade(data__pkl=pickle.dumps(5, 2)), "no dict"),
    "text value": (remade(data__pkl=pickle.dumps({"a": "b"}, 2)), "no dict"),
    "number as key": (remade(data__pkl=pickle.dumps({1: 2}, 2)), "no dict of named"),
    "cut": (remade(data__pkl=pickled()[:100]), "mask_embedding.pt"),
    "another global": (remade(data__pkl=pickled().replace(b"_rebuild_tensor_v2", b"_rebuild_tensor_v3")), "never done"),
    "double storage": (remade(data__pkl=pickled().replace(b"BFloat16Storage", b"DoubleStorage")), "DoubleStorage"),
    "strides": (remade(data__pkl=pickled().replace(b"K\x01\x85q\x0a", b"K\x02\x85q\x0a")), "not contiguous"),
    "too long": (remade(data__pkl=pickled().replace(b"K\x00K\x40\x85", b"K\x00K\x41\x85")), "not contiguous"),
    "offset": (remade(data__pkl=pickled().replace(b"K\x00K\x40\x85", b"K\x01K\x40\x85")), "not contiguous"),
    "path as key": (remade(data__pkl=pickled().replace(b"\x01\0\0\x000q", b"\x01\0\0\0.q")), "storage that cannot be"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_anything_else_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, complaint = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormatError, match=complaint):
        read(raw)
    assert list(tmp_path.iterdir()) == []


def test_compressed_members_are_refused() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x/data.pkl", pickled() + b"\0" * (60 << 10))
    with pytest.raises(FormatError, match="compressed"):
        read(out.getvalue())


def test_a_size_that_the_file_does_not_have() -> None:
    raw = bytearray((DATA / "bf16.pt").read_bytes())
    entry = raw.rindex(b"bf16/data/0") - 46  # its entry in the central directory
    struct.pack_into("<II", raw, entry + 20, 1 << 30, 1 << 30)
    with pytest.raises(FormatError):
        read(bytes(raw))


def test_many_members_and_doubles() -> None:
    with pytest.raises(FormatError, match="at most 64"):
        read(remade("bf16", **{f"data__slash__{i}": b"" for i in range(1, 80)}))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("x/data.pkl", pickled())
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr("x/data.pkl", pickled())
    with pytest.raises(FormatError, match="stands twice"):
        read(out.getvalue())


@pytest.mark.parametrize("name", ["bf16", "f16-view", "parameter"])
def test_mutations_raise_nothing_else(name: str) -> None:
    rng = random.Random(7)
    raw, description = (DATA / f"{name}.pt").read_bytes(), pickled(name)
    for _ in range(400):
        damaged, text = bytearray(raw), bytearray(description)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(raw))] = rng.randrange(256)
            text[rng.randrange(len(text))] = rng.randrange(256)
        for candidate in (bytes(damaged), remade(name, data__pkl=bytes(text))):
            try:
                found = read(candidate)
            except FormatError:
                continue
            assert all(isinstance(value, int | SavedTensor) for value in found.values())
