"""What two drafts propose for the same blocks: agreement slot by slot.

path    both walks chose the same token                    top-1   the largest logit is the same token's
top-k   share of one's candidates that are the other's     KL      Σ p_a · (ln p_a − ln p_b) over the vocabulary, nats
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash_gguf.executor.draft import DraftModel
from dflash_gguf.executor.selector import walk
from dflash_gguf.executor.trace import Probe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dflash_gguf.comparison.open_drafts import ComparedDraft
    from dflash_gguf.executor.draft import SharedVocabulary
    from dflash_gguf.executor.ops import F32, I64


@dataclass(frozen=True, slots=True)
class ComparedBlock:
    """What a draft says of one block: the greedy path, the candidates (S, C) best first, all logits (S, vocab)."""

    path: tuple[int, ...]
    candidates: I64
    logits: F32


@dataclass(frozen=True, slots=True)
class SlotAgreement:
    """Means over all blocks for one slot (1 is the first after the anchor); `kl_max` is the largest of them."""

    slot: int
    path: float
    top_1: float
    top_k: float
    kl: float
    kl_max: float


class Drafter:
    """A draft and its context, which only grows: call `at` with anchors from left to right."""

    def __init__(self, draft: ComparedDraft, vocabulary: SharedVocabulary | None) -> None:
        self._probe = _LogitsProbe()
        self._model = DraftModel(draft.spec, draft.weights, vocabulary, self._probe)

    def at(self, features: F32, anchor: int) -> ComparedBlock:
        """The block behind the positions whose `features` (N, taps · H) are given, from the first one on."""
        if len(features) > self._model.n_context:
            self._model.extend(features[self._model.n_context :])
        lattice = self._model.lattice(anchor)
        path = walk(lattice, n_max=self._model.max_draft).tokens
        return ComparedBlock(path, lattice.candidates, self._probe.logits)


class _LogitsProbe(Probe):
    """Keeps the last block's logits."""

    def __init__(self) -> None:
        super().__init__()
        self.logits: F32 = np.empty((0, 0), np.float32)

    def __call__(self, name: str, array: Any) -> Any:
        if name == "block.logits":
            self.logits = array
        return super().__call__(name, array)


class Agreement:
    """Sums over pairs of blocks."""

    def __init__(self, slots: int) -> None:
        self.n_blocks = 0
        self.n_same_paths = 0
        self._sums = np.zeros((4, slots))
        self._kl_max = np.zeros(slots)

    def add(self, a: ComparedBlock, b: ComparedBlock) -> None:
        """Count one block."""
        slots = len(self._kl_max)
        kl = divergence(a.logits[:slots], b.logits[:slots])
        overlap = [_overlap(x, y) for x, y in zip(a.candidates[:slots], b.candidates[:slots], strict=True)]
        same = np.array(a.path[:slots]) == np.array(b.path[:slots])
        top_1 = a.candidates[:slots, 0] == b.candidates[:slots, 0]
        self._sums += np.array([same, top_1, overlap, kl], np.float64)
        self._kl_max = np.maximum(self._kl_max, kl)
        self.n_blocks += 1
        self.n_same_paths += bool(same.all())

    def slots(self) -> tuple[SlotAgreement, ...]:
        """The means; there has to be a block."""
        means = self._sums.T / self.n_blocks
        return tuple(
            SlotAgreement(slot, float(path), float(top_1), float(top_k), float(kl), float(most))
            for slot, ((path, top_1, top_k, kl), most) in enumerate(zip(means, self._kl_max, strict=True), 1)
        )


def _overlap(a: I64, b: I64) -> float:
    count = min(len(a), len(b))
    return len(set(a[:count].tolist()) & set(b[:count].tolist())) / count


def divergence(a: F32, b: F32) -> NDArray[np.float64]:
    """KL divergence of b from a, row by row, in nats: logits (S, vocab) twice → (S,)."""
    log_a, log_b = (_log_softmax(logits) for logits in (a, b))
    result: NDArray[np.float64] = np.maximum((np.exp(log_a) * (log_a - log_b)).sum(axis=1), 0)
    return result


def _log_softmax(logits: F32) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
