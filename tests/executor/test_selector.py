"""Candidates, the walk and its limits, with values worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.executor_builders import lattice

from dflash_gguf.executor.sampling import draw, softmax
from dflash_gguf.executor.selector import Lattice, pair_scores, top_candidates, walk


def test_candidates_by_logit_then_id() -> None:
    logits = np.array([[1, 3, 2, 3, 0, 2], [5, 5, 5, 5, 5, 5]], np.float32)
    ids, values = top_candidates(logits, 4)
    assert ids.tolist() == [[1, 3, 2, 5], [0, 1, 2, 3]]
    assert values.tolist() == [[3, 3, 2, 2], [5, 5, 5, 5]]


def test_candidates_may_be_the_whole_vocabulary() -> None:
    assert top_candidates(np.array([[1, 2, 0]], np.float32), 3)[0].tolist() == [[1, 0, 2]]


def test_pair_scores_by_hand() -> None:
    unary = np.array([[1.0, 2.0]], np.float32)
    gate = np.array([[10.0, -1.0]], np.float32)
    predecessors = np.array([[[1.0, 0.0], [0.0, 1.0]]], np.float32)
    successors = np.array([[[0.5, 3.0], [0.25, 4.0]]], np.float32)
    # a = 0: gate keeps r = 0 times 10; a = 1: r = 1 times −1
    assert pair_scores(unary, gate, predecessors, successors).tolist() == [[[1 + 5, 2 + 2.5], [1 - 3, 2 - 4]]]


def path_lattice() -> Lattice:
    """Two candidates a slot; the pair scores send the walk along 1 → 0 → 1, where the arg-max is 0, 0, 0."""
    scores = np.array([[[0, 1], [0, 1]], [[0, 5], [3, 0]], [[0, 2], [9, 0]]], np.float32)
    return Lattice(np.array([[10, 11], [20, 21], [30, 31]]), np.zeros((3, 2), np.float32), scores)


def test_the_walk_follows_its_own_predecessors() -> None:
    proposal = walk(path_lattice(), n_max=3)
    assert proposal.tokens == (11, 20, 31)
    assert proposal.argmax == (10, 20, 30)
    assert proposal.probabilities == pytest.approx(
        [1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-3)), 1 / (1 + math.exp(-2))]
    )
    assert not proposal.stopped_by_p_min
    assert proposal.q is None


@pytest.mark.parametrize(("n_max", "tokens"), [(1, (11,)), (2, (11, 20)), (3, (11, 20, 31)), (99, (11, 20, 31))])
def test_n_max(n_max: int, tokens: tuple[int, ...]) -> None:
    proposal = walk(path_lattice(), n_max=n_max)
    assert proposal.tokens == tokens
    assert len(proposal.candidates) == len(proposal.argmax) == 3


def test_p_min_stops_before_the_first_slot_below_it() -> None:
    third = math.log(3)  # 3 against 1: 0.75
    rows = [[third, 0.0], [0.0, 0.0], [third, 0.0]]
    for p_min, count in ((0.0, 3), (0.5, 3), (0.501, 1), (0.75 - 1e-6, 1), (0.75 + 1e-6, 0), (1.0, 0)):
        proposal = walk(lattice(rows), n_max=3, p_min=p_min)
        assert len(proposal.tokens) == len(proposal.probabilities) == count
        assert proposal.stopped_by_p_min == (count < 3)


def test_p_min_is_not_asked_beyond_n_max() -> None:
    assert not walk(lattice([[9.0, 0.0], [0.0, 0.0]]), n_max=1, p_min=0.9).stopped_by_p_min


def test_equal_scores_take_the_lower_id() -> None:
    assert walk(lattice([[1.0, 1.0, 0.0]], [[7, 3, 1]]), n_max=1).tokens == (3,)


def test_sampled_walk_returns_what_it_sampled_from() -> None:
    proposal = walk(path_lattice(), n_max=3, temperature=2.0, rng=np.random.default_rng(1))
    assert proposal.q is not None
    assert proposal.q.shape == (3, 2)
    assert proposal.q[0] == pytest.approx([1 / (1 + math.exp(0.5)), 1 / (1 + math.exp(-0.5))])
    first = list(proposal.candidates[0]).index(proposal.tokens[0])
    assert proposal.q[1] == pytest.approx(softmax(path_lattice().scores[1, first] / 2))


def test_sampling_stops_by_the_best_candidate_not_by_the_drawn_one() -> None:
    rows = [[math.log(3), 0.0]] * 3
    lengths = {len(walk(lattice(rows), n_max=3, p_min=0.7, temperature=5.0, rng=rng).tokens) for rng in generators(50)}
    assert lengths == {3}
    nothing = walk(lattice(rows), n_max=3, p_min=0.8, temperature=5.0, rng=np.random.default_rng(0))
    assert nothing.tokens == ()
    assert nothing.q is not None
    assert nothing.q.shape == (0, 2)


def generators(count: int) -> list[np.random.Generator]:
    return [np.random.default_rng(seed) for seed in range(count)]


class Fixed:
    """A generator that gives the same number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


@pytest.mark.parametrize(("u", "index"), [(0.0, 1), (0.2499, 1), (0.25, 3), (0.9999999, 3)])
def test_draw_never_takes_an_impossible_index(u: float, index: int) -> None:
    rng: Any = Fixed(u)
    assert draw(np.array([0.0, 0.25, 0.0, 0.75, 0.0]), rng) == index
