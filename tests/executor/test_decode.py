"""The decode loop: accepted runs, budgets, stops, and that nothing a draft does changes what is emitted."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from support.executor_builders import ScriptedDraft, TableTarget, lattice

from dflash_gguf.errors import UsageError
from dflash_gguf.executor.decode import DecodedBlock, DecodeSettings, speculate
from dflash_gguf.executor.ops import F32
from dflash_gguf.executor.sampling import softmax
from dflash_gguf.executor.selector import Lattice

VOCAB = 20


def counting(tokens: list[int]) -> F32:
    """The next token is one more than the last, modulo VOCAB."""
    row = np.zeros(VOCAB, np.float32)
    row[(tokens[-1] + 1) % VOCAB] = 1.0
    return row


def right_for(count: int, slots: int = 4) -> object:
    """A lattice maker: its first `count` slots count on from the anchor, the others are wrong."""

    def make(tokens: list[int]) -> Lattice:
        ids = [[(tokens[-1] + 1 + slot) % VOCAB if slot < count else (tokens[-1] + 5) % VOCAB] for slot in range(slots)]
        return lattice([[0.0]] * slots, ids)

    return make


class Runs:
    """Right for 3, 2, 1, 0, 3, … slots, block by block."""

    def __init__(self, runs: list[int]) -> None:
        self.runs, self.block = runs, 0

    def __call__(self, tokens: list[int]) -> Lattice:
        count = self.runs[self.block % len(self.runs)]
        self.block += 1
        made: Lattice = right_for(count)(tokens)  # type: ignore[operator]
        return made


def test_accepted_runs_3_2_1_0() -> None:
    draft, target = ScriptedDraft(Runs([3, 2, 1, 0])), TableTarget(counting)
    done = speculate(draft, target, [0], DecodeSettings(n_predict=50, stop=frozenset({11})))
    assert [block.accepted for block in done.blocks] == [3, 2, 1, 0]
    assert [block.proposed for block in done.blocks] == [4, 4, 4, 4]
    assert done.tokens == tuple(range(1, 12))
    assert (done.mean_accepted, done.mean_emitted) == (1.5, 2.5)
    assert (done.n_draft, done.n_accept) == (16, 6)
    assert done.accept_rate == pytest.approx(6 / 16)


def test_the_draft_sees_exactly_what_was_emitted() -> None:
    draft, target = ScriptedDraft(Runs([3, 0, 2])), TableTarget(counting)
    done = speculate(draft, target, [7, 8], DecodeSettings(n_predict=20))
    text = [7, 8, *done.tokens]
    assert draft.context == text[: len(draft.context)]
    assert len(draft.context) == len(text) - 1  # the last token has not been processed
    assert target.tokens == text[:-1]


@pytest.mark.parametrize("n_predict", range(1, 12))
def test_the_budget_is_met_exactly(n_predict: int) -> None:
    done = speculate(ScriptedDraft(Runs([4])), TableTarget(counting), [0], DecodeSettings(n_predict))
    assert done.tokens == tuple(i % VOCAB for i in range(1, n_predict + 1))
    assert sum(block.emitted for block in done.blocks) == n_predict - 1


def test_n_max_limits_every_block() -> None:
    done = speculate(ScriptedDraft(Runs([4])), TableTarget(counting), [0], DecodeSettings(13, n_max=2))
    assert done.blocks == (DecodedBlock(2, 2, 3),) * 4


@pytest.mark.parametrize(("stop", "blocks"), [(1, ()), (3, (DecodedBlock(4, 2, 2),)), (6, (DecodedBlock(4, 4, 5),))])
def test_a_stop_token_ends_the_text(stop: int, blocks: tuple[DecodedBlock, ...]) -> None:
    done = speculate(ScriptedDraft(Runs([4])), TableTarget(counting), [0], DecodeSettings(50, stop=frozenset({stop})))
    assert done.tokens == tuple(range(1, stop + 1))
    assert done.blocks == blocks


def test_no_blocks_no_division() -> None:
    done = speculate(ScriptedDraft(Runs([4])), TableTarget(counting), [0], DecodeSettings(1))
    assert (done.accept_rate, done.mean_accepted, done.mean_emitted) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("prompt", "n_predict"), [([], 4), ([1], 0)])
def test_nothing_to_decode(prompt: list[int], n_predict: int) -> None:
    with pytest.raises(UsageError, match="nothing to decode"):
        speculate(ScriptedDraft(Runs([4])), TableTarget(counting), prompt, DecodeSettings(n_predict))


# Losslessness: a vocabulary of 6, a target that looks at two tokens, a draft that knows better or worse.

SMALL, LENGTH = 6, 3
_TABLE = np.random.default_rng(0).standard_normal((SMALL, SMALL, SMALL)).astype(np.float32) * 1.5
_DRAFT = np.random.default_rng(1).standard_normal((SMALL, 3, 4, 4)).astype(np.float32) * 1.5


def small_target(tokens: list[int]) -> F32:
    row: F32 = _TABLE[tokens[-2] if len(tokens) > 1 else 0, tokens[-1]]
    return row


def small_draft(tokens: list[int]) -> Lattice:
    """Four candidates of six in each of three slots, with real pair scores; some ids can never be drafted."""
    anchor = tokens[-1]
    ids = np.array([[(anchor + slot + i) % SMALL for i in range(4)] for slot in range(3)])
    return Lattice(ids, np.zeros((3, 4), np.float32), _DRAFT[anchor])


def expected_distribution(temperature: float) -> dict[tuple[int, ...], float]:
    """Probability of every text of LENGTH tokens after the prompt [2], by the target alone."""
    result = {}
    for text in product(range(SMALL), repeat=LENGTH):
        probability, tokens = 1.0, [2]
        for token in text:
            probability *= softmax(small_target(tokens) / np.float32(temperature))[token]
            tokens.append(token)
        result[text] = float(probability)
    return result


def chi_square(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float], n: int) -> tuple[float, int]:
    """The statistic and its degrees of freedom; cells expecting fewer than 5 are one."""
    statistic, cells, rare, rare_seen = 0.0, 0, 0.0, 0
    for text, probability in expected.items():
        if probability * n < 5:
            rare, rare_seen = rare + probability * n, rare_seen + counts[text]
        else:
            statistic, cells = statistic + (counts[text] - probability * n) ** 2 / (probability * n), cells + 1
    return statistic + (rare_seen - rare) ** 2 / rare, cells


def sampled(settings: DecodeSettings, runs: int) -> Counter[tuple[int, ...]]:
    seeds = (
        DecodeSettings(LENGTH, 3, settings.p_min, settings.temperature, settings.draft_temperature, s)
        for s in range(runs)
    )
    draws = (speculate(ScriptedDraft(small_draft, 3), TableTarget(small_target), [2], s).tokens for s in seeds)
    return Counter(draws)


@pytest.mark.parametrize(
    ("temperature", "draft_temperature", "p_min"),
    [(1.0, 0.3, 0.0), (1.0, 1.0, 0.0), (1.0, 2.0, 0.0), (0.7, 1.0, 0.5), (1.3, 0.0, 0.0)],
)
def test_sampling_is_lossless(temperature: float, draft_temperature: float, p_min: float) -> None:
    runs = 6000
    settings = DecodeSettings(LENGTH, p_min=p_min, temperature=temperature, draft_temperature=draft_temperature)
    statistic, freedom = chi_square(sampled(settings, runs), expected_distribution(temperature), runs)
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)  # about one in 10⁴ honest samples fails; the seeds are fixed


def test_the_test_of_losslessness_can_fail() -> None:
    """The same statistic against the distribution of another temperature."""
    runs = 6000
    counts = sampled(DecodeSettings(LENGTH, temperature=1.0, draft_temperature=1.0), runs)
    statistic, freedom = chi_square(counts, expected_distribution(1.25), runs)
    assert statistic > freedom + 8 * np.sqrt(2 * freedom)


def test_same_seed_same_text() -> None:
    texts = {
        speculate(
            ScriptedDraft(small_draft, 3), TableTarget(small_target), [2], DecodeSettings(40, None, 0.0, 1.0, 1.0, 5)
        ).tokens
        for _ in range(3)
    }
    assert len(texts) == 1
