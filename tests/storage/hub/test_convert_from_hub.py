"""`convert` from repositories: what is fetched and what is not, what is recorded, what offline mode needs."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.builders import bf16, random_tensors, safetensors_bytes, target_config, v2_config, write_target
from support.hub_runs import Here
from support.processes import Run
from support.small_hub import Repo, SmallHub

from dflash_gguf.errors import HubError
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.model.remote import vocabulary_tensors
from dflash_gguf.storage.files import LocalFile
from dflash_gguf.storage.hub import Hub, Reference

INDEX = "model.safetensors.index.json"
OUT = "dflash-Target-BF16.gguf"


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def pair(hub: SmallHub, tmp_path: Path) -> tuple[Repo, Repo]:
    """A draft in two shards, and a target that also holds 40 shards of weights."""
    config = v2_config()
    tensors = random_tensors(config)
    names = list(tensors)
    parts = (names[::2], names[1::2])
    shards = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    weight_map = {name: shard for shard, held in zip(shards, parts, strict=True) for name in held}
    draft = {
        "config.json": json.dumps(config).encode(),
        "README.md": b"---\nlicense: apache-2.0\nbase_model: org/Target\n---\n# A draft\n",
        INDEX: json.dumps({"metadata": {}, "weight_map": weight_map}).encode(),
        "training/optimizer.bin": bytes(1000),
    }
    for shard, held in zip(shards, parts, strict=True):
        draft[shard] = safetensors_bytes({name: tensors[name] for name in held})
    target = files_of(write_target(tmp_path / "t"))
    target |= {f"model-{number:05}-of-00040.safetensors": bytes(5000) for number in range(1, 41)}
    target |= {INDEX: b"{}", "generation_config.json": b'{"eos_token_id": [2002]}', "merges.txt": b"x", "a/b.png": b"x"}
    return hub.repo("org/Draft", draft), hub.repo("org/Target", target)


def test_convert(hub: SmallHub, run_hub: Run, pair: tuple[Repo, Repo], tmp_path: Path) -> None:
    result = run_hub("convert", "org/Draft", "--target", "hf://org/Target")
    assert result.returncode == 0, result.stderr
    with LocalFile(tmp_path / "work" / OUT) as file:
        metadata = {key: value.value for key, value in scan_header(file).metadata.items()}
    draft, target = pair
    assert metadata["general.name"] == "Draft"
    assert metadata["general.source.version"] == draft.refs["main"]
    assert metadata["general.source.repo_url"] == "https://huggingface.co/org/Draft"
    assert metadata["general.base_model.0.version"] == target.refs["main"]
    assert metadata["general.base_model.0.repo_url"] == "https://huggingface.co/org/Target"
    assert metadata["general.license"] == "apache-2.0"
    assert not hub.asked(match="-of-00040")
    for name in ("optimizer", "merges.txt", "b.png", f"Target/resolve/{target.refs['main']}/{INDEX}"):
        assert not hub.asked(match=name)
    assert len(hub.asked(match="/api/models")) == 2
    first, second = (number for number, r in enumerate(hub.asked()) if "/api/models" in r.path)
    assert (first, second) == (0, 1)


def test_the_same_bytes_as_from_folders(run_hub: Run, pair: tuple[Repo, Repo], tmp_path: Path) -> None:
    """The cache's folders convert to what the references do: a second run, by path, changes nothing."""
    assert run_hub("convert", "org/Draft", "--target", "org/Target").returncode == 0
    snapshots = [next((tmp_path / f"hf/hub/models--org--{name}/snapshots").iterdir()) for name in ("Draft", "Target")]
    again = run_hub("convert", snapshots[0], "--target", snapshots[1], "--out", "again.gguf")
    assert again.returncode == 0, again.stderr
    work = tmp_path / "work"
    assert (work / OUT).read_bytes() == (work / "again.gguf").read_bytes()


def test_a_revision_and_a_pull_request(hub: SmallHub, run_here: Here, pair: tuple[Repo, Repo], tmp_path: Path) -> None:
    draft, _ = pair
    old = draft.refs["main"]
    pull = draft.commit({**draft.commits[old], "README.md": b"---\nlicense: mit\n---\n"}, "refs/pr/3")
    draft.refs["v1"] = old
    for revision, commit, license_id in (("refs/pr/3", pull, "mit"), ("v1", old, "apache-2.0")):
        result = run_here("convert", f"org/Draft@{revision}", "--target", "org/Target", "--force")
        assert result.returncode == 0, result.stderr
        with LocalFile(tmp_path / "work" / OUT) as file:
            metadata = scan_header(file).metadata
        assert metadata["general.source.version"].value == commit
        assert metadata["general.license"].value == license_id


def test_offline(hub: SmallHub, run_hub: Run, pair: tuple[Repo, Repo], tmp_path: Path) -> None:
    offline = {"HF_HUB_OFFLINE": "1"}
    none = run_hub("convert", "org/Draft", "--target", "org/Target", env=offline)
    hint = "there is no local file or folder of that name; unset HF_HUB_OFFLINE"
    told = f"error: hf://org/Draft: is not in the cache, and offline mode is on ({hint})\n"
    assert (none.returncode, none.stderr) == (3, told)
    assert run_hub("convert", "org/Draft", "--target", "org/Target").returncode == 0
    first = (tmp_path / "work" / OUT).read_bytes()
    hub.forget()
    again = run_hub("convert", "org/Draft", "--target", "org/Target", "--force", env=offline)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "work" / OUT).read_bytes() == first
    assert not hub.asked()
    shard = next((tmp_path / "hf/hub/models--org--Draft/snapshots").glob("*/model-00002*"))
    shard.unlink()
    missing = run_hub("convert", "org/Draft", "--target", "org/Target", "--force", env=offline)
    assert missing.returncode == 3
    assert "model-00002-of-00002.safetensors: is not in the cache" in missing.stderr
    next((tmp_path / "hf/hub/models--org--Target/snapshots").glob("*/config.json")).unlink()
    missing = run_hub("convert", "org/Draft", "--target", "org/Target", "--force", env=offline)
    assert "hf://org/Target" in missing.stderr
    assert "config.json is not in the cache" in missing.stderr


def test_an_unreachable_target_costs_no_download(hub: SmallHub, run_here: Here, pair: tuple[Repo, Repo]) -> None:
    result = run_here("convert", "org/Draft", "--target", "org/Nowhere")
    assert result.returncode == 3
    assert "no such repository" in result.stderr
    assert not hub.asked(match="resolve")


class StoppedError(BaseException):
    """A process that ends in the middle of a download."""


def stop(_seconds: float) -> None:
    raise StoppedError


@pytest.fixture(scope="module")
def shard() -> bytes:
    return random.Random(3).randbytes(25 << 20)


def fetch(hub: SmallHub, data: bytes) -> bytes:
    if "org/Large" not in hub.repos:
        hub.repo("org/Large", {"model.safetensors": data})
    session = Hub()
    folder = session.fetch(session.listing(Reference("org/Large")), ["model.safetensors"])
    return (folder / "model.safetensors").read_bytes()


def ranges(hub: SmallHub) -> list[str | None]:
    return [r.headers.get("range") for r in hub.asked("cdn")]


def test_a_connection_that_breaks_is_resumed(hub: SmallHub, shard: bytes) -> None:
    """The client writes in pieces of 10 MB: what it has is not asked for again."""
    hub.fault("cdn", "short", times=1)
    assert fetch(hub, shard) == shard
    assert ranges(hub) == [None, f"bytes={10 << 20}-"]


def test_a_process_that_was_stopped_is_gone_on_from(hub: SmallHub, shard: bytes, tmp_path: Path) -> None:
    hub.fault("cdn", "short", times=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.sleep", stop)
        with pytest.raises(StoppedError):
            fetch(hub, shard)
    hub.forget()
    assert fetch(hub, shard) == shard
    assert ranges(hub) == [f"bytes={10 << 20}-"]
    assert not list(tmp_path.rglob("*.incomplete"))
    hub.forget()
    assert fetch(hub, shard) == shard
    assert not hub.asked("cdn")


def test_a_server_that_cannot_go_on_starts_anew(hub: SmallHub, shard: bytes) -> None:
    hub.fault("cdn", "short", times=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.sleep", stop)
        with pytest.raises(StoppedError):
            fetch(hub, shard)
    hub.forget()
    hub.fault("cdn", "ignore_range", times=1)
    assert fetch(hub, shard) == shard


def test_content_that_is_not_what_its_hash_says(hub: SmallHub, shard: bytes, tmp_path: Path) -> None:
    hub.fault("cdn", "corrupt", times=1)
    with pytest.raises(HubError, match="sha256"):
        fetch(hub, shard)
    assert not [path for path in tmp_path.rglob("blobs/*") if path.stat().st_size > 10 << 20]
    assert fetch(hub, shard) == shard


def test_the_token_stays_on_the_hub_while_downloading(hub: SmallHub, shard: bytes, token: str) -> None:
    hub.repo("org/Large", {"model.safetensors": shard, "config.json": b"{}"}, private=True)
    session = Hub()
    session.fetch(session.listing(Reference("org/Large")), ["model.safetensors", "config.json"])
    assert all(r.headers["authorization"] == f"Bearer {token}" for r in hub.asked("hub"))
    assert hub.asked("cdn")
    assert not any(token in str(r) for r in hub.asked("cdn"))


def test_two_processes_fetch_a_large_file_once(hub: SmallHub, shard: bytes) -> None:
    from concurrent.futures import ThreadPoolExecutor

    hub.repo("org/Large", {"model.safetensors": shard})
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: fetch(hub, shard) == shard, range(2))) == [True, True]
    assert ranges(hub) == [None]


def test_what_is_cached_is_not_fetched_again(hub: SmallHub, run_here: Here, pair: tuple[Repo, Repo]) -> None:
    assert run_here("convert", "org/Draft", "--target", "org/Target").returncode == 0
    hub.forget()
    assert run_here("convert", "org/Draft", "--target", "org/Target", "--force").returncode == 0
    assert {r.path.split("?")[0] for r in hub.asked()} == {"/api/models/org/Draft", "/api/models/org/Target"}


def test_two_at_once(run_hub: Run, pair: tuple[Repo, Repo], tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def convert(number: int) -> int:
        return run_hub("convert", "org/Draft", "--target", "org/Target", "--out", f"{number}.gguf").returncode

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(convert, range(2))) == [0, 0]
    first, second = ((tmp_path / "work" / f"{number}.gguf").read_bytes() for number in range(2))
    assert first == second


@pytest.mark.parametrize("name", ["../../evil.safetensors", "/etc/evil.safetensors", "a/b.safetensors", "..\\x"])
def test_an_index_cannot_leave_the_folder(
    hub: SmallHub, run_here: Here, pair: tuple[Repo, Repo], tmp_path: Path, name: str
) -> None:
    draft, _ = pair
    draft.commit({INDEX: json.dumps({"weight_map": {"fc.weight": name}}).encode(), name: b"evil"})
    result = run_here("convert", "org/Draft", "--target", "org/Target")
    assert result.returncode == 1
    assert "not a plain file name" in result.stderr
    assert not list(tmp_path.rglob("*evil*"))
    assert not hub.asked(match="evil")


def test_paths_that_leave_the_repository_do_not_exist(
    hub: SmallHub, run_here: Here, pair: tuple[Repo, Repo], tmp_path: Path
) -> None:
    evil = ["../config.json", "/etc/x.json", "additional_chat_templates/../../../x.jinja", "C:\\x", "a\x1b[31m.json"]
    pair[1].commit(dict.fromkeys(evil, b"{}"))
    assert run_here("convert", "org/Draft", "--target", "org/Target").returncode == 0
    assert not hub.asked(match="..")
    assert not hub.asked(match="%1B")
    assert not list(tmp_path.rglob("x.jinja"))


def test_ten_thousand_files(hub: SmallHub, run_here: Here, pair: tuple[Repo, Repo]) -> None:
    pair[1].commit({f"data/{number:05}.txt": b"x" for number in range(10_000)})
    assert run_here("convert", "org/Draft", "--target", "org/Target").returncode == 0
    assert len(hub.asked(match="/api/models")) == 2


def test_a_folder_of_a_repository(hub: SmallHub, run_here: Here, pair: tuple[Repo, Repo], tmp_path: Path) -> None:
    draft, _ = pair
    files = draft.commits[draft.refs["main"]]
    repo = hub.repo("org/Many", {f"drafts/small/{name}": data for name, data in files.items()})
    result = run_here("convert", "hf://org/Many/drafts/small", "--target", "org/Target")
    assert result.returncode == 0, result.stderr
    with LocalFile(tmp_path / "work" / OUT) as file:
        metadata = scan_header(file).metadata
    assert metadata["general.source.version"].value == repo.refs["main"]
    top = run_here("convert", "hf://org/Many", "--target", "org/Target")
    assert top.returncode == 1
    assert "folders that do: drafts/small" in top.stderr


def test_a_pickled_mask_embedding_is_noticed(run_here: Here, pair: tuple[Repo, Repo]) -> None:
    pair[0].commit({"mask_embedding.pt": b"pickle"})
    result = run_here("convert", "org/Draft", "--target", "org/Target")
    assert result.returncode == 1
    assert "mask_embedding.pt" in result.stderr


def test_a_config_too_large_to_be_one(hub: SmallHub, run_here: Here, pair: tuple[Repo, Repo]) -> None:
    pair[1].commit({"config.json": b" " * (17 << 20)})
    result = run_here("convert", "org/Draft", "--target", "org/Target")
    assert result.returncode == 3
    assert "expected at most" in result.stderr
    assert not hub.asked("hub", "GET", "/resolve/")


def test_what_is_local_is_meant(run_here: Here, pair: tuple[Repo, Repo], tmp_path: Path) -> None:
    """A local folder of the same name is what is meant."""
    local = tmp_path / "work" / "org" / "Draft"
    local.mkdir(parents=True)
    result = run_here("convert", "org/Draft", "--target", "org/Target")
    assert result.returncode == 1
    assert "error: org/Draft: holds no safetensors" in result.stderr
    shutil.rmtree(local)
    assert run_here("convert", "org/Draft", "--target", "org/Target").returncode == 0


def test_an_mrope_target(run_here: Here, pair: tuple[Repo, Repo], hub: SmallHub, tmp_path: Path) -> None:
    """The target's own config decides, as it does from a folder."""
    config = target_config(rope_parameters={"rope_theta": 1e6, "mrope_section": [8, 4, 4], "rope_type": "default"})
    pair[1].commit({"config.json": json.dumps(config).encode()})
    assert run_here("convert", "org/Draft", "--target", "org/Target").returncode == 0
    with LocalFile(tmp_path / "work" / OUT) as file:
        assert "dflash.rope.dimension_sections" in scan_header(file).metadata


def test_embedding_and_head_are_read_in_place(hub: SmallHub, tmp_path: Path) -> None:
    """Of a target in shards, the rows that are asked for and two headers."""
    rng = np.random.default_rng(1)
    tensors = {
        "model.embed_tokens.weight": bf16(rng.standard_normal((2048, 64))),
        "model.norm.weight": bf16(rng.standard_normal(64)),
        "lm_head.weight": bf16(rng.standard_normal((20_000, 64))),
    }
    files = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    weight_map = dict(zip(tensors, files, strict=True))
    shards = {file: safetensors_bytes({name: tensors[name]}) for name, file in weight_map.items()}
    hub.repo("org/Big", {INDEX: json.dumps({"weight_map": weight_map}).encode(), **shards})
    found = vocabulary_tensors("org/Big", Hub())
    assert set(found) == {"model.embed_tokens.weight", "lm_head.weight"}
    head = found["lm_head.weight"]
    row = head.source.read(head.offset + 19_999 * 128, 128)
    assert row == tensors["lm_head.weight"][-1].tobytes()
    assert not hub.asked(match=files[1])
    assert hub.sent() < len(shards[files[0]]) + 300_000


def test_draft_with_a_target_on_the_hub(hub: SmallHub, run_here: Here, pair: tuple[Repo, Repo], tmp_path: Path) -> None:
    """The block is the one that the same target gives from a folder; of its weights only the shared ones are read."""
    rng = np.random.default_rng(2)
    shared = {"model.embed_tokens.weight": bf16(rng.standard_normal((2048, 64)))}
    layer = {"model.layers.0.mlp.up_proj.weight": bf16(rng.standard_normal((4000, 64)))}
    files = {"a.safetensors": safetensors_bytes(shared), "b.safetensors": safetensors_bytes(layer)}
    weight_map = {**dict.fromkeys(shared, "a.safetensors"), **dict.fromkeys(layer, "b.safetensors")}
    files[INDEX] = json.dumps({"weight_map": weight_map}).encode()
    files["config.json"] = json.dumps(target_config()).encode()
    hub.repo("org/Shared", files)
    folder = tmp_path / "Shared"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    assert run_here("convert", "org/Draft", "--target", "org/Target").returncode == 0
    made = (tmp_path / "work" / OUT).read_bytes()
    hub.repo("org/drafts", {OUT: made})
    options = ("--features", "random:5:1", "--anchor", "7", "--json")
    remote = run_here("draft", f"hf://org/drafts/{OUT}", "--target", "org/Shared", *options)
    assert remote.returncode == 0, remote.stderr
    assert remote.stdout == run_here("draft", OUT, "--target", folder, *options).stdout
    assert not hub.asked(match="b.safetensors")
