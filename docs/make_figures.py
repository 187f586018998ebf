"""Draw the figures of dflash2.md from traces of the trained pair, and print its table.

usage: python docs/make_figures.py        (writes docs/figures/*.svg; needs nothing but the package)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.executor import generate

ROOT = Path(__file__).parents[1]
PAIR, OUT = ROOT / "fixtures", ROOT / "docs/figures"
SLOTS, NEW_TOKENS = 7, 64
INK, FAINT, LINES = "#24292f", "#8c959f", ("#0969da", "#bc4c00", "#1a7f37")
FONT = 'font-family="system-ui, sans-serif"'


@dataclass(frozen=True)
class Block:
    """One block of a decode: its lattice, what the walk chose, and what the target then said."""

    candidates: Any  # (slots, C)
    scores: Any  # (slots, C, C)
    path: list[int]
    truth: list[int]

    def accepted(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` the target confirms."""
        hits = [a == b for a, b in zip(tokens, self.truth, strict=False)]
        return [*hits, False].index(False)

    @property
    def argmax(self) -> list[int]:
        """Each slot's most likely token, without the selector."""
        return [int(token) for token in self.candidates[:, 0]]


def blocks(file: Path, folder: Path) -> Iterator[Block]:
    """Every block of every prompt, from its trace; not the last one where the text's end cuts it."""
    for row in json.loads((PAIR / "prompts.json").read_text(encoding="utf-8"))["prompts"]:
        trace = folder / "trace.npz"
        done = generate(file, PAIR / "target", row["text"], NEW_TOKENS, trace=trace).generation
        end = 1
        with np.load(trace) as seen:
            for number, block in enumerate(done.blocks):
                candidates, scores = (seen[f"block{number}/selector.{name}"] for name in ("candidates", "scores"))
                if number + 1 < len(done.blocks) or end + SLOTS < len(done.tokens):
                    yield Block(candidates, scores, walked(candidates, scores), list(done.tokens[end:]))
                end += block.emitted


def walked(candidates: Any, scores: Any) -> list[int]:
    """The greedy walk."""
    path, previous = [], 0
    for ids, rows in zip(candidates, scores, strict=True):
        previous = int(rows[previous].argmax())
        path.append(int(ids[previous]))
    return path


def by_slot(runs: Sequence[int]) -> list[float]:
    """Share of the blocks that were accepted up to and including each slot."""
    return [sum(run > slot for run in runs) / len(runs) for slot in range(SLOTS)]


def acceptance_figure(series: dict[str, list[float]]) -> str:
    """Lines over the slots, percent on the left, names at the right."""
    left, top, width, height = 46, 16, 420, 220
    step = width / (SLOTS - 1)
    parts = []
    for percent in range(0, 101, 25):
        y = top + height * (1 - percent / 100)
        parts.append(f'<path d="M{left} {y:.1f}h{width}" stroke="#d0d7de" stroke-width="1"/>')
        parts.append(text(left - 8, y + 4, f"{percent}%", "end", FAINT))
    parts += [text(left + slot * step, top + height + 20, str(slot + 1), "middle", FAINT) for slot in range(SLOTS)]
    parts.append(text(left + width / 2, top + height + 40, "slot of the block", "middle", INK))
    ends: list[float] = []
    for (name, shares), color in zip(series.items(), LINES, strict=False):
        points = [(left + slot * step, top + height * (1 - share)) for slot, share in enumerate(shares)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points]
        y = points[-1][1] + 4
        while any(abs(y - other) < 16 for other in ends):
            y += 4
        ends.append(y)
        parts.append(text(left + width + 10, y, name, "start", color))
    return svg(700, top + height + 52, parts)


def lattice_figure(block: Block, words: Tokenizer, rows: int) -> str:
    """The first candidates of every slot; the walk in one colour, each slot's arg-max in another."""
    left, top, step, line = 20, 40, 96, 30
    parts = []
    for slot in range(SLOTS):
        x = left + slot * step + 40
        parts.append(text(x, 22, f"slot {slot + 1}", "middle", FAINT))
        for rank, token in enumerate(block.candidates[slot][:rows]):
            y, chosen = top + rank * line, int(token) == block.path[slot]
            right = slot < len(block.truth) and int(token) == block.truth[slot]
            frame = LINES[0] if chosen else LINES[1] if rank == 0 else "#d0d7de"
            parts.append(
                f'<rect x="{x - 42}" y="{y}" width="84" height="24" rx="5" fill="{"#dafbe1" if right else "#fff"}" '
                f'stroke="{frame}" stroke-width="{2 if chosen or rank == 0 else 1}"/>'
            )
            shown = words.decode([int(token)]).replace("\n", "⏎").replace(" ", "␣")
            parts.append(text(x, y + 16, shown, "middle", INK))
    ranks = [block.candidates[slot].tolist().index(token) for slot, token in enumerate(block.path)]
    centres = [(left + slot * step + 40, top + rank * line + 12) for slot, rank in enumerate(ranks)]
    for (x, y), (x2, y2) in pairwise(centres):
        parts.insert(0, f'<path d="M{x + 42} {y}L{x2 - 42} {y2}" stroke="{LINES[0]}" stroke-width="2"/>')
    foot = top + rows * line + 20
    parts.append(text(left, foot, "blue: the selector's walk", "start", LINES[0]))
    parts.append(text(left + 190, foot, "orange: an arg-max that it leaves", "start", LINES[1]))
    parts.append(text(left + 440, foot, "green: the target's own token", "start", LINES[2]))
    return svg(left * 2 + SLOTS * step, foot + 12, parts)


def text(x: float, y: float, content: str, anchor: str, color: str) -> str:
    """One line of text."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}"'
    return f'<text {place} font-size="13" {FONT}>{escape(content)}</text>'


def svg(width: float, height: float, parts: Sequence[str]) -> str:
    """A figure on white."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>"]) + "\n"


def telling(found: Sequence[Block]) -> Block:
    """The block where the walk gains most over the arg-max."""
    return max(found, key=lambda block: block.accepted(block.path) - block.accepted(block.argmax))


def main() -> None:
    OUT.mkdir(exist_ok=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        found = {}
        for draft in ("draft", "draft-v1"):
            out = folder / f"{draft}.gguf"
            convert(PAIR / draft, PAIR / "target", ConvertOptions(types=("bf16",), out=str(out)))
            found[draft] = list(blocks(out, folder))
    second, first = found["draft"], found["draft-v1"]
    runs = {
        "DFlash 2, selector's walk": [block.accepted(block.path) for block in second],
        "DFlash 2, arg-max": [block.accepted(block.argmax) for block in second],
        "DFlash 1": [block.accepted(block.path) for block in first],
    }
    (OUT / "acceptance.svg").write_text(acceptance_figure({n: by_slot(r) for n, r in runs.items()}), encoding="utf-8")
    words = Tokenizer.from_file(str(PAIR / "target/tokenizer.json"))
    (OUT / "selector.svg").write_text(lattice_figure(telling(second), words, 5), encoding="utf-8")
    for label, run in runs.items():
        shares = " ".join(f"{share:.0%}" for share in by_slot(run))
        print(f"{label}: {len(run)} blocks, {np.mean(run):.2f} of {SLOTS} accepted; by slot {shares}")
    differ = sum(block.path != block.argmax for block in second)
    gain = [block.accepted(block.path) - block.accepted(block.argmax) for block in second]
    better, worse = sum(g > 0 for g in gain), sum(g < 0 for g in gain)
    print(f"walk and arg-max differ in {differ} blocks; the walk gains in {better}, loses in {worse}")


if __name__ == "__main__":
    main()
