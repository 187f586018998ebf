"""Two drafts along the target's own greedy text: what each would have had accepted, block by block.

Greedy, the text does not depend on the draft. So the target is computed once for each prompt, and a block costs a
draft's pass alone. Both drafts are compared at the first one's anchors; each has its own for its accepted lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash_gguf.comparison.agreement import Agreement, ComparedBlock, Drafter
    from dflash_gguf.executor.numpy_target import NumpyTarget
    from dflash_gguf.executor.ops import F32


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the target's greedy continuation; `states` (positions, taps, H) of all but the last token."""

    tokens: tuple[int, ...]
    n_prompt: int
    states: F32

    @property
    def last(self) -> int:
        """Position of the last token: no block starts there."""
        return len(self.tokens) - 1


@dataclass(frozen=True, slots=True)
class Accepted:
    """One draft's decode of one prompt: tokens proposed and accepted in each block, the bonus token not counted."""

    proposed: tuple[int, ...]
    accepted: tuple[int, ...]


def greedy_text(target: NumpyTarget, prompt: Sequence[int], n_predict: int, stop: frozenset[int]) -> Text:
    """The target alone, up to `n_predict` tokens or a stop token."""
    target.crop(0)
    logits, features = target.extend(prompt, predict=1)
    tokens, rows = [*prompt, int(logits[-1].argmax())], [features]
    while len(tokens) - len(prompt) < n_predict and tokens[-1] not in stop:
        logits, features = target.extend(tokens[-1:], predict=1)
        rows.append(features)
        tokens.append(int(logits[-1].argmax()))
    states = np.concatenate(rows)
    return Text(tuple(tokens), len(prompt), states.reshape(len(states), len(target.taps), -1))


class Track:
    """One draft's way through a text. `taps` picks the states that it wants, in its order."""

    def __init__(self, text: Text, drafter: Drafter, taps: Sequence[int], n_predict: int, n_max: int) -> None:
        self._text, self._drafter = text, drafter
        self._features = text.states[:, list(taps)].reshape(len(text.states), -1)
        self._n_predict, self._n_max = n_predict, n_max
        self._anchor = text.n_prompt  # the first generated token
        self._lengths: list[tuple[int, int]] = []

    @property
    def anchor(self) -> int:
        """Where the next block starts; `text.last` or behind it when there is none."""
        return self._anchor

    def block(self, anchor: int) -> ComparedBlock:
        """Draft at `anchor`; the decode goes on where this is its own next one."""
        block = self._drafter.at(self._features[:anchor], self._text.tokens[anchor])
        if anchor == self._anchor:
            room = self._n_predict - (anchor - self._text.n_prompt + 1)
            proposal = block.path[: max(0, min(self._n_max, room - 1))]
            hits = [x == y for x, y in zip(proposal, self._text.tokens[anchor + 1 :], strict=False)]
            accepted = [*hits, False].index(False)
            self._lengths.append((len(proposal), accepted))
            self._anchor += accepted + 1
        return block

    def accepted(self) -> Accepted:
        """The lengths so far."""
        return Accepted(tuple(p for p, _ in self._lengths), tuple(a for _, a in self._lengths))


def replay(text: Text, a: Track, b: Track, agreement: Agreement) -> tuple[Accepted, Accepted]:
    """Walk both drafts through `text`; blocks at a's anchors are compared."""
    while min(a.anchor, b.anchor) < text.last:
        anchor = min(a.anchor, b.anchor)
        if a.anchor == anchor:
            agreement.add(a.block(anchor), b.block(anchor))
        else:
            b.block(anchor)
    return a.accepted(), b.accepted()
