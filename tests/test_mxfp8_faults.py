"""Killed, out of room, not allowed: no OUT_DIR, the old one, or a whole new one; and --force destroys nothing else."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import ROOT, v1_config, v2_config, write_draft
from conftest import Run
from test_faults import obey_permissions

from dflash_gguf.bytesio import folder as folder_module
from dflash_gguf.bytesio.folder import AtomicFolder
from dflash_gguf.errors import InputError, OutputError, UsageError
from dflash_gguf.mxfp8 import Listener, verify_mxfp8, write_mxfp8


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint large enough to be interrupted (60 MB)."""
    return write_draft(tmp_path_factory.mktemp("large") / "draft", v1_config(hidden_size=1024, intermediate_size=3072))


def start(draft: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    command: list[str | Path] = [sys.executable, "-m", "dflash_gguf", "mxfp8", draft, out, *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("kind", "force"),
    [
        (signal.SIGTERM, False),
        (signal.SIGKILL, True),
        pytest.param(signal.SIGINT, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, False, marks=pytest.mark.slow),
    ],
)
def test_killed_at_random_moments(kind: signal.Signals, force: bool, large: Path, draft: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    out = place / "out"
    rng = random.Random(9)
    if force:
        write_mxfp8(draft, out)
    old = sorted(path.stat().st_size for path in out.iterdir()) if force else []
    interrupted = 0
    for attempt in range(20):
        if attempt >= 3 and interrupted:
            break
        process = start(large, out, *(["--force"] if force else []))
        deadline = time.monotonic() + rng.uniform(0.3, 1.2)
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(kind)
        process.communicate(timeout=60)
        if out.exists() and sorted(path.stat().st_size for path in out.iterdir()) != old:
            assert verify_mxfp8(out, large).passed  # it was done, or all but done
            continue
        interrupted += 1
        assert out.exists() == force
        if process.returncode == 130:  # else the signal came before the handler, or could not be handled
            assert [path.name for path in place.iterdir()] == (["out"] if force else [])
        if kind is not signal.SIGKILL:
            assert process.returncode in (130, -kind)
    assert interrupted
    process = start(large, out, "--force")  # the next run removes what SIGKILL left
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert [path.name for path in place.iterdir()] == ["out"]
    assert verify_mxfp8(out, large).passed


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
        write_mxfp8(draft, tmp_path / "out", listener=Listener(on_bytes=change))
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
from dflash_gguf.bytesio.folder import AtomicFolder
with AtomicFolder(Path(sys.argv[1]), force=False) as folder:
    (folder.partial / "second").write_text("x")
    folder.commit()
"""
