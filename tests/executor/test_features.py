"""Features from files, and files that are not what they say."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.builders import bf16, safetensors_bytes

from dflash_gguf.errors import DflashError, FormatError, ModelError, UsageError
from dflash_gguf.executor.features import load_features

ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_npy(dtype: str, version: tuple[int, int], tmp_path: Path) -> None:
    with (tmp_path / "f.npy").open("wb") as file:
        np.lib.format.write_array(file, ROWS.astype(dtype), version=version)
    got = load_features(str(tmp_path / "f.npy"), 4)
    assert got.dtype == np.float32
    assert (got == ROWS).all()


@pytest.mark.parametrize("names", [["x"], ["other", "features"]])
def test_safetensors(names: list[str], tmp_path: Path) -> None:
    held = {name: ROWS if name == names[-1] else np.ones(3, np.float32) for name in names}
    (tmp_path / "f.safetensors").write_bytes(safetensors_bytes(held, "F32"))
    assert (load_features(str(tmp_path / "f.safetensors"), 4) == ROWS).all()


def test_safetensors_bf16(tmp_path: Path) -> None:
    (tmp_path / "f.safetensors").write_bytes(safetensors_bytes({"x": bf16(ROWS)}))
    assert (load_features(str(tmp_path / "f.safetensors"), 4) == ROWS).all()


def test_random() -> None:
    assert load_features("random:3", 4).shape == (3, 4)
    assert (load_features("random:3", 4) == load_features("random:3:0", 4)).all()
    assert (load_features("random:3:7", 4) != load_features("random:3:8", 4)).all()


@pytest.mark.parametrize(
    "text", ["random:", "random:0", "random:-1", "random:2:x", "random:1:2:3", "random:²", "f.npz", "f"]
)
def test_what_is_no_source(text: str) -> None:
    with pytest.raises(UsageError):
        load_features(text, 4)


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + data


def described(descr: str = "'<f4'", order: str = "False", shape: str = "(3, 4)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


class _Bomb:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return exec, ("raise SystemExit('unpickled')",)


HOSTILE: dict[str, tuple[bytes, type[DflashError], str]] = {
    "empty": (b"", FormatError, "not a .npy file"),
    "pickle": (pickle.dumps(_Bomb()), FormatError, "not a .npy file"),
    "object array": (npy(described("'|O'"), pickle.dumps(_Bomb())), FormatError, r"dtype \|O"),
    "strings": (npy(described("'<U4'"), bytes(192)), FormatError, "dtype <U4"),
    "integers": (npy(described("'<i4'"), bytes(48)), FormatError, "dtype <i4"),
    "records": (npy(described("[('a', '<f4')]"), bytes(48)), FormatError, "header is not"),
    "fortran": (npy(described(order="True"), bytes(48)), FormatError, "Fortran order"),
    "huge shape": (npy(described(shape="(1000000000000, 4)"), bytes(48)), FormatError, "the file holds 48"),
    "negative shape": (npy(described(shape="(-3, 4)"), bytes(48)), FormatError, "header is not"),
    "short": (npy(described(), bytes(47)), FormatError, "takes 48 bytes, the file holds 47"),
    "long": (npy(described(), bytes(49)), FormatError, "takes 48 bytes, the file holds 49"),
    "no dict": (npy("[1, 2"), FormatError, "header is not"),
    "other keys": (npy("{'descr': '<f4'}"), FormatError, "header is not"),
    "huge header": (npy(described() + " " * 40_000), FormatError, "not a .npy file"),
    "version 9": (npy(described(), bytes(48), b"\x09\x00"), FormatError, "not a .npy file"),
    "dims without end": (npy(described(shape="(" + "9" * 4000 + ",)"), bytes(48)), FormatError, "header is not"),
    "1-D": (npy(described(shape="(12,)"), bytes(48)), ModelError, r"shape \[12\], expected \[positions, 4\]"),
    "other width": (npy(described(shape="(4, 3)"), bytes(48)), ModelError, r"shape \[4, 3\]"),
    "no rows": (npy(described(shape="(0, 4)")), ModelError, r"shape \[0, 4\]"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_npy(name: str, tmp_path: Path) -> None:
    data, kind, message = HOSTILE[name]
    (tmp_path / "f.npy").write_bytes(data)
    with pytest.raises(kind, match=message) as caught:
        load_features(str(tmp_path / "f.npy"), 4)
    assert "\n" not in str(caught.value)


def test_hostile_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    for data, kind, message in (
        (b"12345678", FormatError, "header length"),
        (safetensors_bytes({"a": ROWS, "b": ROWS}, "F32"), ModelError, "no matrix named features"),
        (safetensors_bytes({"a": ROWS[0]}, "F32"), ModelError, "no matrix named features"),
        (safetensors_bytes({"a": ROWS.astype(np.int32)}, "I32"), ModelError, "dtype I32 is not read here"),
        (safetensors_bytes({}, "F32"), ModelError, "tensors: none"),
    ):
        path.write_bytes(data)
        with pytest.raises(kind, match=message):
            load_features(str(path), 4)
