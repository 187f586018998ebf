"""Running the command line: signals in this process and in others."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dflash_gguf.cli.interrupts import SIGNALS


@contextmanager
def kept_signals() -> Iterator[None]:
    """For running the command line in this process: in the end it ignores signals, and so would all that we start."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def heed_signals() -> None:
    """Start a process with: we may have been started ourselves by something that ignores them, as nohup does."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


Run = Callable[..., subprocess.CompletedProcess[str]]


def obey_permissions() -> None:
    """Take from root the right to read and write where permissions do not allow it (no effect on others)."""
    if os.geteuid() == 0:
        drop_from_bounding_set, cap_dac_override, cap_dac_read_search = 24, 1, 2
        for capability in (cap_dac_override, cap_dac_read_search):
            ctypes.CDLL(None).prctl(drop_from_bounding_set, capability, 0, 0, 0)
