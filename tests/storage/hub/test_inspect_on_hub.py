"""`inspect` of files on the Hub: what it costs, what it shows, and what it says when it cannot."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import huggingface_hub.constants as hub_constants
import pytest
from support.builders import v2_config, write_draft, write_target
from support.hub_runs import Here
from support.processes import Run
from support.small_hub import TOKEN, SmallHub

from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.formats.gguf.emit import OutTensor, encode_header
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.storage.files import MemoryFile

NAME = "dflash-Tiny-BF16.gguf"
AT = f"hf://org/drafts/{NAME}"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A draft with a vocabulary of 2,048 tokens."""
    folder = tmp_path_factory.mktemp("draft")
    draft, target = write_draft(folder / "Tiny-DFlash2", v2_config()), write_target(folder / "Tiny")
    convert(draft, target, ConvertOptions(out=str(folder / NAME)))
    return (folder / NAME).read_bytes()


@pytest.fixture(scope="module")
def large(small: bytes) -> bytes:
    """The same with a vocabulary of 300,000 tokens: a header of 10 MB."""
    source = MemoryFile(small)
    header = scan_header(source)
    tokens = Array.of_strings([b"%025d" % number for number in range(300_000)])
    metadata = {**header.metadata, "tokenizer.ggml.tokens": MetaValue(ValueType.ARRAY, tokens)}
    infos = [OutTensor(t.name, t.type, t.shape) for t in header.tensors.values()]
    encoded = encode_header(list(metadata.items()), infos)
    return encoded.data + small[header.data_offset :]


def test_the_page_takes_two_requests(hub: SmallHub, run_here: Here, large: bytes) -> None:
    hub.repo("org/drafts", {NAME: large})
    result = run_here("inspect", AT)
    assert result.returncode == 0, result.stderr
    assert len(hub.asked()) == 2
    for text in ("DFlash 2 draft", "block_size 8: drafts up to 7", "file type", "BF16", "not read", "selector"):
        assert text in result.stdout


def test_a_key_that_stands_in_front_takes_two_requests(hub: SmallHub, run_here: Here, large: bytes) -> None:
    hub.repo("org/drafts", {NAME: large})
    assert run_here("inspect", AT, "--key", "dflash.block_size").stdout == "8\n"
    assert len(hub.asked()) == 2
    assert run_here("inspect", AT, "--key", "tokenizer.ggml.mask_token_id").stdout == "2030\n"


@pytest.mark.parametrize("option", ["--json", "--tensors", "--tokens"])
def test_the_whole_header_is_the_files_own(
    hub: SmallHub, run_here: Here, large: bytes, tmp_path: Path, option: str
) -> None:
    hub.repo("org/drafts", {NAME: large})
    (tmp_path / NAME).write_bytes(large)
    remote, local = run_here("inspect", AT, option), run_here("inspect", tmp_path / NAME, option)
    assert remote.stdout == local.stdout
    assert len(hub.asked()) == 4


def test_a_small_file_is_shown_whole(hub: SmallHub, run_here: Here, small: bytes, tmp_path: Path) -> None:
    """A header within the first read costs nothing more."""
    hub.repo("org/drafts", {NAME: small})
    (tmp_path / NAME).write_bytes(small)
    assert run_here("inspect", "org/drafts").stdout == run_here("inspect", tmp_path / NAME).stdout
    assert len(hub.asked()) == 3


def test_a_repository_of_several(hub: SmallHub, run_here: Here, small: bytes) -> None:
    hub.repo("org/drafts", {NAME: small, "other.gguf": small})
    result = run_here("inspect", "org/drafts")
    assert result.returncode == 2
    assert "2 GGUF files: dflash-Tiny-BF16.gguf, other.gguf" in result.stderr


def test_a_pasted_link(hub: SmallHub, run_here: Here, small: bytes) -> None:
    hub.repo("org/drafts", {NAME: small})
    result = run_here("inspect", f"https://huggingface.co/org/drafts/blob/main/{NAME}", "--key", "dflash.block_size")
    assert (result.returncode, result.stdout) == (0, "8\n")


def test_a_file_in_the_cache_is_not_asked_for(hub: SmallHub, run_here: Here, small: bytes) -> None:
    from dflash_gguf.storage.hub import Hub, Reference

    hub.repo("org/drafts", {NAME: small})
    session = Hub()
    session.fetch(session.listing(Reference("org/drafts")), [NAME])
    hub.forget()
    assert run_here("inspect", AT, "--tokens").returncode == 0
    assert [r.method for r in hub.asked()] == ["HEAD"]
    hub.forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
        assert run_here("inspect", AT).returncode == 0
        gone = run_here("inspect", "hf://org/drafts/other.gguf")
    assert not hub.asked()
    assert (gone.returncode, "offline mode is on" in gone.stderr) == (3, True)


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("hf://org/nowhere/a.gguf", "no such repository, or it is private: not logged in"),
        ("org/nowhere", "there is no local file or folder of that name; check its spelling"),
        ("hf://org/drafts/dflash-Tiny-BF61.gguf", f"no such file (nearest: {NAME})"),
        ("hf://org/drafts@v9/a.gguf", "no such revision: v9"),
        ("hf://org/drafts@v9", "no such revision: v9"),
        ("hf://org/gated/a.gguf", "gated (ask for access at https://huggingface.co/org/gated, then log in"),
    ],
)
def test_what_is_not_there(hub: SmallHub, run_here: Here, small: bytes, reference: str, says: str) -> None:
    hub.repo("org/drafts", {NAME: small})
    hub.repo("org/gated", {"a.gguf": small}, gated=True)
    result = run_here("inspect", reference)
    assert result.returncode == 3
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_logged_in(hub: SmallHub, run_here: Here, small: bytes, token: str) -> None:
    hub.repo("org/private", {"a.gguf": small}, private=True)
    hub.repo("org/gated", {"a.gguf": small}, gated=True)
    assert run_here("inspect", "hf://org/private/a.gguf").returncode == 0
    gated = run_here("inspect", "hf://org/gated/a.gguf")
    assert "gated (ask for access at https://huggingface.co/org/gated)" in gated.stderr
    assert "no such repository (check its spelling)" in run_here("inspect", "hf://org/nowhere/a.gguf").stderr
    assert token not in gated.stderr


def test_a_token_that_is_refused(hub: SmallHub, run_here: Here, small: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_oldTokenOldTokenOldToken")
    hub.repo("org/drafts", {NAME: small})
    result = run_here("inspect", AT)
    assert "refuses the token" in result.stderr
    assert "hf_old" not in result.stderr


def test_no_network(hub: SmallHub, run_here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def aim(address: str) -> None:
        monkeypatch.setattr(hub_constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(hub_constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        aim(f"http://127.0.0.1:{closed.getsockname()[1]}")
        result = run_here("inspect", AT)
    assert result.returncode == 3
    assert "no connection to 127.0.0.1" in result.stderr
    aim("http://user:secret@hub.invalid")

    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    named = run_here("inspect", AT)
    assert named.returncode == 3
    assert "the name of hub.invalid cannot be resolved" in named.stderr
    assert "secret" not in named.stderr


def test_no_token_and_no_signature_anywhere(hub: SmallHub, run_hub: Run, small: bytes, tmp_path: Path) -> None:
    """Not in a message, not with the client's debug log, not in a file."""
    hub.repo("org/drafts", {NAME: small}, private=True)
    hub.fault("cdn", "wrong_range", times=1)
    env = {"HF_TOKEN": TOKEN, "DFLASH_DEBUG": "1"}
    result = run_hub("inspect", AT, env=env)
    assert result.returncode != 0
    shown = result.stdout + result.stderr
    assert TOKEN not in shown
    assert "SignedLink" not in shown
    debug = run_hub("inspect", AT, env={"HF_TOKEN": TOKEN, "HF_DEBUG": "1"})
    assert TOKEN not in debug.stdout + debug.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_another_architecture(hub: SmallHub, run_here: Here) -> None:
    tokens = Array.of_strings([b"%040d" % number for number in range(20_000)])
    header = encode_header(
        [
            ("general.architecture", MetaValue(ValueType.STRING, "llama")),
            ("tokenizer.ggml.tokens", MetaValue(ValueType.ARRAY, tokens)),
        ],
        [],
    )
    hub.repo("org/drafts", {NAME: header.data})
    result = run_here("inspect", AT)
    assert "arch llama" in result.stdout
    assert len(hub.asked()) == 2


def test_json_is_one_document(hub: SmallHub, run_here: Here, small: bytes) -> None:
    hub.repo("org/drafts", {NAME: small})
    assert json.loads(run_here("inspect", AT, "--json").stdout)["draft"]["version"] == 2
