"""`compare(a, b, …)`: the library twin of the command."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash_gguf.comparison.agreement import Agreement, Drafter, SlotAgreement
from dflash_gguf.comparison.damage import TensorDamage, damage_map
from dflash_gguf.comparison.open_drafts import ComparedDraft, open_compared
from dflash_gguf.comparison.replay import Accepted, Track, greedy_text, replay
from dflash_gguf.errors import ModelError, UsageError
from dflash_gguf.executor.api import DEFAULT_MEMORY, tokenizer_of
from dflash_gguf.executor.blas_threads import one_blas_thread
from dflash_gguf.executor.features import load_features
from dflash_gguf.executor.loading import numpy_target, open_target, open_vocabulary, stop_tokens, vocabulary_of
from dflash_gguf.executor.weights import Budget
from dflash_gguf.model.remote import gguf_or_folder, whole_target
from dflash_gguf.storage.hub import Hub, parse_reference
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dflash_gguf.model.prompts import Prompt
    from dflash_gguf.model.spec import DraftSpec

MAX_BLOCKS = 16  # of one context that was given


@dataclass(frozen=True, slots=True)
class Inputs:
    """What both drafts are run on: prompts through the numpy target, or else `features`, given or random.

    `features` is a file or random:N[:SEED]; of its N positions up to MAX_BLOCKS prefixes are contexts, each with
    `anchor` behind it (None: random ones, seeded). `n_predict` tokens follow each prompt, `n_max` of them a block.
    """

    prompts: tuple[Prompt, ...] = ()
    features: str = "random:64"
    anchor: int | None = None
    n_predict: int = 64
    n_max: int | None = None


@dataclass(frozen=True, slots=True)
class SpecDifference:
    """A field of the geometry that differs."""

    field: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class PromptResult:
    """One prompt's decode with both drafts."""

    a: Accepted
    b: Accepted

    @property
    def same(self) -> bool:
        """Whether every block's accepted length is the same."""
        return self.a.accepted == self.b.accepted


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that was found; `prompts` is empty where nothing verified, `damage` has the worst tensor first."""

    a: str
    b: str
    differences: tuple[SpecDifference, ...]
    n_blocks: int
    n_same_paths: int
    slots: tuple[SlotAgreement, ...]
    prompts: tuple[PromptResult, ...]
    damage: tuple[TensorDamage, ...]

    @property
    def n_same_sequences(self) -> int:
        """Prompts on which both drafts had the same sequence of accepted lengths."""
        return sum(prompt.same for prompt in self.prompts)

    @property
    def equal(self) -> bool:
        """The verdict: the same sequences of accepted lengths or, where nothing verified, the same paths."""
        if self.prompts:
            return self.n_same_sequences == len(self.prompts)
        return self.n_same_paths == self.n_blocks

    @property
    def unexplained(self) -> tuple[TensorDamage, ...]:
        """Tensors that differ by more than their types explain."""
        return tuple(item for item in self.damage if not item.explained)


def totals(runs: Sequence[Accepted]) -> tuple[int, int, int]:
    """Blocks, tokens proposed and tokens accepted over several prompts."""
    return (
        sum(len(run.accepted) for run in runs),
        sum(sum(run.proposed) for run in runs),
        sum(sum(run.accepted) for run in runs),
    )


def compare(
    a: str | Path,
    b: str | Path,
    target: str | Path | None,
    inputs: Inputs,
    *,
    memory: int = DEFAULT_MEMORY,
    tokenizer: str | Path | None = None,
    on_prompt: Callable[[int], None] = lambda _: None,
) -> Comparison:
    """Run two drafts (GGUFs or checkpoint folders, local or on the Hub) on the same inputs.

    `target` lends embedding and head, and with prompts it is computed in numpy: a folder or a GGUF of a dense Qwen3-
    or Llama-like model. None only where both drafts have their own. `tokenizer`: a folder with another tokenizer.json.
    Raises UsageError for values out of range, ModelError for drafts that cannot be compared, and what opening and
    computing raise.
    """
    _require_ranges(inputs)
    hub = Hub()
    paths = [gguf_or_folder(str(draft), hub) for draft in (a, b)]
    if target is not None and inputs.prompts:
        target = whole_target(str(target), hub)
    with ExitStack() as files, one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        budget = Budget(memory)
        folder = None if target is None or parse_reference(str(target)) else Path(target)
        drafts = [open_compared(path, folder, budget, files) for path in paths]
        _require_comparable(*drafts)
        run = _Run(drafts[0], drafts[1], inputs, budget, files)
        prompts = run.prompts(target, tokenizer, on_prompt) if inputs.prompts else run.contexts(target)
        return Comparison(
            drafts[0].name,
            drafts[1].name,
            tuple(_differences(drafts[0].spec, drafts[1].spec)),
            run.agreement.n_blocks,
            run.agreement.n_same_paths,
            run.agreement.slots(),
            prompts,
            tuple(damage_map(*drafts)),
        )


class _Run:
    def __init__(self, a: ComparedDraft, b: ComparedDraft, inputs: Inputs, budget: Budget, files: ExitStack) -> None:
        self.drafts, self.inputs, self.budget, self.files = (a, b), inputs, budget, files
        self.agreement = Agreement(min(a.spec.max_draft, b.spec.max_draft))

    def prompts(
        self, target: str | Path | None, folder: str | Path | None, on_prompt: Callable[[int], None]
    ) -> tuple[PromptResult, ...]:
        """Each prompt's text by the target alone, then both drafts along it."""
        if target is None:
            raise UsageError("prompts need a target that can verify", where="--target", hint="or give --features")
        inputs, specs = self.inputs, [draft.spec for draft in self.drafts]
        opened = open_target(Path(target), self.budget, self.files, row_by_row=True)
        taps = tuple(sorted({tap for spec in specs for tap in spec.target_layers}))
        vocabularies = [vocabulary_of(opened, spec) for spec in specs]
        model = numpy_target(opened, replace(specs[0], target_layers=taps))
        words, stop = tokenizer_of(opened, folder), stop_tokens(opened)
        results = []
        for number, prompt in enumerate(inputs.prompts, 1):
            ids = words.encode(prompt.text)
            if not ids:
                raise ModelError("a prompt has no tokens", where="--prompts")
            text = greedy_text(model, ids, inputs.n_predict, stop)
            tracks = [
                Track(
                    text,
                    Drafter(draft, shared),
                    [taps.index(tap) for tap in draft.spec.target_layers],
                    inputs.n_predict,
                    draft.spec.max_draft if inputs.n_max is None else inputs.n_max,
                )
                for draft, shared in zip(self.drafts, vocabularies, strict=True)
            ]
            results.append(PromptResult(*replay(text, tracks[0], tracks[1], self.agreement)))
            on_prompt(number)
        if not self.agreement.n_blocks:
            raise ModelError("the target ended every text at once: no block to compare", where="--prompts")
        return tuple(results)

    def contexts(self, target: str | Path | None) -> tuple[PromptResult, ...]:
        """Features as they are given; nothing verifies."""
        widths = {draft.spec.embedding_length * len(draft.spec.target_layers) for draft in self.drafts}
        if len(widths) > 1:
            told = " and ".join(map(str, sorted(widths)))
            raise ModelError(f"the drafts want features of {told} values a position", where="--features")
        features = load_features(self.inputs.features, widths.pop())
        opened = None if target is None else open_vocabulary(str(target), self.budget, self.files)
        drafters = [
            Drafter(draft, None if opened is None else vocabulary_of(opened, draft.spec)) for draft in self.drafts
        ]
        rng, vocab = np.random.default_rng(0), self.drafts[0].spec.vocab_size
        if self.inputs.anchor is not None and self.inputs.anchor >= vocab:
            raise UsageError(f"token {self.inputs.anchor} is not one of {vocab}", where="--anchor")
        for length in sorted({round(n) for n in np.linspace(1, len(features), MAX_BLOCKS)}):
            anchor = int(rng.integers(vocab)) if self.inputs.anchor is None else self.inputs.anchor
            a, b = (drafter.at(features[:length], anchor) for drafter in drafters)
            self.agreement.add(a, b)
        return ()


def _differences(a: DraftSpec, b: DraftSpec) -> list[SpecDifference]:
    pairs = ((field.name, getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    return [SpecDifference(*pair) for pair in pairs if pair[1] != pair[2]]


def _require_comparable(a: ComparedDraft, b: ComparedDraft) -> None:
    for name in ("vocab_size", "embedding_length"):
        sizes = [getattr(draft.spec, name) for draft in (a, b)]
        if sizes[0] != sizes[1]:
            raise ModelError(
                f"{name} is {sizes[1]}, in {a.name} {sizes[0]}", where=b.name, hint="are they drafts of one target?"
            )


def _require_ranges(inputs: Inputs) -> None:
    if inputs.n_predict < 2:
        raise UsageError(f"{counted(inputs.n_predict, 'token', 'holds', 'hold')} no block", where="-n")
    if inputs.n_max is not None and inputs.n_max < 1:
        raise UsageError(
            f"{counted(inputs.n_max, 'token', 'is', 'are')} no draft", where="--n-max", hint="1 to block_size − 1"
        )
    if inputs.anchor is not None and inputs.anchor < 0:
        raise UsageError(f"{inputs.anchor} is no token", where="--anchor")
