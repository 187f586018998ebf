"""The trained pair of fixtures/, and drafting along its stored greedy texts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.executor.draft import DraftModel
from dflash_gguf.executor.loading import numpy_target, open_draft, open_target
from dflash_gguf.executor.numpy_target import TargetVocabulary
from dflash_gguf.executor.ops import F32
from dflash_gguf.executor.selector import walk
from dflash_gguf.executor.trace import Probe
from dflash_gguf.executor.weights import Budget, Weights
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.model.spec import DraftSpec
from dflash_gguf.storage.files import LocalFile
from support.builders import ROOT
from support.executor_builders import MEMORY, ArraySource

#: blocks of the fixture's target
BLOCKS = 4
FIXTURES = Path(os.environ.get("DFLASH_FIXTURES", ROOT / "fixtures"))


@dataclass(frozen=True)
class Run:
    """One prompt's decode with one draft by the reference: accepted tokens per block, the last one left out if cut."""

    prompt: list[int]
    text: list[int]
    anchors: list[int]
    accepted: list[int]
    last_block_cut: bool

    @property
    def whole(self) -> list[int]:
        """Accepted lengths of the blocks that neither the budget nor the end token cut."""
        return self.accepted[:-1] if self.last_block_cut else self.accepted


def runs(draft: str, alignment: str = "first_generated") -> list[Run]:
    """Every prompt of sequences.json; skips where the fixture is not there."""
    path = FIXTURES / "sequences.json"
    if not path.is_file():
        pytest.skip("no trained fixture")
    rows = json.loads(path.read_text(encoding="utf-8"))["prompts"]
    return [
        Run(
            row["prompt_ids"],
            row["generated_ids"],
            [block["anchor"] for block in row[draft][alignment]["blocks"]],
            row[draft][alignment]["accepted"],
            row[draft][alignment]["last_block_cut"],
        )
        for row in rows
    ]


def converted(folder: Path, draft: str, kind: str) -> Path:
    """The fixture's draft as GGUF."""
    out = folder / f"{draft}-{kind}.gguf"
    convert(FIXTURES / draft, FIXTURES / "target", ConvertOptions(types=(kind,), out=str(out)))
    return out


@dataclass(frozen=True)
class Export:
    """What a GGUF says, in memory, where mistakes can be planted."""

    spec: DraftSpec
    arrays: dict[str, F32]


def exported(file: Path) -> Export:
    """Read a whole draft."""
    with ExitStack() as files:
        spec, weights = open_draft(file, Budget(MEMORY), files)
        with LocalFile(file) as source:
            names = list(scan_header(source).tensors)
        return Export(spec, {name: weights.vector(name).copy() for name in names})


class Replay:
    """Drafts blocks along texts that are known: the target's states are computed once for every prompt."""

    def __init__(self, rows: Sequence[Run], spec: DraftSpec, files: ExitStack) -> None:
        self.rows = rows
        opened = open_target(FIXTURES / "target", Budget(MEMORY), files, row_by_row=True)
        self.vocabulary = TargetVocabulary(Weights(opened.weights.source, Budget(MEMORY)))
        every_tap = tuple(range(BLOCKS + 1))
        target = numpy_target(opened, replace(spec, target_layers=every_tap))
        self.states = []
        for row in rows:
            target.crop(0)
            _, states = target.extend([*row.prompt, *row.text], predict=1)
            self.states.append(states.reshape(len(states), len(every_tap), -1))

    def sequences(self, export: Export) -> Iterator[list[int]]:
        """Accepted lengths of the whole blocks of each prompt in turn, at the reference's own anchors."""
        for row, states in zip(self.rows, self.states, strict=True):
            features = states[:, list(export.spec.target_layers)].reshape(len(states), -1)
            weights = Weights(ArraySource(export.arrays), Budget(MEMORY))
            model = DraftModel(export.spec, weights, self.vocabulary, Probe())
            text = [*row.prompt, *row.text]
            lengths = []
            for anchor in row.anchors[: len(row.whole)]:
                model.extend(features[model.n_context : anchor])
                tokens = walk(model.lattice(text[anchor]), n_max=export.spec.max_draft).tokens
                hits = [a == b for a, b in zip(tokens, text[anchor + 1 :], strict=False)]
                lengths.append([*hits, False].index(False))
            yield lengths


def mean(sequences: Sequence[Sequence[int]]) -> float:
    """Mean accepted tokens a block."""
    return float(np.mean([length for lengths in sequences for length in lengths]))
