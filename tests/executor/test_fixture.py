"""The trained pair: every block's accepted length is the reference's, and no mistake of an export goes unseen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.executor_fixture import FIXTURES, Export, Replay, Run, converted, exported, mean, runs

from dflash_gguf.executor.blas_threads import one_blas_thread
from dflash_gguf.executor.decode import DecodeSettings, Generation, speculate
from dflash_gguf.executor.draft import DraftModel
from dflash_gguf.executor.loading import numpy_target, open_draft, open_target, stop_tokens
from dflash_gguf.executor.trace import Probe
from dflash_gguf.executor.weights import Budget

MEMORY = 1 << 30
NEW_TOKENS = 64


@pytest.fixture(scope="module")
def rows() -> list[Run]:
    """What the reference did with the DFlash 2 draft."""
    return runs("draft")


@pytest.fixture(scope="module")
def file(rows: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The DFlash 2 draft in BF16."""
    return converted(tmp_path_factory.mktemp("fixture"), "draft", "bf16")


def decode(file: Path, row: Run, **settings: Any) -> Generation:
    """Decode a prompt as the reference did."""
    with ExitStack() as files, one_blas_thread():
        budget = Budget(MEMORY)
        spec, weights = open_draft(file, budget, files)
        opened = open_target(FIXTURES / "target", budget, files, row_by_row=True)
        target = numpy_target(opened, spec)
        asked = DecodeSettings(NEW_TOKENS, stop=stop_tokens(opened), **settings)
        return speculate(DraftModel(spec, weights, target, Probe()), target, row.prompt, asked)


def accepted(done: Generation, row: Run) -> list[int]:
    """Accepted lengths of as many blocks as the reference's whole ones."""
    return [block.accepted for block in done.blocks][: len(row.whole)]


@pytest.mark.parametrize("draft", ["draft", "draft-v1"])
def test_sequences_of_accepted_lengths(draft: str, tmp_path: Path) -> None:
    rows = runs(draft)
    file = converted(tmp_path, draft, "bf16")
    assert len(rows) >= 20
    for row in rows:
        done = decode(file, row)
        assert list(done.tokens) == row.text
        assert accepted(done, row) == row.whole


def test_the_draft_is_worth_having(rows: list[Run]) -> None:
    assert mean([row.whole for row in rows]) >= 3.0


@pytest.mark.parametrize("settings", [{"n_max": 1}, {"n_max": 3}, {"p_min": 0.9}, {"draft_temperature": 2.0}])
def test_the_text_does_not_depend_on_the_draft(file: Path, rows: list[Run], settings: dict[str, Any]) -> None:
    for row in rows[:4]:
        assert list(decode(file, row, **settings).tokens) == row.text


@pytest.fixture(scope="module")
def replay(rows: list[Run], file: Path) -> Iterator[Replay]:
    """The reference's texts, with the target's states."""
    with ExitStack() as files, one_blas_thread():
        yield Replay(rows, exported(file).spec, files)


def test_replay_is_the_decode(replay: Replay, file: Path) -> None:
    assert list(replay.sequences(exported(file))) == [row.whole for row in replay.rows]


def test_quantized_drafts(replay: Replay, file: Path, tmp_path: Path) -> None:
    whole = [row.whole for row in replay.rows]
    q8_0 = list(replay.sequences(exported(converted(tmp_path, "draft", "q8_0"))))
    same = sum(a == b for a, b in zip(q8_0, whole, strict=True))
    assert same >= 0.9 * len(whole)
    q4_k_m = list(replay.sequences(exported(converted(tmp_path, "draft", "q4_k_m"))))
    assert mean(q4_k_m) == pytest.approx(mean(whole), rel=0.1)


# Mistakes of an export, planted in what the file says. Fault: the export in, the wrong export out.

Fault = Callable[[Export], Export]


def spec(**changes: Any) -> Fault:
    return lambda export: Export(replace(export.spec, **changes), export.arrays)


def arrays(act: Callable[[str, Any], Any], *ends: str) -> Fault:
    """`act(name, array)` on every tensor whose name ends so."""

    def fault(export: Export) -> Export:
        changed = {n: act(n, a) if n.endswith(ends) else a for n, a in export.arrays.items()}
        assert any(changed[n] is not export.arrays[n] for n in changed)
        return Export(export.spec, changed)

    return fault


def swapped(first: str, second: str) -> Fault:
    """Tensors named with `first` and with `second` change places."""

    def fault(export: Export) -> Export:
        def other(name: str) -> str:
            return name.replace(first, second) if first in name else name.replace(second, first)

        return Export(export.spec, {name: export.arrays[other(name)] for name in export.arrays})

    return fault


def zero(_: str, array: Any) -> Any:
    return np.zeros_like(array)


def one(_: str, array: Any) -> Any:
    return np.ones_like(array)


def flip(axis: int, sides: int = 2, taps: int = 2) -> Callable[[str, Any], Any]:
    """Reverse an axis of a conv projection seen as (side, tap, group, H)."""
    return lambda _, array: np.flip(array.reshape(sides, taps, -1, array.shape[-1]), axis).reshape(array.shape)


def taps(act: Callable[[Any], Any]) -> Fault:
    """`act` on fc seen as (H, tap, H)."""
    return arrays(lambda _, array: act(array.reshape(len(array), -1, len(array))).reshape(array.shape), "fc.weight")


def without(axis_1: int) -> Callable[[Any], Any]:
    def act(view: Any) -> Any:
        copy = view.copy()
        copy[:, axis_1] = 0
        return copy

    return act


def pairs_side_by_side(_: str, array: Any) -> Any:
    """Rows of each head as for a rope that turns neighbours."""
    heads = array.reshape(-1, 2, 32, *array.shape[1:])
    return heads.swapaxes(1, 2).reshape(array.shape)


def target_layers(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Fault:
    return lambda export: Export(replace(export.spec, target_layers=change(export.spec.target_layers)), export.arrays)


def relative(**changes: Callable[[Any], Any]) -> Fault:
    """Fields of the spec as functions of what they are."""
    return lambda export: Export(
        replace(export.spec, **{name: f(getattr(export.spec, name)) for name, f in changes.items()}), export.arrays
    )


def smaller_top_k(export: Export) -> Export:
    v2 = export.spec.v2
    assert v2 is not None
    return Export(replace(export.spec, v2=replace(v2, selector_top_k=v2.selector_top_k // 2)), export.arrays)


FAULTS: dict[str, Fault] = {
    "codebooks swapped": swapped("predecessor", "successor"),
    "hidden_projection zero": arrays(zero, "selector_hidden.weight"),
    "predecessor rows shifted by one": arrays(lambda _, a: np.roll(a, 1, 0), "selector_predecessor.weight"),
    "conv base taps reversed": arrays(lambda _, a: a[:, ::-1], "_conv_base"),
    "conv base sides swapped": arrays(lambda _, a: a[::-1], "_conv_base"),
    "kernel_projection zero": arrays(zero, "_conv_proj.weight"),
    "kernel_projection sides swapped": arrays(flip(0), "_conv_proj.weight"),
    "kernel_projection taps swapped": arrays(flip(1), "_conv_proj.weight"),
    "target layers with a repeat": target_layers(lambda layers: (layers[0], *layers[:-1])),
    "target layers reversed": target_layers(lambda layers: layers[::-1]),
    "mask id - 1": relative(mask_token_id=lambda mask: mask - 1),
    "causal flipped": relative(causal=lambda causal: not causal),
    "window dropped": spec(sliding_window=None, sliding_window_pattern=None),
    "window halved": relative(sliding_window=lambda window: window // 2),
    "rope theta 1e6": spec(rope_freq_base=1e6),
    "enc norm = 1": arrays(one, "enc.output_norm.weight"),
    "q and k norms = 1": arrays(one, "attn_q_norm.weight", "attn_k_norm.weight"),
    "fc taps exchanged": taps(lambda view: view[:, [1, 0, *range(2, view.shape[1])]]),
    "fc one tap zero": taps(without(1)),
    "fc zero": arrays(zero, "fc.weight"),
    "attn_v of a layer zero": arrays(zero, "blk.1.attn_v.weight"),
    # beyond the twenty-one
    "target layers not shifted": target_layers(lambda layers: tuple(layer - 1 for layer in layers)),
    "target layers shifted twice": target_layers(lambda layers: tuple(layer + 1 for layer in layers)),
    "window pattern reversed": relative(sliding_window_pattern=lambda pattern: pattern[::-1]),
    "rope rows permuted": arrays(pairs_side_by_side, "attn_q.weight", "attn_k.weight"),
    "rotary on half of the dims": spec(rope_dimension_count=32),
    "output norm = 1": arrays(lambda n, a: a if n.startswith("enc.") else np.ones_like(a), "output_norm.weight"),
    "attention norms = 1": arrays(one, "attn_norm.weight"),
    "ffn norms = 1": arrays(one, "ffn_norm.weight"),
    "norms + 1": arrays(lambda _, a: a + 1, "_norm.weight"),
    "layers swapped": swapped("blk.0.", "blk.1."),
    "gate and up swapped": swapped("ffn_gate", "ffn_up"),
    "convs of attention and ffn swapped": swapped("attn_conv", "ffn_conv"),
    "selector top_k halved": smaller_top_k,
    "embedding scaled by sqrt(H)": spec(embedding_scale=16.0),
    "logits capped at 5": spec(final_logit_softcapping=5.0),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_mistake_changes_a_sequence(name: str, replay: Replay, file: Path) -> None:
    wrong = FAULTS[name](exported(file))
    sequences = replay.sequences(wrong)
    assert any(lengths != row.whole for lengths, row in zip(sequences, replay.rows, strict=True))
