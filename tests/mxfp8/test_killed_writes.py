"""Killed, out of room, not allowed: no OUT_DIR, the old one, or a whole new one; and --force destroys nothing else."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.builders import ROOT, v2_config, write_draft
from support.killed import Arguments, end_at, steps_of
from support.processes import Run, obey_permissions

from dflash_gguf.errors import InputError, OutputError, UsageError
from dflash_gguf.mxfp8 import Mxfp8Listener, verify_mxfp8, write_mxfp8
from dflash_gguf.storage import folder as folder_module
from dflash_gguf.storage.folder import AtomicFolder


@pytest.mark.parametrize(
    ("kind", "force", "many"),
    [
        pytest.param(signal.SIGTERM, False, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, True, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, True, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, False, False, marks=pytest.mark.slow),
    ],
)
def test_killed(kind: signal.Signals, force: bool, many: bool, draft: Path, tmp_path: Path) -> None:
    (draft / "README.md").write_text("a file that is copied")
    if force:
        write_mxfp8(draft, tmp_path / "old", exclude=("fc",))

    def command(place: Path) -> Arguments:
        """What writes a checkpoint, over an old one if `force`."""
        place.mkdir()
        if force:
            shutil.copytree(tmp_path / "old", place / "out")
        return ("mxfp8", draft, place / "out", *(("--force",) if force else ()))

    steps = steps_of(command(tmp_path / "place"), tmp_path / "place/out", tmp_path)
    whole = contents(tmp_path / "place/out")
    assert verify_mxfp8(tmp_path / "place/out", draft).passed
    for step in range(0, len(steps.steps), 9) if many else steps.some(seed=9):
        place = tmp_path / str(step)
        end_at(step, kind, command(place))
        held, old = contents(place / "out"), contents(tmp_path / "old")
        if step > steps.named:
            assert held == whole, step
        else:  # a file system that cannot exchange two names has neither for a moment
            assert held == old or (held is None and step > steps.touched), step
        if kind is not signal.SIGKILL:
            assert [path.name for path in place.iterdir()] == (["out"] if force or step > steps.named else []), step
        write_mxfp8(draft, place / "out", force=True)  # removes what SIGKILL left
        assert [path.name for path in place.iterdir()] == ["out"], step
        assert contents(place / "out") == whole, step


def contents(folder: Path) -> dict[str, bytes] | None:
    """Files of a folder; None without one."""
    if not folder.exists():
        return None
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("room", [0, 200, 40_000, 200_000])
def test_disk_full(room: int, run: Run, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d", v2_config())
    (draft / "README.md").write_text("x" * 300_000)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    done = run("mxfp8", draft, "out", preexec_fn=limit)
    assert done.returncode == 3, done.stderr
    assert "no room for" in done.stderr
    assert list((tmp_path / "work").iterdir()) == []


def test_no_room_is_told_before_the_first_byte(draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(OutputError, match=r"no room: .* bytes are needed, 1,000 are free"):
        write_mxfp8(draft, tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_read_only_place(draft: Path, run: Run, tmp_path: Path) -> None:
    place = tmp_path / "locked"
    place.mkdir()
    place.chmod(0o555)
    done = run("mxfp8", draft, place / "out", preexec_fn=obey_permissions)
    assert done.returncode == 3, done.stderr
    assert "cannot be written: Permission denied" in done.stderr
    assert list(place.iterdir()) == []


def test_a_source_that_changes_meanwhile(draft: Path, tmp_path: Path) -> None:
    readme = draft / "README.md"
    readme.write_text("before")

    def change(_: int) -> None:
        readme.write_text("after")

    with pytest.raises(InputError, match="changed while it was read"):
        write_mxfp8(draft, tmp_path / "out", listener=Mxfp8Listener(on_bytes=change))
    assert not (tmp_path / "out").exists()


def test_outputs_that_cannot_be(draft: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/precious").write_text("x")
    (tmp_path / "nested/.git").mkdir(parents=True)
    for out, complaint in (
        (tmp_path / "file", "is no folder"),
        (tmp_path / "full", "holds precious, which was not written by mxfp8"),
        (tmp_path / "nested", "holds .git, which was not written by mxfp8"),
        (tmp_path / "no/where", "the folder it would stand in does not exist"),
        (draft, "is the draft's folder, holds it or is in it"),
        (draft / "out", "is the draft's folder, holds it or is in it"),
        (tmp_path, "is the draft's folder, holds it or is in it"),
    ):
        with pytest.raises(UsageError, match=complaint):
            write_mxfp8(draft, out, force=True)
    assert (tmp_path / "full/precious").exists()
    with pytest.raises(UsageError, match="exists already"):
        write_mxfp8(draft, tmp_path / "full")


def test_force_replaces_a_checkpoint_but_not_what_was_added_to_it(draft: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write_mxfp8(draft, out)  # an empty folder may stand there
    write_mxfp8(draft, out, force=True, exclude=("fc",))
    assert verify_mxfp8(out, draft).passed
    for name in (".gitattributes", "notes.txt"):
        (out / name).write_text("mine")
        with pytest.raises(UsageError, match=f"holds {name}, which was not written by mxfp8"):
            write_mxfp8(draft, out, force=True)
        (out / name).unlink()
    (out / ".git").mkdir()
    with pytest.raises(UsageError, match=r"holds .git, which was not written by mxfp8"):
        write_mxfp8(draft, out, force=True)


@pytest.mark.parametrize("can_exchange", [True, False])
def test_replacing(can_exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not can_exchange:
        monkeypatch.setattr(folder_module, "_exchange", lambda _one, _other: False)
    (tmp_path / "real").mkdir()
    (tmp_path / "real/old").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with AtomicFolder(tmp_path / "link", force=True) as folder:
        (folder.partial / "new").write_text("new")
        folder.commit()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["new"]


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with AtomicFolder(tmp_path / "out", force=False) as folder:
        (tmp_path / "out").mkdir()
        (tmp_path / "out/theirs").write_text("x")
        with pytest.raises(UsageError, match="exists already"):
            folder.commit()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_partial_folders_of_living_runs_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".out.1.partial").mkdir()
    (tmp_path / ".out.1.partial/model.safetensors").write_text("dead")
    with AtomicFolder(tmp_path / "out", force=False) as first:
        assert not (tmp_path / ".out.1.partial").exists()
        child = subprocess.run(
            [sys.executable, "-c", _SECOND, str(tmp_path / "out")],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert child.returncode == 0
        assert first.partial.is_dir()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["second"]


_SECOND = """
import sys
from pathlib import Path
from dflash_gguf.storage.folder import AtomicFolder
with AtomicFolder(Path(sys.argv[1]), force=False) as folder:
    (folder.partial / "second").write_text("x")
    folder.commit()
"""
