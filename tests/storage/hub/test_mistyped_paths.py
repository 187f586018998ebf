"""`drafts/typo` may be a repository or a path with an error in it: whoever typed it is told of both."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants as hub_constants
import pytest
from support.hub_runs import Here
from support.small_hub import SmallHub

TYPO = "drafts/typo"
LOCAL = "there is no local file or folder of that name"
COMMANDS = [
    ["convert", TYPO, "--target", "TARGET"],
    ["convert", "DRAFT", "--target", TYPO],
    ["inspect", TYPO],
    ["check", TYPO],
    ["check", "FILE", "--target", TYPO],
    ["check", "FILE", "--source", TYPO],
    ["diff", TYPO, "FILE"],
    ["draft", TYPO, "--features", "random:4", "--anchor", "1"],
    ["draft", "FILE", "--target", TYPO, "--features", "random:4", "--anchor", "1"],
    ["generate", TYPO, "--target", "TARGET", "--prompt", "x"],
    ["generate", "FILE", "--target", TYPO, "--prompt", "x"],
    ["compare", TYPO, "FILE"],
    ["compare", "FILE", "FILE", "--target", TYPO],
    ["mxfp8", TYPO, "out"],
    ["mxfp8", "--verify", TYPO],
    ["card", TYPO],
    ["patch", TYPO, "out.gguf", "--fix", "all"],
    ["patch", "FILE", "out.gguf", "--fix", "PR403", "--target", TYPO],
    ["patch", "FILE", "out.gguf", "--fix", "SR501", "--source", TYPO],
    ["launch", TYPO, "--target", "t.gguf"],
]


@pytest.fixture
def words(draft: Path, target: Path) -> dict[str, str]:
    from dflash_gguf.conversion import ConvertOptions, convert

    file = draft.parent / "dflash-Tiny-BF16.gguf"
    convert(draft, target, ConvertOptions(out=str(file)))
    return {"DRAFT": str(draft), "TARGET": str(target), "FILE": str(file)}


@pytest.mark.parametrize("offline", [False, True], ids=["asked", "offline"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c[:4]))
def test_the_local_path_is_spoken_of(
    hub: SmallHub,
    run_here: Here,
    words: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    offline: bool,
) -> None:
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", offline)
    result = run_here(*(words.get(word, word) for word in command))
    assert result.returncode in (2, 3)
    assert LOCAL in result.stderr
    assert TYPO in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr


@pytest.mark.parametrize("command", COMMANDS[:-1], ids=lambda c: " ".join(c[:4]))
def test_what_no_account_is_called_is_a_path(run_here: Here, words: dict[str, str], command: list[str]) -> None:
    result = run_here(*(words.get(word, word).replace(TYPO, "models/typo") for word in command))
    assert result.returncode == 2
    assert "models/typo: no such f" in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr


def test_what_cannot_be_a_path_is_not(hub: SmallHub, run_here: Here) -> None:
    assert LOCAL not in run_here("inspect", f"hf://{TYPO}").stderr


def test_publish_and_bench_take_local_files_only(run_here: Here, words: dict[str, str]) -> None:
    told = run_here("publish", TYPO, "--repo", "org/drafts", "--dry-run")
    assert (told.returncode, "no such file" in told.stderr) == (2, True)
    told = run_here("quantize", TYPO, "out.gguf", "--type", "q8_0")
    assert (told.returncode, "no such file" in told.stderr) == (2, True)


def test_launch_asks_nobody_and_says_what_it_takes_the_target_for(run_here: Here, words: dict[str, str]) -> None:
    told = run_here("launch", words["FILE"], "--target", TYPO)
    assert f"# {LOCAL}; {TYPO} is taken for a repository on the Hub" in told.stdout
    told = run_here("launch", words["FILE"], "--target", f"{TYPO}:Q4_K_M")
    assert f"# {LOCAL}; {TYPO} is taken for a repository on the Hub" in told.stdout
