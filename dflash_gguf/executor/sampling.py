"""A block's proposal, and the test that makes speculative decoding lossless. Probabilities are float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dflash_gguf.executor.ops import F32, I64

F64: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one block proposes.

    `tokens` are to be verified in this order; `probabilities` has, for every slot walked, the chosen candidate's
    softmax probability (its q when sampled), `q` (slots, C) the distributions the tokens were sampled from, None
    when greedy. `argmax` is each slot's most likely token without the selector.
    """

    tokens: tuple[int, ...]
    candidates: I64
    probabilities: tuple[float, ...]
    q: F64 | None
    argmax: tuple[int, ...]
    stopped_by_p_min: bool


def softmax(logits: NDArray[np.floating[Any]]) -> F64:
    """Probabilities over the last axis."""
    shifted = logits.astype(np.float64)
    weights = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    result: F64 = weights / weights.sum(axis=-1, keepdims=True)
    return result


def draw(p: F64, rng: np.random.Generator) -> int:
    """One index, with probability p; an index of probability 0 is never drawn."""
    cumulative = np.cumsum(p)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def verify_greedy(proposal: Proposal, logits: F32) -> tuple[int, int]:
    """How many proposed tokens the target's arg-max confirms, and the target's own next token.

    `logits` (len(tokens) + 1, V): row i is the target's prediction after i proposed tokens.
    """
    choice = logits.argmax(axis=-1)
    accepted = 0
    while accepted < len(proposal.tokens) and proposal.tokens[accepted] == choice[accepted]:
        accepted += 1
    return accepted, int(choice[accepted])


def verify_sampled(proposal: Proposal, logits: F32, temperature: float, rng: np.random.Generator) -> tuple[int, int]:
    """Lossless rejection sampling: what is emitted is distributed as `p = softmax(logits / temperature)`.

    A token drafted with probability q is accepted with probability min(1, p/q); at the first refusal the next
    token is drawn from max(0, p − q), normalised. Source: arXiv 2211.17192, algorithm 1. A greedy draft is the
    case q = 1 for its token.
    """
    p = softmax(logits / np.float32(temperature))
    for slot, token in enumerate(proposal.tokens):
        q = np.zeros(p.shape[1])
        if proposal.q is None:
            q[token] = 1.0
        else:
            q[proposal.candidates[slot]] = proposal.q[slot]
        if rng.random() * q[token] < p[slot, token]:
            continue
        rest = np.maximum(p[slot] - q, 0)
        return slot, draw(rest if rest.any() else p[slot], rng)
    return len(proposal.tokens), draw(p[-1], rng)
