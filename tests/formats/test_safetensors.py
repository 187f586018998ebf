"""Attacks on the safetensors header: literal bytes and the exact complaint."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from support.builders import safetensors_bytes

from dflash_gguf.errors import FormatError
from dflash_gguf.formats.safetensors import read_header
from dflash_gguf.storage.files import MemoryFile

GOOD = {"a": np.arange(6, dtype=np.uint16).reshape(2, 3), "b": np.zeros(4, np.uint16)}


def raw(header: str, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header.encode())) + header.encode() + data


def entry(dtype: object = "BF16", shape: object = (2,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
@pytest.mark.parametrize("pad", [0, 1, 7])
def test_legal_oddities_are_read(metadata: object, pad: int) -> None:
    source = MemoryFile(safetensors_bytes(GOOD, metadata=metadata, pad=pad))
    tensors = read_header(source)
    assert [t.shape for t in tensors.values()] == [(2, 3), (4,)]
    assert source.read(tensors["a"].offset, tensors["a"].size) == GOOD["a"].tobytes()


ATTACKS = {
    "shorter than a length": (b"\0" * 7, "7 bytes are no safetensors file"),
    "header longer than the file": (struct.pack("<Q", 99) + b"{}", "header length 99"),
    "header of 2^63 bytes": (struct.pack("<Q", 1 << 63), "header length"),
    "not JSON": (raw("{nope"), "is not JSON"),
    "not UTF-8": (struct.pack("<Q", 2) + b"\xff\xfe", "is not UTF-8"),
    "a list": (raw("[]"), "holds a list"),
    "deeply nested": (raw("[" * 200_000), "not JSON that can be read"),
    "a huge integer": (raw('{"a":' + "9" * 10_000 + "}"), "not JSON that can be read"),
    "a key twice": (raw('{"a":1,"a":2}'), "'a' stands twice"),
    "entry no object": (raw('{"a":1}'), "no object"),
    "unknown dtype": (raw(json.dumps({"a": entry("F7")}), b"\0" * 4), "unknown dtype 'F7'"),
    "dtype a list": (raw(json.dumps({"a": entry(["BF16"])}), b"\0" * 4), "unknown dtype ['BF16']"),
    "dtype an object": (raw(json.dumps({"a": entry({})}), b"\0" * 4), "unknown dtype {}"),
    "a million dims": (raw(json.dumps({"a": entry(shape=[1 << 60] * 1_000_000)}), b"\0" * 4), "1,000,000 dims"),
    "negative dim": (raw(json.dumps({"a": entry(shape=[-2])}), b"\0" * 4), "naturals"),
    "float dim": (raw(json.dumps({"a": entry(shape=[2.0])}), b"\0" * 4), "naturals"),
    "bool dim": (raw(json.dumps({"a": entry(shape=[True])}), b"\0" * 4), "naturals"),
    "one offset": (raw(json.dumps({"a": entry(offsets=[0])}), b"\0" * 4), "naturals"),
    "begin > end": (raw(json.dumps({"a": entry(offsets=[4, 0])}), b"\0" * 4), "do not fit"),
    "past the end": (raw(json.dumps({"a": entry(offsets=[0, 4])}), b"\0" * 3), "do not fit"),
    "size ≠ shape · dtype": (raw(json.dumps({"a": entry(shape=[3])}), b"\0" * 4), "4 bytes, but [3] of BF16 takes 6"),
    "a hole": (raw(json.dumps({"a": entry(offsets=[2, 6])}), b"\0" * 6), "leaves a hole"),
    "an overlap": (raw(json.dumps({"a": entry(), "b": entry(offsets=[2, 6])}), b"\0" * 6), "overlaps"),
    "uncovered tail": (raw(json.dumps({"a": entry()}), b"\0" * 5), "1 byte follows"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_refused(name: str) -> None:
    data, complaint = ATTACKS[name]
    with pytest.raises(FormatError) as caught:
        read_header(MemoryFile(data, "evil.safetensors"))
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("evil.safetensors")
    assert "\n" not in str(caught.value)


def test_a_shape_whose_product_overflows_is_refused() -> None:
    header = json.dumps({"a": entry(shape=[1 << 40, 1 << 40], offsets=[0, 4])})
    with pytest.raises(FormatError, match="4 bytes, but"):
        read_header(MemoryFile(raw(header, b"\0" * 4)))
