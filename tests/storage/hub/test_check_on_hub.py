"""`check` of repositories: which files it finds, what it costs, and that its verdict is a local file's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.builders import random_tensors, safetensors_bytes, target_config, v2_config, write_target
from support.hub_runs import Here
from support.small_hub import Repo, SmallHub

TYPES = ("BF16", "Q8_0", "Q4_K_M")
CARD = b"---\nlicense: apache-2.0\nbase_model: org/Tiny\n---\n# Drafts\n81 tensors\n"
Judge = Callable[..., dict[str, Any]]


@pytest.fixture
def drafts(hub: SmallHub, run_here: Here, tmp_path: Path) -> dict[str, bytes]:
    """A draft's repository, its target's, and the files that convert makes of them (none of them fetched since)."""
    config = v2_config()
    weights = safetensors_bytes(random_tensors(config))
    source = {"config.json": json.dumps(config).encode(), "model.safetensors": weights}
    source["README.md"] = b"---\nlicense: apache-2.0\nbase_model: org/Tiny\n---\n"
    hub.repo("org/Tiny-DFlash2", source)
    folder = write_target(tmp_path / "Tiny")
    hub.repo("org/Tiny", {path.name: path.read_bytes() for path in folder.iterdir()})
    types = [word for kind in TYPES for word in ("--type", kind.lower())]
    done = run_here("convert", "org/Tiny-DFlash2", "--target", "org/Tiny", *types)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "cache")
    hub.forget()
    return {path.name: path.read_bytes() for path in (tmp_path / "work").glob("*.gguf")}


@pytest.fixture
def published(hub: SmallHub, drafts: dict[str, bytes]) -> Repo:
    tensors = next(iter(drafts.values()))[8:16]
    card = CARD.replace(b"81", str(int.from_bytes(tensors, "little")).encode())
    return hub.repo("org/drafts", {**drafts, "README.md": card, "mmproj.gguf": other_gguf()})


@pytest.fixture
def judge(run_here: Here) -> Judge:
    """File name → its entry in the report."""

    def call(*arguments: object) -> dict[str, Any]:
        result = run_here("check", *arguments, "--json")
        assert result.stdout, result.stderr
        return {file["path"].rpartition("/")[2]: file for file in json.loads(result.stdout)["files"]}

    return call


def other_gguf() -> bytes:
    from dflash_gguf.formats.gguf.emit import encode_header
    from dflash_gguf.formats.gguf.types import ValueType
    from dflash_gguf.formats.gguf.values import MetaValue

    return encode_header([("general.architecture", MetaValue(ValueType.STRING, "clip"))], []).data


def rules(file: dict[str, Any]) -> set[str]:
    return {finding["rule"] for finding in file["findings"]}


def test_a_repository(hub: SmallHub, judge: Judge, published: Repo) -> None:
    files = judge("org/drafts")
    assert sorted(files) == [f"dflash-Tiny-{kind}.gguf" for kind in sorted(TYPES)]
    for file in files.values():
        assert file["verdict"] == "pass", file["findings"]
        assert not [line for line in file["not_checked"] if line.startswith("PR") or "NM602" in line]
    for name in ("Tiny-DFlash2", "model.safetensors"):
        assert not hub.asked(match=name)
    heads = hub.asked("hub", "HEAD", "org/drafts")
    assert len({r.path for r in heads}) == len(heads)
    assert len(hub.asked(match="/api/models/org/Tiny")) == 1
    assert len(hub.asked("hub", "GET", "tokenizer.json")) == 1


def test_only_headers_are_read(hub: SmallHub, judge: Judge, published: Repo) -> None:
    big = published.commits[published.refs["main"]]["dflash-Tiny-BF16.gguf"]
    assert judge("hf://org/drafts/dflash-Tiny-BF16.gguf")["dflash-Tiny-BF16.gguf"]["verdict"] == "pass"
    assert len(hub.asked()) == 2
    assert hub.sent() == min(len(big), 256 << 10)


def test_the_verdict_is_that_of_the_file(
    hub: SmallHub, judge: Judge, published: Repo, drafts: dict[str, bytes], tmp_path: Path
) -> None:
    name = "dflash-Tiny-BF16.gguf"
    spoilt = drafts[name].replace(b"dflash.block_size", b"dflash.block_sizf")
    published.commit({name: spoilt})
    (tmp_path / name).write_bytes(spoilt)
    remote, local = judge(f"hf://org/drafts/{name}")[name], judge(tmp_path / name)[name]
    assert remote["verdict"] == local["verdict"] == "fail"
    assert remote["findings"] == local["findings"]


def test_a_pull_request(hub: SmallHub, judge: Judge, published: Repo, drafts: dict[str, bytes]) -> None:
    name = "dflash-Tiny-Q8_0.gguf"
    published.commit({name: drafts[name][:-40], "README.md": CARD}, "refs/pr/7")
    assert judge("org/drafts")[name]["verdict"] == "pass"
    pull = judge("org/drafts@refs/pr/7")
    assert list(pull) == [name]
    assert "GF006" in rules(pull[name])
    assert pull[name]["path"] == f"hf://org/drafts@refs/pr/7/{name}"


def test_a_card_that_contradicts(judge: Judge, published: Repo) -> None:
    published.commit({"README.md": CARD.replace(b"apache-2.0", b"mit")})
    assert all("NM602" in rules(file) for file in judge("org/drafts").values())


def test_another_target(hub: SmallHub, judge: Judge, published: Repo, tmp_path: Path) -> None:
    config = target_config(hidden_size=128)
    other = write_target(tmp_path / "Other", config)
    hub.repo("org/Other", {path.name: path.read_bytes() for path in other.iterdir()})
    for file in judge("org/drafts", "--target", "org/Other").values():
        assert "PR402" in rules(file)


def test_a_target_that_cannot_be_read(hub: SmallHub, judge: Judge, published: Repo) -> None:
    hub.repos["org/Tiny"].gated = True
    for file in judge("org/drafts").values():
        assert file["verdict"] == "pass"
        assert [line for line in file["not_checked"] if "gated" in line and line.startswith("PR401")]


def test_a_file_cannot_name_a_local_target(judge: Judge, hub: SmallHub, drafts: dict[str, bytes]) -> None:
    name = "dflash-Tiny-BF16.gguf"
    for url in (b"https://huggingface.co/../../../etc", b"https://huggingface.co//etc/passwd000000"):
        real = b"https://huggingface.co/org/Tiny"
        spoilt = drafts[name].replace(real, (url + b"/" * len(real))[: len(real)])
        hub.repo("org/drafts", {name: spoilt})
        assert [line for line in judge("org/drafts")[name]["not_checked"] if "the target cannot be read" in line]


def test_stale(hub: SmallHub, judge: Judge, published: Repo) -> None:
    source = hub.repos["org/Tiny-DFlash2"]
    for file in judge("org/drafts", "--source", "org/Tiny-DFlash2").values():
        assert "SR503" not in rules(file)
        assert [line for line in file["not_checked"] if "SR502" in line]
    assert not hub.asked(match="model.safetensors")
    source.commit({"README.md": b"---\nlicense: apache-2.0\n---\nnew"})
    for file in judge("org/drafts", "--source", "org/Tiny-DFlash2").values():
        assert "SR503" in rules(file)
        assert file["verdict"] == "warn"


def test_weights_are_read_when_asked_for(hub: SmallHub, judge: Judge, published: Repo) -> None:
    name = "dflash-Tiny-BF16.gguf"
    file = judge(f"hf://org/drafts/{name}", "--source", "org/Tiny-DFlash2", "--data")[name]
    assert file["verdict"] == "pass", file["findings"]
    assert not [line for line in file["not_checked"] if "SR502" in line or "TN306" in line]
    assert hub.asked("cdn")


@pytest.mark.parametrize(
    ("reference", "code", "says"),
    [
        ("hf://org/Tiny", 2, "holds no draft as GGUF"),
        ("hf://org/nowhere", 3, "no such repository"),
        ("hf://org/drafts/x.gguf", 3, "no such file"),
        ("hf://org/drafts@v9", 3, "no such revision"),
        ("hf://org", 2, "names no repository"),
    ],
)  # fmt: skip
def test_errors(run_here: Here, published: Repo, reference: str, code: int, says: str) -> None:
    result = run_here("check", reference)
    assert result.returncode == code
    assert says in result.stderr


def test_diff(run_here: Here, published: Repo, drafts: dict[str, bytes], tmp_path: Path) -> None:
    name = "dflash-Tiny-Q8_0.gguf"
    (tmp_path / name).write_bytes(drafts[name])
    assert "equal" in run_here("diff", f"hf://org/drafts/{name}", tmp_path / name).stdout
