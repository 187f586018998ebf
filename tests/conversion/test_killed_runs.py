"""Killed, out of room, not allowed: the final name holds the old file or a whole new one, never a part."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.builders import ROOT, random_tensors, v2_config, write_draft, write_target
from support.killed import Arguments, end_at, steps_of
from support.processes import Run, obey_permissions

from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.errors import OutputError, UsageError
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.storage.atomic import AtomicFile, check_room
from dflash_gguf.storage.files import LocalFile


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    return write_draft(folder / "draft", v2_config()), write_target(folder / "target")


@pytest.mark.parametrize(
    ("kind", "force", "many"),
    [
        (signal.SIGTERM, True, False),
        (signal.SIGKILL, False, False),
        pytest.param(signal.SIGINT, False, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, True, True, marks=pytest.mark.slow),
    ],
)
def test_killed(kind: signal.Signals, force: bool, many: bool, pair: tuple[Path, Path], tmp_path: Path) -> None:
    def command(place: Path) -> Arguments:
        """What writes a file, over an old one if `force`."""
        place.mkdir()
        if force:
            (place / "x.gguf").write_text("old")
        more = ("--force",) if force else ()
        return ("convert", pair[0], "--target", pair[1], "--out", place / "x.gguf", *more)

    steps = steps_of(command(tmp_path / "whole"), tmp_path / "whole/x.gguf", tmp_path)
    whole = (tmp_path / "whole/x.gguf").read_bytes()
    with LocalFile(tmp_path / "whole/x.gguf") as source:
        assert not scan_header(source).defects
    for step in range(0, len(steps.steps), 3) if many else steps.some(seed=7):
        place = tmp_path / str(step)
        end_at(step, kind, command(place))
        held = {path.name: path.read_bytes() for path in place.iterdir()}
        old = {"x.gguf": b"old"} if force else {}
        assert held.get("x.gguf") == (old.get("x.gguf") if step <= steps.named else whole), step
        if kind is not signal.SIGKILL:
            assert held.keys() == (old.keys() if step <= steps.named else {"x.gguf"}), step
        convert(*pair, ConvertOptions(out=str(place / "x.gguf"), force=True))  # removes what SIGKILL left
        assert [(path.name, path.read_bytes()) for path in place.iterdir()] == [("x.gguf", whole)], step


def test_disk_full(draft: Path, target: Path, run: Run, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    old = tmp_path / "work/x.gguf"
    old.write_text("old")
    done = run("convert", draft, "--target", target, "--out", "x.gguf", "--force", preexec_fn=limit)
    assert done.returncode == 3
    assert "no room for" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.read_text() for path in old.parent.iterdir()] == ["old"]


def test_no_room_is_told_before_the_first_byte(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"no room: .* bytes are needed"):
        check_room({tmp_path / "x": 1 << 60})


def test_read_only_folder(draft: Path, target: Path, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    done = run("convert", draft, "--target", target, "--out", folder / "x.gguf", preexec_fn=obey_permissions)
    assert done.returncode == 3, done.stderr
    assert done.stderr == f"error: {folder / 'x.gguf'}: cannot be written: Permission denied (nothing was replaced)\n"
    assert list(folder.iterdir()) == []


def test_a_failing_source_leaves_nothing(target: Path, run: Run, tmp_path: Path) -> None:
    tensors = random_tensors(v2_config())
    tensors["norm.weight"][:] = np.uint16(0x7F80)
    draft = write_draft(tmp_path / "d", v2_config(), tensors)
    done = run("convert", draft, "--target", target, "--type", "bf16", "--type", "f32")
    assert done.returncode == 1
    assert "is NaN or infinite" in done.stderr
    assert list((tmp_path / "work").iterdir()) == []


def test_a_link_s_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real/x", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    with AtomicFile(link, 3, force=True) as file:
        file.write(0, b"new")
        file.commit()
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_mode_follows_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        with AtomicFile(tmp_path / "x", 1, force=False) as file:
            file.write(0, b"x")
            file.commit()
    finally:
        os.umask(old)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "x", 1, force=False) as file:
        file.write(0, b"x")
        (tmp_path / "x").write_text("theirs")
        with pytest.raises(UsageError, match="exists already"):
            file.commit()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["theirs"]


def test_partial_files_of_living_runs_are_left_alone(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "x", 4, force=False) as first:
        (tmp_path / ".x.1.partial").write_text("dead")
        first.write(0, b"live")
        child = subprocess.run(
            [sys.executable, "-c", _SECOND, str(tmp_path / "x")],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert child.returncode == 0
        assert not (tmp_path / ".x.1.partial").exists()
        assert any(path.name.endswith(".partial") for path in tmp_path.iterdir())
    assert (tmp_path / "x").read_text() == "2nd!"


_SECOND = """
import sys
from pathlib import Path
from dflash_gguf.storage.atomic import AtomicFile
with AtomicFile(Path(sys.argv[1]), 4, force=False) as file:
    file.write(0, b"2nd!")
    file.commit()
"""


def test_two_processes_of_one_number_do_not_share_a_partial_file(tmp_path: Path) -> None:
    # containers that share a folder: both write as process 7
    with AtomicFile(tmp_path / "x", 4, force=True) as first:
        first.write(0, b"1st!")
        with AtomicFile(tmp_path / "x", 4, force=True) as second:
            second.write(0, b"2nd!")
            second.commit()
        assert (tmp_path / "x").read_text() == "2nd!"
        first.commit()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "1st!")]


def test_a_folder_that_may_not_be_read_can_be_written_to(draft: Path, target: Path, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "drop"
    folder.mkdir()
    folder.chmod(0o300)
    done = run("convert", draft, "--target", target, "--out", folder / "x.gguf", preexec_fn=obey_permissions)
    folder.chmod(0o700)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == ["x.gguf"]


def test_a_folder_that_may_not_be_entered_is_one_line(draft: Path, target: Path, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0)
    for arguments in (
        ("convert", draft, "--target", target, "--out", folder / "x.gguf"),
        ("convert", draft, "--target", folder),
        ("convert", folder, "--target", target),
        ("inspect", folder / "x.gguf"),
    ):
        done = run(*arguments, preexec_fn=obey_permissions)
        assert done.returncode == 3, done.stderr
        assert "Permission denied" in done.stderr
        assert done.stderr.count("\n") == 1
    folder.chmod(0o700)


@pytest.mark.parametrize("fault", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_file_systems_without_locks_and_reserving(fault: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object) -> None:
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr("fcntl.flock", cannot)
    monkeypatch.setattr("os.posix_fallocate", cannot)
    (tmp_path / ".x.1.partial").write_text("perhaps somebody's")
    with AtomicFile(tmp_path / "x", 3, force=False) as file:
        file.write(0, b"new")
        file.commit()
    assert {path.name for path in tmp_path.iterdir()} == {"x", ".x.1.partial"}
    assert (tmp_path / "x").read_text() == "new"


def test_room_is_looked_for_where_a_link_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def usage(folder: str) -> shutil._ntuple_diskusage:
        asked.append(folder)
        return shutil._ntuple_diskusage(1, 1, 0)

    monkeypatch.setattr("shutil.disk_usage", usage)
    (tmp_path / "there").mkdir()
    (tmp_path / "x").symlink_to("there/x")
    with pytest.raises(OutputError, match="no room"):
        check_room({tmp_path / "x": 1})
    assert asked == [str(tmp_path / "there")]


def test_all_outputs_are_on_the_disk_before_the_first_gets_its_name(
    draft: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def fail_on_the_second(fd: int) -> None:
        synced.append(fd)
        if len(synced) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("os.fsync", fail_on_the_second)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(OutputError, match="Input/output error"):
        convert(draft, target, ConvertOptions(types=("bf16", "f32"), out=f"{out}/"))
    assert list(out.iterdir()) == []
