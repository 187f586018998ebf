"""Whatever the bytes are: findings, and nothing else comes out."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.faults import FAULTS, Case, Workshop
from support.hostile import EXTREMES, EXTREMES_64, Layout, check_bytes, delete, duplicate, insert, overwrite, tiny

from dflash_gguf.checks import CheckReport, FileReport, check
from dflash_gguf.checks.place import locate
from dflash_gguf.checks.render import FORMATS, renderer
from dflash_gguf.checks.target import Target, open_target
from dflash_gguf.storage.hub import Hub

QUICK = settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
THOROUGH = settings(max_examples=20_000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def good(shop: Workshop) -> tuple[bytes, Layout]:
    parts = tiny(shop)
    assert check_bytes(parts.encode()).findings == ()
    return parts.encode(), Layout.of(parts)


_RAW = st.one_of(
    st.binary(min_size=1, max_size=12),
    st.sampled_from(EXTREMES).map(lambda n: struct.pack("<I", n & 0xFFFF_FFFF)),
    st.sampled_from(EXTREMES_64).map(lambda n: struct.pack("<Q", n)),
)
_KINDS = st.sampled_from(["overwrite", "insert", "delete", "duplicate", "cut"])


def changes_of(layout: Layout) -> st.SearchStrategy[list[tuple[str, int, bytes]]]:
    """One to three changes, each in a region of its own choice: preamble, metadata, tensor infos, all."""
    regions = [(0, 24), (24, layout.infos), (layout.infos, layout.data), (0, layout.size)]
    place = st.one_of(*(st.integers(low, high - 1) for low, high in regions))
    return st.lists(st.tuples(_KINDS, place, _RAW), min_size=1, max_size=3)


def apply(data: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    for kind, place, raw in changes:
        at = min(place, len(data))
        if kind == "overwrite":
            data = overwrite(data, at, raw)
        elif kind == "insert":
            data = insert(data, at, raw)
        elif kind == "delete":
            data = delete(data, at, raw[0])
        elif kind == "duplicate":
            data = duplicate(data, at, raw[0])
        else:
            data = data[:at]
    return data


def sound(report: FileReport) -> None:
    """A report that every renderer can show."""
    assert report.error is None
    assert report.verdict in {"pass", "warn", "fail"}
    assert all("\n" not in finding.message for finding in report.findings)
    for name in FORMATS:
        assert renderer(name)(CheckReport((report,)))


def mutate(good: tuple[bytes, Layout], run: settings, target: Target | None = None) -> None:
    data, layout = good

    @run
    @given(changes_of(layout))
    def property_(changes: list[tuple[str, int, bytes]]) -> None:
        sound(check_bytes(apply(data, changes), target=target))

    property_()


def test_mutations_give_findings(good: tuple[bytes, Layout]) -> None:
    mutate(good, QUICK)


@pytest.mark.slow
def test_twenty_thousand_mutations_give_findings(good: tuple[bytes, Layout], shop: Workshop) -> None:
    mutate(good, THOROUGH, open_target(locate(str(shop.target), Hub())))


@QUICK
@given(st.binary(max_size=200))
def test_any_bytes_give_findings(raw: bytes) -> None:
    for data in (raw, b"GGUF" + raw, b"GGUF\x03\0\0\0" + raw):
        report = check_bytes(data)
        sound(report)
        assert report.verdict == "fail"


def test_every_cut_is_a_failure(good: tuple[bytes, Layout]) -> None:
    data, layout = good
    for end in [*range(0, layout.data, 19), *range(layout.data, len(data), 1997)]:
        report = check_bytes(data[:end])
        assert report.verdict == "fail"
        assert report.findings[0].rule.startswith("GF"), (end, report.findings)


def test_every_byte_of_the_preamble_and_infos_matters(good: tuple[bytes, Layout]) -> None:
    """A flipped bit in counts, offsets, dims or types never passes without a word."""
    data, layout = good
    for at in [*range(24), *range(layout.infos, layout.data - 32, 5)]:
        changed = overwrite(data, at, bytes([data[at] ^ 0x40]))
        assert check_bytes(changed, weights=False).findings, at


CORPUS = sorted((Path(__file__).parents[1] / "fuzz" / "corpus").iterdir())


def test_what_the_fuzzer_kept(shop: Workshop) -> None:
    assert CORPUS
    for path in CORPUS:
        sound(check_bytes(path.read_bytes()))


def container_faults() -> list[str]:
    return [name for name, fault in FAULTS.items() if fault.rule in {f"GF00{n}" for n in range(1, 7)}]


@pytest.mark.parametrize("name", container_faults())
def test_hostile_containers_are_refused_with_a_place(shop: Workshop, name: str) -> None:
    built = FAULTS[name].build(shop)
    report = (
        check([built.file]).files[0]
        if isinstance(built, Case)
        else check_bytes(built if isinstance(built, bytes) else built.encode())
    )
    assert report.verdict == "fail"
    first = report.findings[0]
    assert (first.rule, first.severity.value) == (FAULTS[name].rule, "error")
    assert first.where or first.rule == "GF001"


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def array(key: bytes, kind: int, count: int) -> bytes:
    return string(key) + struct.pack("<IIQ", 9, kind, count)


PREAMBLE = b"GGUF" + struct.pack("<I", 3)
DRAFT = string(b"general.architecture") + struct.pack("<I", 8) + string(b"dflash")
TOKENS_KEY = b"tokenizer.ggml.tokens"
SIZE = 12 << 20
LARGE = {
    "empty strings": PREAMBLE + struct.pack("<QQ", 0, 2) + DRAFT + array(TOKENS_KEY, 8, SIZE // 8) + bytes(SIZE),
    "long strings": PREAMBLE
    + struct.pack("<QQ", 0, 2)
    + DRAFT
    + array(TOKENS_KEY, 8, SIZE // 4096)
    + string(b"x" * 4088) * (SIZE // 4096),
    "floats": PREAMBLE + struct.pack("<QQ", 0, 2) + DRAFT + array(b"tokenizer.ggml.scores", 6, SIZE // 4) + bytes(SIZE),
    "layers": PREAMBLE + struct.pack("<QQ", 0, 2) + DRAFT + array(b"dflash.target_layers", 5, SIZE // 4) + bytes(SIZE),
    "keys": PREAMBLE
    + struct.pack("<QQ", 0, 20_000)
    + b"".join(string(b"k%05d" % n) + struct.pack("<IB", 7, 2) for n in range(20_000)),
    "tensors": PREAMBLE
    + struct.pack("<QQ", 20_000, 1)
    + DRAFT
    + b"".join(string(b"blk.%d.attn_q" % n) + struct.pack("<IQIQ", 1, 8, 0, n * 32) for n in range(20_000)),
    "a long name": PREAMBLE
    + struct.pack("<QQ", 0, 2)
    + DRAFT
    + string(b"general.name")
    + struct.pack("<I", 8)
    + string(b"\xc3\xa9" * (SIZE // 2)),
}


@pytest.mark.parametrize("name", LARGE)
def test_memory_stays_in_proportion_to_the_header(name: str) -> None:
    data = LARGE[name]
    tracemalloc.start()
    try:
        report = check_bytes(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.verdict == "fail"
    assert peak < len(data) + (100 << 20), f"{peak >> 20} MiB"
    assert len(report.findings) < 200
    assert max(len(finding.message) for finding in report.findings) < 1000


def test_a_large_block_count_is_not_counted_through(good: tuple[bytes, Layout], shop: Workshop) -> None:
    for key in ("block_count", "embedding_length", "attention.head_count", "conv_kernel_size", "selector_rank"):
        for number in (0xFFFF_FFFF, 1 << 31, 513):
            parts = tiny(shop)
            parts.set(f"dflash.{key}", parts.pairs[f"dflash.{key}"].type, number)
            assert check_bytes(parts.encode()).verdict == "fail"
