"""Two runs at once into one place: at every step of the one, the other makes all of its own. No threads, no luck."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.killed import Watch

from dflash_gguf.errors import UsageError
from dflash_gguf.storage.atomic import AtomicFile
from dflash_gguf.storage.folder import AtomicFolder

Make = Callable[[Path, str], None]


def make_file(path: Path, text: str, *, force: bool = False) -> None:
    with AtomicFile(path, len(text), force=force) as file:
        file.write(0, text.encode())
        file.commit()


def make_folder(path: Path, text: str, *, force: bool = False) -> None:
    with AtomicFolder(path, force=force) as folder:
        make_file(folder.partial / "held", text)
        folder.commit()


def replace_file(path: Path, text: str) -> None:
    make_file(path, text, force=True)


def replace_folder(path: Path, text: str) -> None:
    make_folder(path, text, force=True)


def told(make: Make, path: Path, text: str) -> bool:
    """Whether it was made; else it was told why not."""
    try:
        make(path, text)
    except UsageError as error:
        if "exists already (--force replaces it)" in str(error):
            return False
        raise
    return True


def at_every_step(make: Make, other: Make, place: Path) -> list[tuple[bool, bool, str]]:
    """For each step of `make`: did it get its name, did `other` at that step, and what is there in the end."""
    outcomes = list[tuple[bool, bool, str]]()
    while True:
        out = place / str(len(outcomes)) / "out"
        out.parent.mkdir(parents=True)
        others = list[bool]()
        with pytest.MonkeyPatch.context() as patch:
            watch = Watch(len(outcomes), lambda: others.append(told(other, out, "other")))  # noqa: B023
            watch.install(patch.setattr)
            made = told(make, out, "first")
        if not others:
            return outcomes
        assert [path.name for path in out.parent.iterdir()] == ["out"], watch.steps
        outcomes.append((made, others[0], (out / "held" if out.is_dir() else out).read_text()))


@pytest.mark.parametrize("make", [make_file, make_folder])
def test_one_of_two_wins_and_the_other_says_so(make: Make, tmp_path: Path) -> None:
    outcomes = at_every_step(make, make, tmp_path)
    assert len(outcomes) > 6
    assert set(outcomes) == {(True, False, "first"), (False, True, "other")}


@pytest.mark.parametrize(("make", "other"), [(make_file, replace_file), (make_folder, replace_folder)])
def test_what_another_run_replaces_is_not_replaced_again_without_leave(make: Make, other: Make, tmp_path: Path) -> None:
    assert set(at_every_step(make, other, tmp_path)) == {(True, True, "other"), (False, True, "other")}


@pytest.mark.parametrize(("make", "other"), [(replace_file, make_file), (replace_folder, make_folder)])
def test_with_force_the_last_wins(make: Make, other: Make, tmp_path: Path) -> None:
    assert set(at_every_step(make, other, tmp_path)) == {(True, True, "first"), (True, False, "first")}


def test_an_empty_folder_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    make_folder(tmp_path / "out", "first")
    assert not told(make_folder, tmp_path / "out", "second")
    assert (tmp_path / "out/held").read_text() == "first"


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.link", refuse)
    make_file(tmp_path / "x", "first")
    assert not told(make_file, tmp_path / "x", "second")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "first")]
