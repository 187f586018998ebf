"""The whole story on the trained pair."""

from __future__ import annotations

import pytest
from support.executor_fixture import FIXTURES, runs
from support.processes import Run

from dflash_gguf.cli import demo
from dflash_gguf.errors import UsageError


def test_demo(run: Run) -> None:
    runs("draft")  # skips without the pair
    done = run("demo")
    assert (done.returncode, done.stdout.count("│ ") > 3) == (0, True)
    for part in (
        "1. convert",
        "2. inspect",
        "3. check",
        "4. generate",
        "DFlash 2 draft",
        "PASS",
        "every draft gave the same texts",
    ):
        assert part in done.stdout
    accepted = {
        line.split()[0]: float(line.split()[2])
        for line in done.stdout.splitlines()
        if line.strip().startswith("dflash-") and " of at most 7 " in line
    }
    assert len(accepted) == 4
    assert all(value > 2 for value in accepted.values())


def test_the_pair_is_found() -> None:
    assert demo.fixture().samefile(FIXTURES)


def test_an_installation_without_the_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "__file__", "/nowhere/dflash_gguf/cli/demo.py")
    with pytest.raises(UsageError, match="without its trained pair"):
        demo.fixture()
