"""`publish`: refused, shown, sent in one commit, and compared with what the Hub then holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from support.builders import v2_config, write_draft, write_target
from support.hub_runs import Here
from support.processes import Run
from support.small_hub import TOKEN, SmallHub, git_oid, sha256

from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.presenting.card import MARK

NAMES = ("dflash-Tiny-BF16.gguf", "dflash-Tiny-Q8_0.gguf")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two files of one draft, from a source with a license."""
    folder = tmp_path_factory.mktemp("made")
    commit = "0123456789abcdef0123456789abcdef01234567"
    draft = write_draft(folder / f"models--org--Tiny-DFlash2/snapshots/{commit}", v2_config())
    (draft / "README.md").write_text("---\nlicense: apache-2.0\nlicense_link: https://example.com/l\n---\n")
    target = write_target(folder / f"models--org--Tiny/snapshots/{commit}")
    out = folder / "out"
    out.mkdir()
    convert(draft, target, ConvertOptions(types=("bf16", "q8_0"), out=str(out)))
    return out


@pytest.fixture
def files(made: Path) -> list[Path]:
    return [made / name for name in NAMES]


def held(hub: SmallHub, name: str = "org/drafts") -> dict[str, bytes]:
    repo = hub.repos[name]
    return repo.commits[repo.refs["main"]]


def test_a_new_repository(hub: SmallHub, run_here: Here, files: list[Path], token: str) -> None:
    result = run_here("publish", *files, "--repo", "org/drafts", "--private")
    assert result.returncode == 0, result.stderr
    repo = hub.repos["org/drafts"]
    assert repo.private
    assert len(repo.commits) == 2  # the Hub's own first one, and ours
    for path in files:
        assert held(hub)[path.name] == path.read_bytes()
        assert f"{path.name}: the Hub holds" in result.stdout
        assert sha256(path.read_bytes()) in result.stdout
    assert len(hub.asked("hub", "POST", "/commit/")) == 1
    assert f"https://huggingface.co/org/drafts/commit/{repo.refs['main']}" in result.stdout
    assert not any("authorization" in r.headers for r in hub.asked("cdn"))
    assert token not in result.stdout + result.stderr


def test_the_card(hub: SmallHub, run_here: Here, files: list[Path], token: str) -> None:
    run_here("publish", *files, "--repo", "org/drafts")
    card = held(hub)["README.md"].decode()
    front = yaml.safe_load(card.split("---")[1])
    assert front["license"] == "apache-2.0"
    assert front["license_link"] == "https://example.com/l"
    assert (front["base_model"], front["base_model_relation"]) == ("org/Tiny-DFlash2", "quantized")
    for path in files:
        assert re.search(rf"`{path.name}` \| \w+ \| {path.stat().st_size:,} \| \d+", card)
    assert "block_size: 8" in card
    assert "--spec-draft-n-max 7" in card
    assert "[org/Tiny-DFlash2](https://huggingface.co/org/Tiny-DFlash2) at `0123456789ab`" in card
    hub.repo("org/Tiny", {})
    report = json.loads(run_here("check", "org/drafts", "--json").stdout)
    assert [file["verdict"] for file in report["files"]] == ["pass", "pass"]


def test_dry_run(hub: SmallHub, run_here: Here, files: list[Path]) -> None:
    result = run_here("publish", *files, "--repo", "org/drafts", "--dry-run", "--create-pr")
    assert result.returncode == 3
    assert "no such repository" in result.stderr
    hub.repo("org/drafts", {files[0].name: files[0].read_bytes(), files[1].name: b"old"})
    hub.forget()
    result = run_here("publish", *files, "--repo", "org/drafts", "--dry-run", "--create-pr")
    assert result.returncode == 0, result.stderr
    assert {r.method for r in hub.asked()} == {"GET"}
    assert f"{NAMES[0]}: " in result.stdout
    assert re.search(rf"{NAMES[0]}: .*unchanged, not sent", result.stdout)
    assert re.search(rf"{NAMES[1]}: .*replaces the present one", result.stdout)
    assert re.search(r"README.md: .*new", result.stdout)
    assert "a pull request in org/drafts" in result.stdout
    assert "    license: apache-2.0" in result.stdout
    assert held(hub)[NAMES[1]] == b"old"


def test_dry_run_of_a_new_repository_when_logged_in(
    hub: SmallHub, run_here: Here, files: list[Path], token: str
) -> None:
    result = run_here("publish", *files, "--repo", "org/drafts", "--dry-run", "--private")
    assert "which is made private first" in result.stdout
    assert not hub.repos


def test_nothing_changed(hub: SmallHub, run_here: Here, files: list[Path], token: str) -> None:
    run_here("publish", *files, "--repo", "org/drafts")
    hub.forget()
    again = run_here("publish", *files, "--repo", "org/drafts", "--json")
    document = json.loads(again.stdout)
    assert document["commit"] is None
    assert all(file["verified"] and not file["changed"] for file in document["files"])
    assert not hub.asked(method="POST")


def test_a_pull_request(hub: SmallHub, run_here: Here, files: list[Path], token: str) -> None:
    hub.repo("org/drafts", {"a.txt": b"x"})
    result = run_here("publish", *files, "--repo", "org/drafts", "--create-pr", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["pull_request"].endswith("/org/drafts/discussions/1")
    assert document["commit"] == hub.repos["org/drafts"].refs["refs/pr/1"]
    assert list(held(hub)) == ["a.txt"]


@pytest.mark.parametrize("fault", ["dflash.block_size", "general.architecture"])
def test_a_faulty_file_is_not_sent(
    hub: SmallHub, run_here: Here, files: list[Path], tmp_path: Path, token: str, fault: str
) -> None:
    bad = tmp_path / NAMES[0]
    bad.write_bytes(files[0].read_bytes().replace(fault.encode(), fault.upper().encode(), 1))
    result = run_here("publish", bad, files[1], "--repo", "org/drafts")
    assert result.returncode == 1
    assert "not published: KV" in result.stderr
    assert not hub.asked(method="POST")
    assert not hub.repos


def test_a_weight_that_is_nan_is_noticed(
    hub: SmallHub, run_here: Here, files: list[Path], tmp_path: Path, token: str
) -> None:
    bad = tmp_path / NAMES[0]
    bad.write_bytes(files[0].read_bytes()[:-4] + b"\xff\xff\xff\xff")
    result = run_here("publish", bad, "--repo", "org/drafts")
    assert (result.returncode, "TN306" in result.stderr) == (1, True), result.stderr


def test_what_the_hub_holds_is_compared(hub: SmallHub, run_here: Here, files: list[Path], token: str) -> None:
    hub.corrupt_uploads = True
    result = run_here("publish", *files, "--repo", "org/drafts")
    assert result.returncode == 3
    assert "the Hub holds" in result.stderr
    assert NAMES[0] in result.stderr


def test_a_card_of_ones_own(hub: SmallHub, run_here: Here, files: list[Path], tmp_path: Path, token: str) -> None:
    card = tmp_path / "mine.md"
    card.write_text("---\nlicense: mit\nbase_model: org/Tiny\n---\nMine\n")
    result = run_here("publish", *files, "--repo", "org/drafts", "--card", card)
    assert result.returncode == 0
    assert held(hub)["README.md"] == card.read_bytes()
    assert "NM602 README.md: license 'mit'" in result.stderr
    assert run_here("publish", *files, "--repo", "org/drafts", "--card", tmp_path / "none.md").returncode == 2


def test_somebodys_card_is_not_replaced(hub: SmallHub, run_here: Here, files: list[Path], token: str) -> None:
    hub.repo("org/drafts", {"README.md": b"---\nlicense: apache-2.0\n---\nWritten by hand\n"})
    result = run_here("publish", *files, "--repo", "org/drafts")
    assert result.returncode == 0
    assert held(hub)["README.md"].endswith(b"by hand\n")
    assert "README.md stays" in result.stderr


def test_a_later_file_keeps_the_earlier_in_the_card(
    hub: SmallHub, run_here: Here, files: list[Path], token: str
) -> None:
    run_here("publish", files[0], "--repo", "org/drafts")
    result = run_here("publish", files[1], "--repo", "org/drafts")
    assert result.returncode == 0, result.stderr
    card = held(hub)["README.md"].decode()
    assert MARK in card
    assert all(f"`{name}`" in card for name in NAMES)
    assert set(NAMES) < set(held(hub))


def test_not_logged_in(hub: SmallHub, run_here: Here, files: list[Path]) -> None:
    result = run_here("publish", *files, "--repo", "org/drafts")
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr == ("error: hf://org/drafts: not logged in (log in with `hf auth login`, or set HF_TOKEN)\n")
    assert not hub.asked()


def test_private_into_a_public_one(hub: SmallHub, run_here: Here, files: list[Path], token: str) -> None:
    hub.repo("org/drafts", {})
    result = run_here("publish", *files, "--repo", "org/drafts", "--private")
    assert result.returncode == 3
    assert "is public" in result.stderr
    assert not hub.asked(method="POST")


@pytest.mark.parametrize(
    ("fault", "match", "says"),
    [
        ("status:403", "/preupload/", "may not do this"),
        ("status:403", "/repos/create", "may not do this"),
        ("status:412", "/commit/", "somebody else committed meanwhile"),
        ("status:400", "/validate-yaml", "front matter"),
        ("status:500", "/commit/", "HTTP 500"),
        ("status:429;Retry-After=900", "/preupload/", "asks to wait 900 s"),
    ],
)
def test_the_hub_refuses(
    hub: SmallHub, run_here: Here, files: list[Path], token: str, fault: str, match: str, says: str
) -> None:
    if "create" not in match:
        hub.repo("org/drafts", {})
    hub.fault("hub", fault, match=match)
    result = run_here("publish", *files, "--repo", "org/drafts")
    assert result.returncode == 3
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert token not in result.stderr
    assert len(hub.asked(match="/commit/")) <= 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing.gguf", "--repo", "org/drafts"], "no such file"),
        (["hf://org/a/b.gguf", "--repo", "org/drafts"], "download it first"),
        (["FILE", "--repo", "drafts"], "org/name"),
        (["FILE", "--repo", "hf://org/drafts@main"], "org/name"),
        (["FILE", "--repo", "hf://org/drafts/x"], "org/name"),
        (["FILE", "FILE", "--repo", "org/drafts"], "two files of this name"),
    ],
)
def test_usage(hub: SmallHub, run_here: Here, files: list[Path], token: str, arguments: list[str], says: str) -> None:
    result = run_here("publish", *(files[0] if word == "FILE" else word for word in arguments))
    assert result.returncode == 2
    assert says in result.stderr


def test_in_a_process_of_its_own(hub: SmallHub, run_hub: Run, files: list[Path], tmp_path: Path) -> None:
    """Nothing but the answer and our own lines is shown, and the token is written nowhere."""
    result = run_hub("publish", *files, "--repo", "org/drafts", env={"HF_TOKEN": TOKEN})
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert TOKEN not in result.stdout
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and TOKEN.encode() in p.read_bytes()]
    assert git_oid(held(hub)["README.md"])
