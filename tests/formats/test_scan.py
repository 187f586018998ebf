"""The scanner: what is written is read back, and nothing in a header is believed."""

from __future__ import annotations

import struct

import pytest

from dflash_gguf.errors import FormatError
from dflash_gguf.formats.gguf.emit import OutTensor, encode_header
from dflash_gguf.formats.gguf.scan import Header, scan_header
from dflash_gguf.formats.gguf.types import GGMLType, ValueType
from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.storage.files import MemoryFile

PAIRS = [
    ("general.architecture", MetaValue(ValueType.STRING, "dflash")),
    ("a.bool", MetaValue(ValueType.BOOL, value=True)),
    ("a.float", MetaValue(ValueType.FLOAT32, 0.5)),
    ("a.layers", MetaValue(ValueType.ARRAY, Array.of(ValueType.INT32, [1, -2, 3]))),
    ("a.pattern", MetaValue(ValueType.ARRAY, Array.of(ValueType.BOOL, [True, False]))),
    ("a.words", MetaValue(ValueType.ARRAY, Array.of_strings(["é".encode(), b"", b"x" * 300]))),
]
TENSORS = [OutTensor("w", GGMLType.Q8_0, (64, 3)), OutTensor("n", GGMLType.F32, (5,))]


def file_bytes(pairs: list[tuple[str, MetaValue]] = PAIRS, tensors: list[OutTensor] = TENSORS) -> bytes:
    header = encode_header(pairs, tensors)
    return header.data + b"\1" * (header.file_size - len(header.data))


def scan(data: bytes) -> Header:
    return scan_header(MemoryFile(data, "f.gguf"))


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def test_what_is_written_is_read_back() -> None:
    header = scan(file_bytes())
    assert list(header.metadata) == [key for key, _ in PAIRS]
    assert [v.type for v in header.metadata.values()] == [v.type for _, v in PAIRS]
    words, layers = header.metadata["a.words"].value, header.metadata["a.layers"].value
    assert isinstance(words, Array)
    assert isinstance(layers, Array)
    assert words.items() == ["é", "", "x" * 300]
    assert layers.items() == [1, -2, 3]
    assert header.tensors["w"].shape == (64, 3)
    assert header.tensors["w"].size == 6 * 34
    assert header.tensors["n"].offset == header.data_offset + 224  # 204 bytes padded to 32
    assert header.defects == ()


def test_the_same_input_gives_the_same_bytes() -> None:
    assert file_bytes() == file_bytes()


def test_strings_longer_than_one_read_are_walked() -> None:
    words = [b"w" * (n % 700) for n in range(3000)]  # about 1 MB: several reads, strings across their borders
    data = file_bytes([("t", MetaValue(ValueType.ARRAY, Array.of_strings(words)))])
    value = scan(data).metadata["t"].value
    assert isinstance(value, Array)
    assert list(value.strings()) == words


def test_a_header_cut_anywhere_is_refused_with_a_rule() -> None:
    data, end = file_bytes(), len(encode_header(PAIRS, TENSORS).data)
    assert {rule_of(data[:cut]) for cut in range(4)} == {"GF001"}
    assert {rule_of(data[:cut]) for cut in range(4, end)} == {"GF003", "GF006"}


def rule_of(data: bytes) -> str:
    """The rule of the first error, fatal or not."""
    try:
        return scan(data).errors[0].rule
    except FormatError as error:
        return error.rule


PREAMBLE = b"GGUF" + struct.pack("<I", 3)
FATAL = {
    "empty": (b"", "GF001", "it is empty"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", "GF001", "Git LFS pointer"),
    "html": (b"  <!DOCTYPE html><html>", "GF001", "HTML page"),
    "zip": (b"PK\x03\x04" + b"\0" * 40, "GF001", "zip"),
    "safetensors": (struct.pack("<Q", 2) + b"{}" + b"\0" * 9, "GF001", "safetensors"),
    "truncated magic": (b"GGU", "GF001", "truncated"),
    "zeros": (b"\0" * 64, "GF001", "zero bytes"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GF002", "version 1"),
    "version 0": (b"GGUF" + struct.pack("<IQQ", 0, 0, 0), "GF002", "version 0"),
    "version 4": (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "GF002", "version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "GF002", "big-endian"),
    "2^63 tensors": (PREAMBLE + struct.pack("<QQ", 1 << 63, 0), "GF003", "cannot be right"),
    "2^63 keys": (PREAMBLE + struct.pack("<QQ", 0, 1 << 63), "GF003", "cannot be right"),
    "key length": (PREAMBLE + struct.pack("<QQQ", 0, 1, 1 << 62) + b"\0" * 20, "GF004", "a key of"),
    "empty key": (PREAMBLE + struct.pack("<QQQ", 0, 1, 0) + b"\0" * 20, "GF004", "a key of 0"),
    "key not ASCII": (PREAMBLE + struct.pack("<QQ", 0, 1) + string("é".encode()) + b"\0" * 8, "GF004", "not ASCII"),
    "value type": (PREAMBLE + struct.pack("<QQ", 0, 1) + string(b"k") + struct.pack("<IQ", 13, 0), "GF004", "type 13"),
    "nested array": (
        PREAMBLE + struct.pack("<QQ", 0, 1) + string(b"k") + struct.pack("<IIQ", 9, 9, 1) + b"\0" * 12,
        "GF004",
        "arrays of arrays",
    ),
    "array count": (
        PREAMBLE + struct.pack("<QQ", 0, 1) + string(b"k") + struct.pack("<IIQ", 9, 4, 1 << 61),
        "GF003",
        "items cannot be right",
    ),
    "string array count": (
        PREAMBLE + struct.pack("<QQ", 0, 1) + string(b"k") + struct.pack("<IIQ", 9, 8, 1 << 60),
        "GF003",
        "items cannot be right",
    ),
    "string in array": (
        PREAMBLE + struct.pack("<QQ", 0, 1) + string(b"k") + struct.pack("<IIQQQ", 9, 8, 2, (1 << 64) - 1, 0),
        "GF003",
        "string 1 of k",
    ),
    "string value": (PREAMBLE + struct.pack("<QQ", 0, 1) + string(b"k") + struct.pack("<IQ", 8, 99), "GF003", "remain"),
    "too many dims": (
        PREAMBLE + struct.pack("<QQ", 1, 0) + string(b"t") + struct.pack("<I", 5) + b"\0" * 60,
        "GF005",
        "5",
    ),
}


@pytest.mark.parametrize("name", FATAL)
def test_unreadable_headers_name_their_rule(name: str) -> None:
    data, rule, complaint = FATAL[name]
    with pytest.raises(FormatError) as caught:
        scan(data)
    assert caught.value.rule == rule
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def tensor_file(*infos: tuple[bytes, tuple[int, ...], int, int], data: int = 64, alignment: int | None = None) -> bytes:
    pairs = b"" if alignment is None else string(b"general.alignment") + struct.pack("<II", 4, alignment)
    head = PREAMBLE + struct.pack("<QQ", len(infos), alignment is not None) + pairs
    for name, shape, kind, offset in infos:
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    head += b"\0" * (-len(head) % 32)
    return head + b"\0" * data


READ_PAST = {
    "good": (tensor_file((b"a", (8,), 0, 0), (b"b", (8,), 0, 32)), None),
    "twice": (tensor_file((b"a", (8,), 0, 0), (b"a", (8,), 0, 32)), "GF005"),
    "long name": (tensor_file((b"a" * 64, (8,), 0, 0)), "GF005"),
    "empty name": (tensor_file((b"", (8,), 0, 0)), "GF005"),
    "unknown type": (tensor_file((b"a", (8,), 99, 0)), "GF005"),
    "removed type": (tensor_file((b"a", (8,), 4, 0)), "GF005"),
    "row and block": (tensor_file((b"a", (33,), 8, 0)), "GF005"),
    "zero dim": (tensor_file((b"a", (8, 0), 0, 0)), "GF005"),
    "negative dim": (tensor_file((b"a", (8, (1 << 64) - 1), 0, 0)), "GF005"),
    "product overflows": (tensor_file((b"a", (1 << 40, 1 << 40), 0, 0)), "GF003"),
    "unaligned": (tensor_file((b"a", (8,), 0, 4)), "GF006"),
    "overlap": (tensor_file((b"a", (16,), 0, 0), (b"b", (8,), 0, 32)), "GF006"),
    "gap": (tensor_file((b"a", (8,), 0, 32)), "GF006"),
    "truncated": (tensor_file((b"a", (32,), 0, 0)), "GF006"),
    "alignment 0": (tensor_file((b"a", (8,), 0, 0), alignment=0), "GF006"),
    "alignment 48": (tensor_file((b"a", (8,), 0, 0), alignment=48), "GF006"),
    "huge offset": (tensor_file((b"a", (8,), 0, 1 << 63)), "GF003"),
}


@pytest.mark.parametrize("name", READ_PAST)
def test_defects_are_kept_and_the_rest_is_read(name: str) -> None:
    data, rule = READ_PAST[name]
    header = scan(data)
    assert [defect.rule for defect in header.errors] == ([rule] if rule else [])
    if rule:
        with pytest.raises(FormatError) as caught:
            header.require_sound("f.gguf")
        assert caught.value.rule == rule


def test_how_many_bytes_a_truncated_file_lacks() -> None:
    header = scan(tensor_file((b"a", (8,), 0, 0), (b"b", (32,), 0, 32)))
    assert "96 bytes are missing" in header.errors[0].message
    assert header.errors[0].where == "b"


def test_trailing_bytes_and_odd_values_are_warnings() -> None:
    assert [d.rule for d in scan(file_bytes() + b"x").defects] == ["GF007"]
    data = file_bytes().replace(
        string(b"a.bool") + struct.pack("<IB", 7, 1), string(b"a.bool") + struct.pack("<IB", 7, 2)
    )
    assert [d.where for d in scan(data).defects] == ["a.bool"]
    nan = file_bytes([("x", MetaValue(ValueType.FLOAT32, float("nan")))])
    assert [d.rule for d in scan(nan).defects] == ["GF007"]


def test_a_header_of_more_than_48_mib_is_refused_before_it_is_read() -> None:
    class Endless:
        name, size, served = "endless.gguf", 1 << 40, 0

        def read(self, offset: int, length: int) -> bytes:
            start = PREAMBLE + struct.pack("<QQ", 0, 1) + string(b"k") + struct.pack("<IIQ", 9, 8, 1 << 36)
            self.served += length
            return (start + b"\0" * length)[offset : offset + length] if offset == 0 else b"\0" * length

        def read_into(self, offset: int, buffer: memoryview) -> None:
            buffer[:] = self.read(offset, len(buffer))

    source = Endless()
    with pytest.raises(FormatError, match="larger than 48 MiB") as caught:
        scan_header(source)
    assert caught.value.rule == "GF003"
    assert source.served < 100 << 20


def test_padding_of_an_endless_alignment_is_not_read() -> None:
    class Sparse(MemoryFile):
        size, served = 1 << 40, 0

        def read(self, offset: int, length: int) -> bytes:
            self.served += length
            return self._data[offset : offset + length].ljust(length, b"\0")

    source = Sparse(tensor_file(alignment=1 << 31, data=0))
    source.size = 1 << 40
    header = scan_header(source)
    assert header.data_offset == 1 << 31
    assert source.served < 4 << 20
