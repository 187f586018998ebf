"""`draft` and `generate` on files: what the two commands do, without printing."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dflash_gguf.errors import UsageError
from dflash_gguf.executor.blas_threads import one_blas_thread
from dflash_gguf.executor.decode import DecodeSettings, Generation, speculate
from dflash_gguf.executor.draft import DraftModel
from dflash_gguf.executor.features import load_features
from dflash_gguf.executor.loading import (
    numpy_target,
    open_draft,
    open_target,
    open_vocabulary,
    stop_tokens,
    vocabulary_of,
)
from dflash_gguf.executor.sampling import Proposal
from dflash_gguf.executor.selector import walk
from dflash_gguf.executor.text_tokenizer import TextTokenizer, tokenizer_of_folder, tokenizer_of_gguf
from dflash_gguf.executor.trace import Probe
from dflash_gguf.executor.weights import Budget
from dflash_gguf.model.remote import gguf_path, whole_target
from dflash_gguf.storage.hub import Hub
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from dflash_gguf.executor.loading import TargetWeights

DEFAULT_MEMORY = 4 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a block may go: `n_max` tokens (None: all), ending where the best candidate is below `p_min`."""

    n_max: int | None = None
    p_min: float = 0.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """Temperatures (0: greedy) and the seed of all random draws; the draft's temperature is the target's if None."""

    temperature: float = 0.0
    draft_temperature: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Drafted:
    """One block's proposal, and how many tokens it could have had."""

    proposal: Proposal
    max_draft: int


@dataclass(frozen=True, slots=True)
class Generated:
    """A whole decode: text after the prompt, its tokens, and the draft's limit of tokens a block."""

    text: str
    generation: Generation
    max_draft: int


def draft(
    file: str | Path,
    target: str | Path | None,
    features: str,
    anchor: int,
    *,
    limits: Limits | None = None,
    sampling: Sampling | None = None,
    memory: int = DEFAULT_MEMORY,
    trace: str | Path | None = None,
) -> Drafted:
    """Draft one block after the context that `features` describe; `anchor` stands at the position behind them.

    `file`: a GGUF, local or `hf://org/name/file.gguf`. `features`: a .npy or .safetensors file of (N, taps · H), or
    `random:N[:SEED]`. `target` (a folder, a GGUF or a repository on the Hub) lends its embedding and head; None when
    the draft has its own. `memory`: bytes to stay within; weights that do not fit are read again.
    Raises UsageError for values out of range, and what opening and computing raise.
    """
    limits, sampling = limits or Limits(), sampling or Sampling()
    _require_ranges(limits, sampling)
    probe, budget = Probe(keep=trace is not None), Budget(memory)
    with ExitStack() as files, one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        spec, weights = open_draft(gguf_path(str(file), Hub()), budget, files)
        if not 0 <= anchor < spec.vocab_size:
            raise UsageError(f"token {anchor} is not one of {spec.vocab_size}", where="--anchor")
        shared = None
        if target is not None:
            shared = vocabulary_of(open_vocabulary(str(target), budget, files), spec)
        model = DraftModel(spec, weights, shared, probe)
        model.extend(load_features(features, spec.embedding_length * len(spec.target_layers)))
        proposal = walk(
            model.lattice(anchor),
            n_max=spec.max_draft if limits.n_max is None else limits.n_max,
            p_min=limits.p_min,
            temperature=sampling.temperature,
            rng=np.random.default_rng(sampling.seed),
        )
    if trace is not None:
        probe.save(Path(trace))
    return Drafted(proposal, spec.max_draft)


def generate(
    file: str | Path,
    target: str | Path,
    prompt: str,
    n_predict: int,
    *,
    limits: Limits | None = None,
    sampling: Sampling | None = None,
    memory: int = DEFAULT_MEMORY,
    tokenizer: str | Path | None = None,
    ignore_eos: bool = False,
    trace: str | Path | None = None,
) -> Generated:
    """Decode `n_predict` tokens after `prompt` with the draft in `file` and a numpy target.

    `target`: a folder, a GGUF or a repository of a dense Qwen3- or Llama-like model; `tokenizer`: another folder
    with its tokenizer.json. Raises UsageError for values out of range, and what opening and computing raise.
    """
    limits, sampling = limits or Limits(), sampling or Sampling()
    _require_ranges(limits, sampling)
    probe, budget, hub = Probe(keep=trace is not None, numbered=True), Budget(memory), Hub()
    with ExitStack() as files, one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        spec, weights = open_draft(gguf_path(str(file), hub), budget, files)
        opened = open_target(whole_target(str(target), hub), budget, files, row_by_row=True)
        model = numpy_target(opened, spec)
        words = tokenizer_of(opened, tokenizer)
        settings = DecodeSettings(
            n_predict=n_predict,
            n_max=limits.n_max,
            p_min=limits.p_min,
            temperature=sampling.temperature,
            draft_temperature=_draft_temperature(sampling),
            seed=sampling.seed,
            stop=frozenset() if ignore_eos else stop_tokens(opened),
        )
        generation = speculate(DraftModel(spec, weights, model, probe), model, words.encode(prompt), settings)
    if trace is not None:
        probe.save(Path(trace))
    return Generated(words.decode(generation.tokens), generation, spec.max_draft)


def _draft_temperature(sampling: Sampling) -> float:
    return sampling.temperature if sampling.draft_temperature is None else sampling.draft_temperature


def tokenizer_of(opened: TargetWeights, folder: str | Path | None) -> TextTokenizer:
    """The target's own tokenizer, or that of another `folder`. Raises ModelError or FormatError."""
    if folder is not None:
        return tokenizer_of_folder(Path(folder))
    if opened.metadata is None:
        return tokenizer_of_folder(opened.path)
    return tokenizer_of_gguf(opened.metadata, str(opened.path))


def _require_ranges(limits: Limits, sampling: Sampling) -> None:
    if limits.n_max is not None and limits.n_max < 1:
        raise UsageError(
            f"{counted(limits.n_max, 'token', 'is', 'are')} no draft", where="--n-max", hint="1 to block_size − 1"
        )
    if not 0 <= limits.p_min <= 1:
        raise UsageError(f"{limits.p_min} is no probability", where="--p-min")
    for value, option in (
        (sampling.temperature, "--temperature"),
        (_draft_temperature(sampling), "--draft-temperature"),
    ):
        if not 0 <= value < math.inf:
            raise UsageError(f"{value} is no temperature", where=option, hint="0 is greedy")
    if sampling.seed < 0:
        raise UsageError(f"{sampling.seed} is negative", where="--seed")
