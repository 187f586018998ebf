"""Coverage-guided fuzzing of the scanner and the header rules: anything but a report is a crash.

    pip install atheris
    python tests/fuzz/fuzz_check.py -max_total_time=600 WORK_FOLDER tests/fuzz/corpus

New inputs go to the first folder. `-merge=1` with an empty first folder keeps what adds coverage.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))

with atheris.instrument_imports(include=["dflash_gguf"]):
    from dflash_gguf.checks.finding import CheckReport
    from dflash_gguf.checks.render import renderer
    from dflash_gguf.checks.rules import all_rules
    from dflash_gguf.checks.runner import Runner
    from dflash_gguf.storage.files import MemoryFile
    from dflash_gguf.storage.hub import Hub

    RULES = all_rules()  # imports the rules, which have to be instrumented too
    RENDERERS = [renderer(name) for name in ("text", "sarif")]

if TYPE_CHECKING:
    from dflash_gguf.checks.place import Place


class _Source(MemoryFile):
    def __enter__(self) -> _Source:  # noqa: PYI034 - no subclass comes of it
        return self

    def __exit__(self, *_: object) -> None:
        pass


@dataclass
class _Place:
    name: str
    data: bytes
    is_of_repo: bool = False

    def open(self, *, whole: bool) -> _Source:  # noqa: ARG002 - it is whole
        return _Source(self.data, self.name)

    def card(self) -> None:
        return None


def check_once(data: bytes) -> None:
    """Check `data` by all rules that need no other file, and render what is found."""
    runner = Runner(RULES, None, None, hub=Hub(), data=True)
    report = runner.look_at(cast("Place", _Place("dflash-Tiny-BF16.gguf", data)))
    if report.error is not None:
        raise AssertionError(report.error)
    for render in RENDERERS:
        render(CheckReport((report,)))


if __name__ == "__main__":
    atheris.Setup(sys.argv, check_once)
    atheris.Fuzz()
