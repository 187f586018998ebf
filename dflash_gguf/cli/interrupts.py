"""What the process owes its caller: standard streams that can be written to, signals that unwind, exit codes.

Nothing heavy is imported before the signals are set, so that an early Ctrl-C ends in one line too.
"""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, NoReturn

from dflash_gguf.errors import DflashError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

COULD_NOT_FINISH = 3
INTERRUPTED = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_AGAIN = 0.02  # seconds
_answered = False  # once the exit code is settled, no signal changes it


class Interrupted(BaseException):
    """A signal that ends the run: unwinds everything, so that partial files go, and is nobody else's to catch."""


def main() -> NoReturn:
    """Run the command line and exit with the contract's codes."""
    global _answered  # noqa: PLW0603 - a signal's handler sees nothing else
    _answered = False
    try:
        _handle_signals(_interrupt)
        _have_standard_streams()
        code = _flush(_run())
        _answered = True
    except Interrupted:
        _answered = True
        code = _fail("interrupted: no partial output is left", INTERRUPTED)
    signal.setitimer(signal.ITIMER_REAL, 0)
    _handle_signals(signal.SIG_IGN)  # all is done: nothing is left that a signal could spare
    sys.exit(code)


def _run() -> int:
    try:
        return _run_app()
    except SystemExit as done:  # typer ends with one where a pipe's reader has gone, and after shell completion
        if isinstance(done.__context__, BrokenPipeError):
            return 0
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except DflashError as error:
        return _fail(f"error: {error}", error.exit_code)
    except MemoryError:
        return _fail("error: not enough memory (ulimit -v, or a limit of the container?)", COULD_NOT_FINISH)
    except OSError as error:
        return _fail(f"error: {os_error_text(error)}", COULD_NOT_FINISH)


def _run_app() -> int:
    """Run the command; returns its exit code. Raises UsageError for a line that cannot be understood."""
    from click.exceptions import NoArgsIsHelpError
    from click.exceptions import UsageError as Misspelled

    from dflash_gguf.cli.main import COMMANDS, app

    try:
        return app(prog_name="dflash-gguf", standalone_mode=False) or 0
    except NoArgsIsHelpError as error:
        error.show()
        return UsageError.exit_code
    except Misspelled as error:  # click's own words are several lines, with the usage and a box
        command = next((word for word in sys.argv[1:2] if word in COMMANDS), "")  # not every error knows
        message = " ".join(error.format_message().split()).removesuffix(".")
        hint = " ".join(filter(None, ("dflash-gguf", command, "--help")))
        raise UsageError(message, where=command, hint=_near(message, COMMANDS) + hint) from None


def _near(message: str, commands: Iterable[str]) -> str:
    """For a command that there is not: those whose names are like it."""
    from difflib import get_close_matches

    word = message.removeprefix("No such command ").strip("'")
    near = get_close_matches(word, commands, n=3, cutoff=0.6) if word != message else []
    return f"did you mean {', '.join(near)}? " if near else ""


def os_error_text(error: OSError) -> str:
    """An error of the system in one line: the file where it has one, and what happened."""
    what = error.strerror or str(error) or type(error).__name__
    return what if error.filename is None else f"{os.fsdecode(error.filename)}: {what}"


def _fail(line: str, code: int) -> int:
    """Complain in one line, with the traceback before it where that is asked for; returns `code`."""
    from dflash_gguf.cli.output import complain

    if os.environ.get("DFLASH_DEBUG") == "1":
        import traceback

        traceback.print_exc()
    complain(line)
    return code


def _flush(code: int) -> int:
    """Flush the answer: a disk may be full, and the reader of a pipe may have gone, as `head` does."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        code = code or _fail(f"error: the answer cannot be written: {os_error_text(error)}", COULD_NOT_FINISH)
    else:
        return code
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
    return code


def _have_standard_streams() -> None:
    """Descriptors 0-2 open, so that no file we write gets one of these numbers; text that cannot be encoded escaped."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for the whole run
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _handle_signals(handler: signal.Handlers | object) -> None:
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's background job
            signal.signal(number, handler)  # type: ignore[arg-type]


def _interrupt(_signal: int, frame: FrameType | None) -> None:
    """Raise Interrupted, but not into the clean-up after one: an impatient second Ctrl-C would leave partial files.

    Nor into the compiler of the kernels: its library calls back from C, where an exception is lost. There the
    signal waits. Nor once the run is over: its exit code is settled.
    """
    if _answered:
        return
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, Interrupted):
            return
        error = error.__context__
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("llvmlite."):
            signal.signal(signal.SIGALRM, _interrupt)
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
            return
        frame = frame.f_back
    raise Interrupted
