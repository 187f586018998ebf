"""Speculative decoding: the draft proposes a block, the target verifies it in one pass, and so on.

prefill   the target reads the prompt and gives the first token; its features go into the draft's context
block     the draft proposes up to block_size − 1 tokens after the last emitted one (the anchor)
          the target processes [anchor, proposal]: row i predicts what follows i proposed tokens
          the longest confirmed prefix is emitted, and one token of the target's own
          the target forgets what was refused; the features of what stays extend the draft's context
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dflash_gguf.errors import UsageError
from dflash_gguf.executor.sampling import draw, softmax, verify_greedy, verify_sampled
from dflash_gguf.executor.selector import walk

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dflash_gguf.executor.ops import F32
    from dflash_gguf.executor.selector import Lattice


class DecodingTarget(Protocol):
    """What verifies: see target.NumpyTarget."""

    def extend(self, tokens: Sequence[int], predict: int) -> tuple[F32, F32]:
        """Process tokens; logits of the last `predict`, features of all."""

    def crop(self, length: int) -> None:
        """Forget positions from `length` on."""


class Draft(Protocol):
    """What proposes: see draft.DraftModel."""

    @property
    def max_draft(self) -> int:
        """Slots of a block."""

    def extend(self, features: F32) -> None:
        """Feed features of the next positions."""

    def lattice(self, anchor: int) -> Lattice:
        """Draft one block."""


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """How to decode. Temperatures of 0 are greedy; `n_max` None is the whole block."""

    n_predict: int
    n_max: int | None = None
    p_min: float = 0.0
    temperature: float = 0.0
    draft_temperature: float = 0.0
    seed: int = 0
    stop: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    """One round: how many tokens were proposed, how many of them were emitted, and how many tokens in all."""

    proposed: int
    accepted: int
    emitted: int


@dataclass(frozen=True, slots=True)
class Generation:
    """Emitted tokens (the first one is the prefill's) and the blocks that gave the others."""

    tokens: tuple[int, ...]
    blocks: tuple[DecodedBlock, ...]

    @property
    def n_draft(self) -> int:
        """Tokens proposed."""
        return sum(block.proposed for block in self.blocks)

    @property
    def n_accept(self) -> int:
        """Proposed tokens that were emitted."""
        return sum(block.accepted for block in self.blocks)

    @property
    def most_drafted(self) -> int:
        """Tokens proposed in the longest block."""
        return max((block.proposed for block in self.blocks), default=0)

    @property
    def accept_rate(self) -> float:
        """Accepted of proposed; falls as more is proposed, so compare `mean_accepted` instead."""
        return self.n_accept / self.n_draft if self.n_draft else 0.0

    @property
    def mean_accepted(self) -> float:
        """Accepted tokens a block, without the target's own (bonus) token."""
        return self.n_accept / len(self.blocks) if self.blocks else 0.0

    @property
    def mean_emitted(self) -> float:
        """Tokens a block, with the target's own."""
        return sum(block.emitted for block in self.blocks) / len(self.blocks) if self.blocks else 0.0


def speculate(draft: Draft, target: DecodingTarget, prompt: Sequence[int], settings: DecodeSettings) -> Generation:
    """Decode `settings.n_predict` tokens after `prompt`, or up to and including a stop token.

    Greedy, the tokens are the target's own greedy tokens whatever the draft proposes; sampled, they are
    distributed as the target's own. Raises UsageError for an empty prompt, ModelError as the models do.
    """
    if not prompt or settings.n_predict < 1:
        raise UsageError("there is nothing to decode", where="prompt", hint="give a prompt and at least -n 1")
    rng = np.random.default_rng(settings.seed)
    logits, features = target.extend(prompt, predict=1)
    draft.extend(features)
    tokens = [_pick(logits[-1], settings.temperature, rng)]
    blocks: list[DecodedBlock] = []
    while len(tokens) < settings.n_predict and tokens[-1] not in settings.stop:
        room = settings.n_predict - len(tokens)
        emitted, block = _round(draft, target, len(prompt) + len(tokens) - 1, tokens[-1], room, settings, rng)
        tokens += emitted
        blocks.append(block)
    return Generation(tuple(tokens), tuple(blocks))


def _round(
    draft: Draft,
    target: DecodingTarget,
    start: int,
    anchor: int,
    room: int,
    settings: DecodeSettings,
    rng: np.random.Generator,
) -> tuple[list[int], DecodedBlock]:
    """One block whose anchor stands at position `start`; at most `room` tokens are emitted, the bonus with them."""
    n_max = draft.max_draft if settings.n_max is None else settings.n_max
    proposal = walk(
        draft.lattice(anchor),
        n_max=min(n_max, room - 1),
        p_min=settings.p_min,
        temperature=settings.draft_temperature,
        rng=rng,
    )
    logits, features = target.extend((anchor, *proposal.tokens), predict=1 + len(proposal.tokens))
    if settings.temperature > 0:
        accepted, bonus = verify_sampled(proposal, logits, settings.temperature, rng)
    else:
        accepted, bonus = verify_greedy(proposal, logits)
    emitted = _up_to_stop([*proposal.tokens[:accepted], bonus], settings.stop)
    target.crop(start + 1 + accepted)
    draft.extend(features[: 1 + accepted])
    return emitted, DecodedBlock(len(proposal.tokens), min(accepted, len(emitted)), len(emitted))


def _up_to_stop(tokens: list[int], stop: Collection[int]) -> list[int]:
    ends = (i + 1 for i, token in enumerate(tokens) if token in stop)
    return tokens[: next(ends, len(tokens))]


def _pick(logits: F32, temperature: float, rng: np.random.Generator) -> int:
    if temperature > 0:
        return draw(softmax(logits / np.float32(temperature)), rng)
    return int(logits.argmax())
