"""In place: one process at a time, and nobody ever takes a half-changed file for a whole one."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.builders import ROOT
from support.builders_gguf import Parts
from support.faults import NAME, Workshop
from support.processes import Run, heed_signals

from dflash_gguf.checks import check
from dflash_gguf.errors import InputError, OutputError, UsageError
from dflash_gguf.patching import patch

BLOCK = "dflash.block_size"
LONGER = "general.description=str:" + "x" * 500
UNDO = f".{NAME}.undo"


#: wraps one of the calls that change files: at the n-th it does half of it or all of it, then kills its own process
KILL = """
import os, signal, sys
from dflash_gguf.cli.interrupts import main
name, at, kind, half = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "half"
real, calls = getattr(os, name), 0
def wrapped(*arguments, **options):
    global calls
    calls += 1
    if calls != at:
        return real(*arguments, **options)
    if half and name == "pwrite":
        real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2], arguments[2])
        os.kill(os.getpid(), kind)
    if half:
        os.kill(os.getpid(), kind)
    done = real(*arguments, **options)
    if not half:
        os.kill(os.getpid(), kind)
    return done
setattr(os, name, wrapped)
sys.argv = ["dflash-gguf", *sys.argv[5:]]
main()
"""
QUICK = [("pwrite", n) for n in range(1, 5)]
OTHER = [*(("fsync", n) for n in range(1, 6)), ("unlink", 1), ("link", 1), ("rename", 1), ("open", 1)]
STEPS = [*QUICK, *(pytest.param(*step, marks=pytest.mark.slow) for step in OTHER)]
SLOW_INTERRUPT = pytest.param(signal.SIGINT, marks=pytest.mark.slow)


def killed(file: Path, name: str, number: int, kind: signal.Signals, half: str, change: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    wrapper = [sys.executable, "-c", KILL, name, str(number), str(int(kind)), half]
    command = [*wrapper, "patch", str(file), "--in-place", "--set", change]
    return subprocess.run(
        command, env=environment, check=False, timeout=300, capture_output=True, preexec_fn=heed_signals
    ).returncode


@pytest.mark.parametrize("half", ["half", "whole"])
@pytest.mark.parametrize(("name", "number"), STEPS)
def test_killed_at_every_step(file: Path, name: str, number: int, half: str) -> None:
    """Old or new under its name, or refused by every reader until the next patch has taken it back."""
    old = file.read_bytes()
    code = killed(file, name, number, signal.SIGKILL, half, f"{BLOCK}=u32:5")
    assert code in (0, -signal.SIGKILL)
    now = file.read_bytes()
    torn = now[:4] != b"GGUF"
    whole = torn or Parts.of(file).pairs[BLOCK].value in (5, 8)
    assert whole
    if torn:
        report = check([file]).files[0]
        assert [(f.rule, f.severity.value) for f in report.findings] == [("GF001", "error")]
        assert now[:4] != b"TORN" or "a patch of it was interrupted" in report.findings[0].message
    done = patch(file)
    assert done.undone == torn
    assert file.read_bytes() == (old if torn else now)
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("kind", [signal.SIGTERM, SLOW_INTERRUPT])
@pytest.mark.parametrize(("name", "number"), STEPS)
def test_interrupted_at_every_step(file: Path, name: str, number: int, kind: signal.Signals) -> None:
    """Nothing is left of it: no half, no hidden file."""
    old = file.read_bytes()
    code = killed(file, name, number, kind, "whole", f"{BLOCK}=u32:5")
    assert code in (0, 130)
    assert Parts.of(file).pairs[BLOCK].value == (8 if code else 5)
    assert (file.read_bytes() == old) == bool(code)
    assert list(file.parent.iterdir()) == [file]


def test_an_undo_never_meets_another_file(file: Path, shop: Workshop) -> None:
    assert killed(file, "pwrite", 3, signal.SIGKILL, "half", f"{BLOCK}=u32:5") == -signal.SIGKILL
    assert (file.parent / UNDO).exists()
    good = (shop.root / NAME).read_bytes()
    file.write_bytes(good)  # as converting anew does, or a download
    assert not patch(file).undone
    assert file.read_bytes() == good
    assert list(file.parent.iterdir()) == [file]


def test_a_torn_file_without_its_undo_is_refused(file: Path, tmp_path: Path) -> None:
    killed(file, "pwrite", 3, signal.SIGKILL, "half", f"{BLOCK}=u32:5")
    moved = tmp_path / "moved.gguf"
    file.rename(moved)
    with pytest.raises(OutputError, match=r"was left torn by a patch, and \.moved\.gguf\.undo is not beside it"):
        patch(moved)
    (file.parent / UNDO).rename(tmp_path / ".moved.gguf.undo")
    assert patch(moved).undone
    assert Parts.of(moved).pairs[BLOCK].value == 8


def test_an_undo_of_another_size_is_refused(file: Path) -> None:
    killed(file, "pwrite", 3, signal.SIGKILL, "half", f"{BLOCK}=u32:5")
    undo = file.parent / UNDO
    undo.write_bytes(undo.read_bytes()[:-1])
    torn = file.read_bytes()
    with pytest.raises(InputError, match="what was kept of it is of another file"):
        patch(file)
    assert file.read_bytes() == torn


def test_two_at_once_lose_nothing(file: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    changes = [f"{BLOCK}=u32:5", LONGER, "dflash.context_length=u32:77", "x.y=str:" + "z" * 700, "x.z=u8:1", "x.w=u8:1"]
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "dflash_gguf", "patch", str(file), "--in-place", "--set", change],
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        for change in changes
    ]
    assert [run.wait(timeout=300) for run in runs] == [0] * len(changes)
    pairs = Parts.of(file).pairs
    assert (pairs[BLOCK].value, pairs["dflash.context_length"].value) == (5, 77)
    assert {"general.description", "x.y", "x.z", "x.w"} <= set(pairs)
    assert list(file.parent.iterdir()) == [file]


#: tells when it is about to wait for the lock
WAITING = """
import fcntl, sys
from dflash_gguf.cli.interrupts import main
flock = fcntl.flock
def wrapped(*arguments):
    print("waiting", flush=True)
    return flock(*arguments)
fcntl.flock = wrapped
sys.argv = ["dflash-gguf", *sys.argv[1:]]
main()
"""


def test_one_waits_for_the_other(file: Path) -> None:
    """Also where the other puts a new file in its place meanwhile."""
    from dflash_gguf.storage.inplace import InPlace

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WAITING, "patch", str(file), "--in-place", "--set", f"{BLOCK}=u32:5"]
    new = file.with_name("new")
    new.write_bytes(file.read_bytes())
    patch(new, sets=[LONGER])
    with InPlace(file):
        run = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert run.stdout
        assert run.stdout.readline() == "waiting\n"
        new.replace(file)
    run.communicate(timeout=300)
    assert run.returncode == 0
    pairs = Parts.of(file).pairs
    assert pairs[BLOCK].value == 5
    assert "general.description" in pairs


def test_permissions_stay(file: Path) -> None:
    file.chmod(0o600)
    patch(file, sets=[LONGER])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    if os.geteuid() == 0:
        try:
            os.chown(file, 1234, 1234)
        except OSError:
            pytest.skip("this root may not give files away")
        patch(file, removes=["general.description"])
        assert (file.stat().st_uid, file.stat().st_gid, stat.S_IMODE(file.stat().st_mode)) == (1234, 1234, 0o600)


def test_a_file_of_two_names(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.hardlink_to(file)
    patch(file, sets=[f"{BLOCK}=u32:5"])
    assert Parts.of(other).pairs[BLOCK].value == 5
    old = file.read_bytes()
    with pytest.raises(UsageError, match=r"has 2 names \(hard links\)"):
        patch(file, sets=[LONGER])
    assert file.read_bytes() == old


def test_a_write_that_fails(run: Run, file: Path) -> None:
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    old = file.read_bytes()
    done = run("patch", file, "--in-place", "--set", f"{BLOCK}=u32:5", preexec_fn=limit)
    assert done.returncode == 3
    assert str(file) in done.stderr
    assert done.stderr.count("\n") == 1
    assert file.read_bytes() == old
    assert list(file.parent.iterdir()) == [file]


def test_what_cannot_be_changed(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path, tmp_path / "none"):
        with pytest.raises((UsageError, OutputError)):
            patch(path)
