"""What is counted stands in the number that it has; what a decode prints is what its JSON says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.builders_gguf import Parts
from support.processes import Run

from dflash_gguf.cli.generate import acceptance_lines
from dflash_gguf.executor.decode import DecodedBlock, Generation
from dflash_gguf.formats.gguf.types import GGMLType, ValueType
from dflash_gguf.formats.gguf.values import MetaValue
from dflash_gguf.wording import counted

PACKAGE = Path(__file__).parents[2] / "dflash_gguf"
NOUNS = "keys|tensors|files|tokens|rules|findings|blocks|bytes|rows|items|merges|characters|texts|prompts|entries"
#: a number put straight in front of a plural; `of {n} tokens` and ranges `1 to {n} bytes` are no counts of one
PLURAL = re.compile(rf"""(?<!to )\{{(?:len\([^}}]*\)|\w*count\w*|[\w.]*\.count)(?::,)?\}} (?:{NOUNS})\b""")


def test_counted() -> None:
    assert [counted(n, "tensor", "is", "are") for n in (0, 1, 2048)] == [
        "0 tensors are",
        "1 tensor is",
        "2,048 tensors are",
    ]
    assert [counted(n, "entry") for n in (1, 2)] == ["1 entry", "2 entries"]
    assert counted(1, "key") == "1 key"


def test_no_message_counts_by_itself() -> None:
    sources = {path: path.read_text(encoding="utf-8").splitlines() for path in sorted(PACKAGE.rglob("*.py"))}
    found = [f"{path.name}: {line.strip()}" for path, lines in sources.items() for line in lines if PLURAL.search(line)]
    assert found == []


def test_inspect_and_diff_of_one_of_each(run: Run, tmp_path: Path) -> None:
    parts = Parts(
        {"general.architecture": MetaValue(ValueType.STRING, "x")}, {"a.weight": (GGMLType.F32, (1,), bytes(4))}
    )
    one = tmp_path / "one.gguf"
    one.write_bytes(parts.encode())
    other = tmp_path / "other.gguf"
    other.write_bytes(parts.set("general.name", ValueType.STRING, "y").encode())
    assert re.search(r"header \d+ B, 1 key\n", run("inspect", one).stdout)
    assert "1 key and 0 tensors differ, 1 tensor is equal" in run("diff", one, other).stdout
    assert "equal: all keys, 1 tensor\n" in run("diff", one, one).stdout


@pytest.mark.parametrize(
    ("blocks", "whole", "slots"),
    [
        # the last block has no room for more than one
        ([(3, 2), (3, 3), (1, 1)], "2.00 of at most 3 a block", "1: 3 of 3 (100%)  2: 2 of 2 (100%)  3: 1 of 2 (50%)"),
        ([(1, 0)], "0.00 of at most 1 a block", "1: 0 of 1 (0%)"),
    ],
)
def test_acceptance_is_told_of_what_was_drafted(blocks: list[tuple[int, int]], whole: str, slots: str) -> None:
    done = Generation((1,), tuple(DecodedBlock(proposed, accepted, accepted + 1) for proposed, accepted in blocks))
    first, second = acceptance_lines(done)
    assert whole in first
    assert second == f"accepted by slot: {slots}"
    assert sum(int(n) for n in re.findall(r": (\d+) of", second)) == done.n_accept
    assert sum(int(n) for n in re.findall(r"of (\d+) \(", second)) == done.n_draft


def test_nothing_drafted() -> None:
    assert acceptance_lines(Generation((1,), (DecodedBlock(0, 0, 1),)))[1:] == []
