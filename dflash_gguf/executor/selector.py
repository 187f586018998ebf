"""From a block's logits to the tokens it proposes: candidates, pair scores, and a walk through them.

The lattice is what the model computes; the walk is what a caller chooses (limits, temperature). DFlash 1 has no
pair scores: its lattice says the same from every predecessor, and the walk is the arg-max of each slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_gguf.executor.ops import F32, I64
from dflash_gguf.executor.sampling import F64, Proposal, draw, softmax

#: Candidates per slot of a DFlash 1 draft; llama.cpp takes its p_min over the softmax of the top 10 logits.
V1_CANDIDATES = 10


@dataclass(frozen=True, slots=True)
class Lattice:
    """Per slot: candidates (S, C) by (logit desc, id asc), their logits `unary` (S, C), and `scores` (S, C, C).

    `scores[s, a, b]` is the score of candidate b of slot s after candidate a of slot s − 1; the predecessor of
    slot 0 is the anchor, so its rows are all the same.
    """

    candidates: I64
    unary: F32
    scores: F32


def top_candidates(logits: F32, count: int) -> tuple[I64, F32]:
    """The `count` largest logits of each row, by (logit descending, id ascending): ids and logits (S, count)."""
    ids = np.empty((len(logits), count), np.int64)
    for slot, row in enumerate(logits):
        least = np.partition(row, -count)[-count]
        able = np.flatnonzero(row >= least)  # ties at the edge are all in, so that the id decides
        ids[slot] = able[np.lexsort((able, -row[able]))][:count]
    return ids, np.take_along_axis(logits, ids, axis=1)


def pair_scores(unary: F32, gate: F32, predecessors: F32, successors: F32) -> F32:
    """`score(a → b) = logit(b) + Σ_r pred[a, r] · gate[r] · succ[b, r]` for every pair of candidates.

    unary (S, C), gate (S, R), predecessors and successors (S, C, R) → (S, C, C).
    """
    pairs = (predecessors * gate[:, None, :]) @ successors.transpose(0, 2, 1)
    return np.add(unary[:, None, :], pairs)


def walk(
    lattice: Lattice,
    *,
    n_max: int,
    p_min: float = 0.0,
    temperature: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Proposal:
    """Walk the lattice from the anchor, greedily or (temperature > 0) sampling `softmax(score / temperature)`.

    The walk ends after `n_max` slots, or before the first slot whose best candidate has a softmax probability
    below `p_min`. The best one's, not the sampled one's: a stop that depended on the token drawn would bend the
    distribution of what is emitted. Equal scores: the lower id.
    """
    tokens: list[int] = []
    probabilities: list[float] = []
    q_rows: list[F64] = []
    previous, stopped = 0, False
    for candidates, scores in zip(lattice.candidates[:n_max], lattice.scores[:n_max], strict=True):
        row = scores[previous]
        q = softmax(row)
        if q.max() < p_min:
            stopped = True
            break
        if rng is not None and temperature > 0:
            q = softmax(row / np.float32(temperature))
            chosen = draw(q, rng)
        else:
            chosen = int(min(np.flatnonzero(row == row.max()), key=lambda c: int(candidates[c])))
        tokens.append(int(candidates[chosen]))
        probabilities.append(float(q[chosen]))
        q_rows.append(q)
        previous = chosen
    return Proposal(
        tokens=tuple(tokens),
        candidates=lattice.candidates,
        probabilities=tuple(probabilities),
        q=np.array(q_rows).reshape(len(tokens), lattice.unary.shape[1]) if temperature > 0 else None,
        argmax=tuple(int(token) for token in lattice.candidates[:, 0]),
        stopped_by_p_min=stopped,
    )
