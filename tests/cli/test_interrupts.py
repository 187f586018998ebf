"""What the process owes its caller, whatever streams, signals and limits it is started with."""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders import ROOT, safetensors_bytes
from support.processes import heed_signals

from dflash_gguf.cli.output import MAX_LINE, complain
from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.conversion.workers import share
from dflash_gguf.errors import UsageError
from dflash_gguf.storage.files import LocalFile

Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def gguf(draft: Path, target: Path, tmp_path: Path) -> Path:
    """A converted draft."""
    convert(draft, target, ConvertOptions(out=str(tmp_path / "a.gguf")))
    return tmp_path / "a.gguf"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A line for bash, in which `dg` is the command line."""

    def call(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        start = f'set -o pipefail; dg() {{ "{sys.executable}" -m dflash_gguf "$@"; }}; '
        return subprocess.run(
            ["bash", "-c", start + line],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    return call


@pytest.mark.parametrize(
    "line", ["dg inspect a.gguf --tokens | head -n 1", "dg inspect a.gguf | true", "dg --help | true"]
)
def test_a_reader_that_has_gone_is_no_error(line: str, gguf: Path, shell: Shell) -> None:
    done = shell(line)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stderr_that_nobody_reads_stops_no_work(gguf: Path, draft: Path, target: Path, shell: Shell) -> None:
    (draft / "config.json").write_text((draft / "config.json").read_text().replace('"is_causal": false,', ""))
    assert (
        "warning: is_causal is absent" in shell(f"dg convert {draft.name} --target {target.name} --out b.gguf").stderr
    )
    shell(f"dg convert {draft.name} --target {target.name} --out c.gguf 2>&1 >/dev/null | true")
    assert gguf.with_name("c.gguf").read_bytes() == gguf.with_name("b.gguf").read_bytes()


@pytest.mark.parametrize("arguments", ["inspect a.gguf", "inspect a.gguf --tokens", "inspect a.gguf --json"])
def test_an_answer_that_cannot_be_written_is_told(arguments: str, gguf: Path, shell: Shell) -> None:
    done = shell(f"dg {arguments} >/dev/full")
    assert done.returncode == 3
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_closed_streams(gguf: Path, draft: Path, target: Path, shell: Shell) -> None:
    assert shell("dg inspect a.gguf >&-").returncode == 0
    assert shell("dg inspect none.gguf >&- 2>&-").returncode == 2
    done = shell(f"dg convert {draft.name} --target {target.name} --out b.gguf <&- >&- 2>&-")
    assert done.returncode == 0
    assert gguf.with_name("b.gguf").read_bytes() == gguf.read_bytes()  # nothing was printed into it


def test_signs_that_the_encoding_lacks_are_escaped(gguf: Path, shell: Shell) -> None:
    done = shell("dg inspect a.gguf", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert r"2 \xd7 hidden 64" in done.stdout


def test_json_is_one_document_whatever_stderr_says(draft: Path, target: Path, shell: Shell) -> None:
    (draft / "config.json").write_text((draft / "config.json").read_text().replace('"is_causal": false,', ""))
    done = shell(f"dg convert {draft.name} --target {target.name} --out b.gguf --json")
    assert "warning" in done.stderr
    assert json.loads(done.stdout)["files"][0]["path"] == "b.gguf"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("dg inspect none.gguf", 2),
        ("dg inspect {long}", 3),
        ("dg convert {draft} --target {target} --out {long}", 3),
        ('cd "$(mktemp -d)" && rmdir "$PWD" && dg convert {draft} --target {target}', 3),
    ],
)
def test_errors_of_the_system_are_one_line(line: str, code: int, draft: Path, target: Path, shell: Shell) -> None:
    line = line.format(long="x" * 300, draft=shlex.quote(str(draft)), target=shlex.quote(str(target)))
    done = shell(line)
    assert done.returncode == code
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    traced = shell(line, DFLASH_DEBUG="1")
    assert traced.returncode == code
    assert traced.stderr.startswith("Traceback")
    assert traced.stderr.endswith(done.stderr)


def test_too_little_memory_is_one_line(draft: Path, target: Path, tmp_path: Path) -> None:
    program = """
import sys
from dflash_gguf.cli import interrupts as process
import dflash_gguf.cli.main as main
def fail(**_): raise MemoryError
main.app = fail
process.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 3
    assert done.stderr.startswith("error: not enough memory")
    assert done.stderr.count("\n") == 1


INTERRUPTED_TWICE = """
import os, signal, sys
from pathlib import Path
from typing import Any
from dflash_gguf.storage.atomic import AtomicFile
from dflash_gguf.cli import interrupts as process
import dflash_gguf.cli.main as main

def work(**_):
    with AtomicFile(Path(sys.argv[1]), 4, force=False):
        try:
            signal.raise_signal(getattr(signal, sys.argv[2]))
        finally:
            signal.raise_signal(signal.SIGINT)  # impatient
            signal.raise_signal(signal.SIGTERM)
            print("cleaned up")

main.app = work
process.main()
"""


@pytest.mark.parametrize("kind", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_second_signal_does_not_disturb_the_clean_up(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED_TWICE, str(tmp_path / "x"), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, preexec_fn=heed_signals)
    assert (done.returncode, done.stdout) == (130, "cleaned up\n")
    assert done.stderr == "interrupted: no partial output is left\n"
    assert list(tmp_path.iterdir()) == []


ENDED = """
import signal, sys
from dflash_gguf.cli import interrupts
import dflash_gguf.cli.main as main

steps, at, first = 0, int(sys.argv[1]), sys.argv[2] == "interrupted"

def trace(frame, event, argument):
    global steps
    if frame.f_code.co_filename != interrupts.__file__:
        return None
    steps += 1
    if steps == at:
        sys.settrace(None)
        signal.raise_signal(signal.SIGINT)
    return trace

def work(**_):
    sys.settrace(trace)
    frame = sys._getframe()
    while frame:
        if frame.f_code.co_filename == interrupts.__file__:
            frame.f_trace = trace
        frame = frame.f_back
    if first:
        signal.raise_signal(signal.SIGTERM)

main.app = work
interrupts.main()
"""


@pytest.mark.parametrize("first", ["interrupted", "finished"])
def test_a_signal_at_any_step_after_the_command_s_end_leaves_no_traceback(first: str) -> None:
    """Every line of the module that runs after the command: a signal before it gives 130, or comes too late."""
    seen = set()
    for step in range(1, 60):
        command = [sys.executable, "-c", ENDED, str(step), first]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, preexec_fn=heed_signals)
        seen.add(done.returncode)
        assert done.returncode in ((130,) if first == "interrupted" else (130, 0)), (step, done.stderr)
        assert done.stderr == ("interrupted: no partial output is left\n" if done.returncode else ""), step
    assert seen == ({130} if first == "interrupted" else {130, 0})


def test_a_signal_waits_until_the_compiler_has_returned() -> None:
    program = """
import os, signal, sys, time, types
from dflash_gguf.cli import interrupts as process
import dflash_gguf.cli.main as main

compiler = types.ModuleType("llvmlite.binding")
exec("def call_back(act): act(); print('returned')", compiler.__dict__)

def work(**_):
    compiler.call_back(lambda: os.kill(os.getpid(), signal.SIGINT))
    time.sleep(600)

main.app = work
process.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=300,
        preexec_fn=heed_signals,
    )
    assert (done.returncode, done.stdout) == (130, "returned\n")
    assert done.stderr == "interrupted: no partial output is left\n"


def test_a_signal_that_was_to_be_ignored_is(tmp_path: Path) -> None:
    program = INTERRUPTED_TWICE.replace("signal.SIGINT)", "signal.SIGHUP)").replace("signal.SIGTERM)", "signal.SIGHUP)")
    command = [sys.executable, "-c", program, str(tmp_path / "x"), "SIGHUP"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),  # as nohup does
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "cleaned up\n", "")


@pytest.mark.parametrize("interrupted", [(ThreadPoolExecutor, "submit"), (Future, "result")])
def test_an_interrupt_stops_the_threads(interrupted: tuple[type, str], monkeypatch: pytest.MonkeyPatch) -> None:
    done, waited_for = list[int](), threading.Event()
    submit, shutdown = ThreadPoolExecutor.submit, ThreadPoolExecutor.shutdown

    def interrupt(*_: object) -> None:
        if interrupted == (ThreadPoolExecutor, "submit"):
            submit(*_)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    def waiting(pool: ThreadPoolExecutor, **options: Any) -> None:
        waited_for.set()  # before that no thread gets further than its first job
        shutdown(pool, **options)

    def work(job: int) -> None:
        assert waited_for.wait(300)
        done.append(job)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", waiting)
    monkeypatch.setattr(*interrupted, interrupt)
    with pytest.raises(KeyboardInterrupt):
        share(range(1000), lambda: work)
    assert len(done) <= len(os.sched_getaffinity(0))


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")
    for path in (tmp_path / "f", tmp_path, Path("/dev/zero")):
        with pytest.raises(UsageError, match="not a regular file"):
            LocalFile(path)


def test_an_endless_message_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    complain("\x1b" * 100_000)
    line = capsys.readouterr().err
    assert len(line) == MAX_LINE + 2
    assert "\x1b" not in line


def test_descriptors_that_run_out_are_one_line(draft: Path, target: Path, tmp_path: Path) -> None:
    names = [f"s{number}.safetensors" for number in range(80)]
    for name in names:
        (draft / name).write_bytes(safetensors_bytes({name: np.zeros(0, np.uint16)}))
    (draft / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {name: name for name in names}}))
    done = subprocess.run(
        [sys.executable, "-m", "dflash_gguf", "convert", draft, "--target", target],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)),
    )
    assert done.returncode == 3
    assert done.stderr.endswith("cannot be opened: Too many open files\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("dg inspect --foo a.gguf", "error: inspect: No such option --foo (dflash-gguf inspect --help)"),
        ("dg convert", "error: convert: Missing argument 'DRAFT' (dflash-gguf convert --help)"),
        ("dg convert d", "error: convert: Missing option '--target' (dflash-gguf convert --help)"),
        ("dg inspect", "error: inspect: Missing argument 'FILE' (dflash-gguf inspect --help)"),
        ("dg inspect a b", "error: inspect: Got unexpected extra argument (b) (dflash-gguf inspect --help)"),
        ("dg inspect a --key", "error: inspect: Option '--key' requires an argument (dflash-gguf inspect --help)"),
        (
            "dg draft a --features x --anchor y",
            "error: draft: Invalid value for '--anchor': 'y' is not a valid integer (dflash-gguf draft --help)",
        ),
        ("dg inspekt a.gguf", "error: No such command 'inspekt' (did you mean inspect? dflash-gguf --help)"),
        ("dg zzzz", "error: No such command 'zzzz' (dflash-gguf --help)"),
        ("dg --foo", "error: No such option --foo (dflash-gguf --help)"),
        ("dg inspect --jsn a", "error: inspect: No such option --jsn"),
    ],
)
def test_a_line_that_cannot_be_understood_is_one_line(line: str, says: str, shell: Shell) -> None:
    done = shell(line)
    assert (done.returncode, done.stdout) == (2, "")
    told = done.stderr.replace("option: ", "option ").replace("'", "")  # click's versions differ in these
    assert told.startswith(says.replace("'", ""))
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("--help)\n")


def test_no_arguments_give_the_help(shell: Shell) -> None:
    done = shell("dg")
    assert done.returncode == 2
    assert "Commands:" in done.stderr
    assert shell("dg --help").stdout == done.stderr
