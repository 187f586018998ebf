"""Reading a file on the Hub in place: requests and bytes counted, every broken answer refused or asked for again."""

from __future__ import annotations

import logging

import huggingface_hub.constants as hub_constants
import pytest
from support.small_hub import TOKEN, SmallHub

from dflash_gguf.errors import FormatError, HubError
from dflash_gguf.formats.gguf.emit import OutTensor, encode_header
from dflash_gguf.formats.gguf.scan import Header, scan_header, scan_start
from dflash_gguf.formats.gguf.types import GGMLType, ValueType
from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.storage.hub import Hub, Reference, transport
from dflash_gguf.storage.hub.remote_file import FIRST_READ

REF = Reference("org/drafts", None, "dflash-T-BF16.gguf")
MB = 1 << 20


def gguf(header_size: int, data: int = 64) -> bytes:
    """A GGUF whose vocabulary makes the header about `header_size` bytes long."""
    tokens = Array.of_strings([b"%024d" % number for number in range(header_size // 32)])
    metadata = [
        ("general.architecture", MetaValue(ValueType.STRING, "dflash")),
        ("dflash.block_size", MetaValue(ValueType.UINT32, 8)),
        ("tokenizer.ggml.tokens", MetaValue(ValueType.ARRAY, tokens)),
        ("tokenizer.ggml.eos_token_id", MetaValue(ValueType.UINT32, 2)),
    ]
    header = encode_header(metadata, [OutTensor("output_norm.weight", GGMLType.F32, (data,))])
    return header.data + b"\x2a" * (header.file_size - len(header.data))


def scan(ref: Reference = REF) -> Header:
    return scan_header(Hub().open(ref))


@pytest.mark.parametrize(("size", "requests"), [(1000, 2), (MB, 3), (10 * MB, 4), (14 * MB, 5)])
def test_a_header_takes_few_requests(hub: SmallHub, size: int, requests: int) -> None:
    hub.repo("org/drafts", {REF.path: gguf(size, 8 * MB)})
    header = scan()
    assert list(header.tensors) == ["output_norm.weight"]
    tokens = header.metadata["tokenizer.ggml.tokens"].value
    assert isinstance(tokens, Array)
    assert tokens.count == size // 32
    assert len(hub.asked()) == requests
    assert hub.sent() <= max(FIRST_READ, 3.1 * size)
    assert {r.method for r in hub.asked("hub")} == {"HEAD"}


def test_the_start_takes_two_requests(hub: SmallHub) -> None:
    hub.repo("org/drafts", {REF.path: gguf(10 * MB, 8 * MB)})
    start = scan_start(Hub().open(REF))
    assert list(start.metadata) == ["general.architecture", "dflash.block_size"]
    assert (start.n_keys, start.n_tensors) == (4, 1)
    assert len(hub.asked()) == 2
    assert hub.sent() == FIRST_READ


def test_the_commit_is_kept(hub: SmallHub) -> None:
    repo = hub.repo("org/drafts", {REF.path: gguf(1000)})
    old = repo.refs["main"]
    repo.commit({REF.path: gguf(5000)}, "refs/pr/7")
    assert Hub().open(REF).ref.revision == old  # type: ignore[union-attr]
    assert Hub().open(Reference("org/drafts", "refs/pr/7", REF.path)).size > Hub().open(REF).size


def test_the_token_stays_on_the_hub(hub: SmallHub, token: str) -> None:
    hub.repo("org/drafts", {REF.path: gguf(MB)}, private=True)
    scan()
    assert all(r.headers["authorization"] == f"Bearer {token}" for r in hub.asked("hub"))
    assert len(hub.asked("cdn")) == 2
    assert not any(token in str(r) for r in hub.asked("cdn"))


def test_the_token_follows_no_redirect_off_the_hub(hub: SmallHub, token: str) -> None:
    """A small file comes from the Hub itself, until it answers the range with a redirect elsewhere."""
    hub.repo("org/drafts", {"a.txt": b"0123456789"}, private=True)
    file = Hub().open(Reference("org/drafts", None, "a.txt"))
    hub.fault("hub", f"status:302;Location={hub.cdn_url}/elsewhere", match="a.txt")
    with pytest.raises(HubError):
        file.read(0, 4)
    assert hub.asked("cdn")
    assert not any("authorization" in r.headers for r in hub.asked("cdn"))


@pytest.mark.parametrize("kind", ["short", "short_honest", "status:500", "status:503", "status:408", "status:429"])
def test_a_fault_that_passes_is_overcome(hub: SmallHub, kind: str) -> None:
    data = gguf(MB)
    hub.repo("org/drafts", {REF.path: data})
    hub.fault("cdn", kind, times=1)
    file = Hub().open(REF)
    assert file.read(0, 1000) == data[:1000]
    assert file.read(FIRST_READ, 1000) == data[FIRST_READ : FIRST_READ + 1000]
    assert len(hub.asked("cdn")) == 3


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("short", "broke"),
        ("short_honest", "broke"),
        ("status:500", "HTTP 500"),
        ("status:502", "HTTP 502"),
        ("status:429", "throttles"),
        ("etag", "changed"),
        ("grown", "changed"),
        ("wrong_range", "another range"),
        ("gzip", "compressed"),
    ],
)  # fmt: skip
def test_a_fault_that_stays_is_an_error(hub: SmallHub, kind: str, says: str) -> None:
    hub.repo("org/drafts", {REF.path: gguf(MB)})
    hub.fault("cdn", kind, after=1)
    with pytest.raises(HubError, match=says) as caught:
        scan()
    assert "Signature" not in str(caught.value)
    assert caught.value.exit_code == 3
    assert len(hub.asked("cdn")) <= 1 + transport.ATTEMPTS


def test_a_stalled_server(hub: SmallHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    hub.repo("org/drafts", {REF.path: gguf(MB)})
    hub.fault("cdn", "stall", times=1)
    assert scan().tensors
    hub.fault("cdn", "stall")
    with pytest.raises(HubError, match="stopped answering"):
        scan()


def test_a_server_that_ignores_ranges(hub: SmallHub) -> None:
    """The header is read from the front of the whole file, and the connection is closed."""
    data = gguf(MB, 20 * MB)
    hub.repo("org/drafts", {REF.path: data})
    hub.fault("cdn", "ignore_range")
    assert scan().tensors
    assert hub.sent() < len(data) // 4
    file = Hub().open(REF)
    with pytest.raises(HubError, match="ignores ranges"):
        file.read(70 * MB, 10)


def test_a_link_that_expires_is_renewed(hub: SmallHub) -> None:
    data = gguf(MB)
    hub.repo("org/drafts", {REF.path: data})
    file = Hub().open(REF)
    file.read(0, 10)
    hub.fault("cdn", "status:403", times=1)
    assert file.read(FIRST_READ, 10) == data[FIRST_READ : FIRST_READ + 10]
    assert len(hub.asked("hub")) == 2


def test_throttled(hub: SmallHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    hub.repo("org/drafts", {REF.path: gguf(1000)})
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    hub.fault("hub", "status:429;Retry-After=7", times=1)
    with caplog.at_level(logging.WARNING, "dflash_gguf.hub"):
        scan()
    assert waits == [7]
    assert "asks to wait 7 s" in caplog.text
    hub.fault("hub", 'status:429;RateLimit="api";r=0;t=9', times=1)
    hub.fault("cdn", "status:503;Retry-After=3600")
    waits.clear()
    with pytest.raises(HubError, match="asks to wait 3,600 s"):
        scan()
    assert not [wait for wait in waits if wait > 60]


def test_throttled_over_and_over(hub: SmallHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repo("org/drafts", {REF.path: gguf(1000)})
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    hub.fault("hub", "status:429;Retry-After=25")
    with pytest.raises(HubError, match="throttles"):
        scan()
    assert waits == [25, 25]


def test_a_file_truncated_at_any_byte(hub: SmallHub) -> None:
    data = gguf(600)
    repo = hub.repo("org/drafts", {})
    for length in [*range(40), *range(40, len(data), 37), len(data) - 1]:
        repo.commit({REF.path: data[:length]})
        try:
            rules = {defect.rule for defect in scan().errors}
        except FormatError as error:
            rules = {error.rule}
        assert rules & {"GF001", "GF003", "GF006"}


def test_siblings_of_one_content_are_read_once(hub: SmallHub) -> None:
    hub.repo("org/drafts", {"a.gguf": gguf(MB), "b.gguf": gguf(MB)})
    session = Hub()
    for name in ("a.gguf", "b.gguf"):
        scan_header(session.open(Reference("org/drafts", None, name)))
    assert len(hub.asked("cdn")) == 2
    assert TOKEN not in str(hub.asked())
