"""The draft model against a transcription of the formulas, its masks and its refusals."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support.executor_builders import MEMORY, TINY, ArraySource, features, model, random_weights, tiny, vocabulary

from dflash_gguf.errors import ModelError, OutputError, UsageError
from dflash_gguf.executor import trace as trace_module
from dflash_gguf.executor.draft import DraftModel
from dflash_gguf.executor.ops import F32
from dflash_gguf.executor.selector import walk
from dflash_gguf.executor.trace import Probe
from dflash_gguf.executor.weights import RESERVE, Budget, Weights
from dflash_gguf.model.spec import DraftSpec

V1 = tiny(v2=None)
FULL = tiny(sliding_window=None, sliding_window_pattern=None)


def hidden(spec: DraftSpec, changes: dict[str, F32] | None = None) -> F32:
    """The slots of a block after nine positions of context; `changes` are other tensors."""
    drafted = model(spec, random_weights(spec) | (changes or {}))
    drafted.extend(features(spec, 9))
    return drafted.hidden(3)


def test_two_blocks_do_not_leak_into_one_another() -> None:
    drafted = model()
    drafted.extend(features(TINY, 9))
    first = drafted.hidden(3)
    drafted.hidden(11)
    assert (drafted.hidden(3) == first).all()


def test_context_fed_in_pieces_is_the_same_context() -> None:
    whole, pieces = model(), model()
    rows = features(TINY, 9)
    whole.extend(rows)
    for part in (rows[:1], rows[1:6], rows[6:]):
        pieces.extend(part)
    assert pieces.n_context == whole.n_context == 9
    assert pieces.hidden(3) == pytest.approx(whole.hidden(3), abs=1e-5)


def test_a_sliding_window_hides_what_is_far() -> None:
    """A block whose first step stands at 20 sees, through a window of 6, nothing before position 15."""
    sliding = tiny(sliding_window_pattern=(True, True))
    far, near = features(sliding, 20), features(sliding, 20)
    far[:15] += 1.0
    near[:16] += 1.0
    results = []
    for rows in (features(sliding, 20), far, near):
        drafted = model(sliding)
        drafted.extend(rows)
        results.append(drafted.hidden(3))
    assert (results[0] == results[1]).all()
    assert not np.allclose(results[0], results[2])


def test_one_full_layer_sees_everything() -> None:
    rows = features(TINY, 20)
    changed = rows.copy()
    changed[0] += 1.0
    first, second = model(), model()
    first.extend(rows)
    second.extend(changed)
    assert not np.allclose(first.hidden(3), second.hidden(3))


def test_causal_blocks_look_back_only() -> None:
    """With a causal flag the first slots cannot depend on how many masks follow; without it they do."""
    for causal, same in ((True, True), (False, False), (None, False)):
        short, long = tiny(causal=causal, block_size=3), tiny(causal=causal, block_size=5)
        assert np.allclose(hidden(short), hidden(long)[:2], atol=1e-6) is same


def test_step_0_of_a_block_takes_tap_0_only() -> None:
    """A causal v2 block of the anchor and one slot: tap 1 reaches the slot, never the anchor's own output."""
    spec = tiny(block_count=1, sliding_window_pattern=(False,), block_size=2, causal=True)
    base = random_weights(spec)["blk.0.attn_conv_base"]
    changed = base.copy()
    changed[:, 1] += 1.0
    probes = []
    for held in (base, changed):
        probe = Probe(keep=True)
        drafted = model(spec, random_weights(spec) | {"blk.0.attn_conv_base": held}, probe)
        drafted.extend(features(spec, 4))
        drafted.hidden(3)
        probes.append(probe.seen["block.0.attn_conv_in"])
    assert (probes[0][0] == probes[1][0]).all()
    assert not np.allclose(probes[0][1], probes[1][1])


def test_scales() -> None:
    """Each optional constant stands where the formulas put it."""
    assert hidden(tiny(embedding_scale=1.0)) == pytest.approx(hidden(TINY))
    assert not np.allclose(hidden(tiny(embedding_scale=2.0)), hidden(TINY))
    both = {
        f"blk.{layer}.attn_output.weight": random_weights(TINY)[f"blk.{layer}.attn_output.weight"] * 2
        for layer in (0, 1)
    }
    assert hidden(tiny(value_scale=2.0)) == pytest.approx(hidden(TINY, both), abs=1e-5)
    rows = hidden(TINY)
    plain = model().logits(rows)
    assert model(tiny(logit_scale=0.5)).logits(rows) == pytest.approx(plain * 0.5)
    capped = model(tiny(logit_scale=0.5, final_logit_softcapping=3.0)).logits(rows)
    assert capped == pytest.approx(3 * np.tanh(plain * 0.5 / 3), abs=1e-5)


def test_sinks_are_used_when_the_file_has_them() -> None:
    held = random_weights(TINY) | {f"blk.{layer}.attn_sinks.weight": np.full(4, 50, np.float32) for layer in (0, 1)}
    drafted = model(TINY, held)
    drafted.extend(features(TINY, 9))
    drafted.lattice(3)  # every tensor used
    no_attention = {f"blk.{layer}.attn_output.weight": np.zeros((32, 32), np.float32) for layer in (0, 1)}
    assert drafted.hidden(3) == pytest.approx(hidden(TINY, no_attention), abs=1e-5)  # the sinks took it all


def test_own_embedding_and_head_come_before_the_targets() -> None:
    rng = np.random.default_rng(2)
    own = {name: rng.standard_normal((20, 32), dtype=np.float32) for name in ("token_embd.weight", "output.weight")}
    weights = Weights(ArraySource(random_weights(TINY) | own), Budget(MEMORY))
    drafted = DraftModel(TINY, weights, None, Probe())
    drafted.extend(features(TINY, 9))
    rows = drafted.hidden(3)
    assert drafted.logits(rows) == pytest.approx(rows @ own["output.weight"].T, abs=1e-5)
    tied = Weights(ArraySource(random_weights(TINY) | {"token_embd.weight": own["token_embd.weight"]}), Budget(MEMORY))
    assert DraftModel(TINY, tied, None, Probe()).logits(rows) == pytest.approx(
        rows @ own["token_embd.weight"].T, abs=1e-5
    )


def test_without_a_target_a_draft_needs_its_own() -> None:
    drafted = DraftModel(TINY, Weights(ArraySource(random_weights(TINY)), Budget(MEMORY)), None, Probe())
    drafted.extend(features(TINY, 2))
    with pytest.raises(ModelError, match="no token embedding of its own"):
        drafted.hidden(3)


def test_dflash_1_is_the_arg_max_of_each_slot() -> None:
    drafted = model(V1)
    drafted.extend(features(V1, 9))
    logits = drafted.logits(drafted.hidden(3))
    lattice = drafted.lattice(3)
    proposal = walk(lattice, n_max=4)
    assert proposal.tokens == proposal.argmax == tuple(logits.argmax(axis=1))
    assert lattice.candidates.shape == (4, 10)  # llama.cpp's p_min looks at the top 10
    top = np.sort(logits[0])[::-1][:10].astype(np.float64)
    assert proposal.probabilities[0] == pytest.approx(1 / np.exp(top - top[0]).sum())


def test_selector_lattice_is_the_formula() -> None:
    held = random_weights(TINY)
    drafted = model(TINY, held)
    drafted.extend(features(TINY, 9))
    lattice, rows = drafted.lattice(3), drafted.hidden(3)
    pred, succ = held["selector_predecessor.weight"], held["selector_successor.weight"]
    for slot in range(4):
        gate = held["selector_hidden.weight"] @ rows[slot]
        before = [3] * 4 if slot == 0 else lattice.candidates[slot - 1]
        for a, previous in enumerate(before):
            for b, token in enumerate(lattice.candidates[slot]):
                score = lattice.unary[slot, b] + (pred[previous] * gate * succ[token]).sum()
                assert lattice.scores[slot, a, b] == pytest.approx(score, abs=1e-4)


def test_a_trace_names_everything(tmp_path: Path) -> None:
    probe = Probe(keep=True)
    drafted = model(TINY, probe=probe)
    drafted.extend(features(TINY, 9))
    drafted.lattice(3)
    probe.save(tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as trace:
        shapes = {name: trace[name].shape for name in trace}
    documented = trace_module.__doc__ or ""
    for name in shapes:
        last = name.split(".")[-1]
        assert re.search(rf"\b{last}\b", documented), name
    assert shapes["block.1.attn_conv_dynamic"] == (5, 2, 2, 4)
    assert shapes["block.1.q"] == (5, 4, 8)
    assert shapes["context.1.k"] == (9, 2, 8)
    assert shapes["selector.scores"] == (4, 4, 4)


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        Probe(keep=True).save(tmp_path / "no folder" / "t.npz")


def test_a_numbered_trace_keeps_blocks_apart() -> None:
    probe = Probe(keep=True, numbered=True)
    drafted = model(TINY, probe=probe)
    for count in (4, 2):
        drafted.extend(features(TINY, count))
        drafted.lattice(3)
    assert probe.seen["block0/context.fused"].shape == (4, 32)
    assert probe.seen["block1/context.fused"].shape == (2, 32)
    assert "block1/selector.scores" in probe.seen


def draft_one_block(held: dict[str, F32]) -> None:
    drafted = model(TINY, held)
    drafted.extend(features(TINY, 3))
    drafted.lattice(3)


@pytest.mark.parametrize("tensor", sorted(random_weights(TINY)))
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_or_inf_in_any_tensor_is_named(tensor: str, bad: float) -> None:
    held = random_weights(TINY)
    held[tensor] = held[tensor].copy()
    held[tensor].flat[-1] = bad
    with pytest.raises(ModelError, match="NaN or Inf") as caught:
        draft_one_block(held)
    assert tensor in str(caught.value)


def test_overflow_names_the_operation() -> None:
    held = random_weights(TINY)
    held["blk.1.ffn_up.weight"] = np.full_like(held["blk.1.ffn_up.weight"], 3e38)
    drafted = model(TINY, held)
    drafted.extend(features(TINY, 3))
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(ModelError, match=r"block\.1\.ffn_"):
        drafted.lattice(3)


def test_bad_features_are_named() -> None:
    rows = features(TINY, 3)
    rows[1, 5] = np.nan
    with pytest.raises(ModelError, match=r"context\.features gave NaN or Inf"):
        model().extend(rows)


def test_an_unused_tensor_stops_the_draft() -> None:
    held = random_weights(TINY) | {"blk.0.attn_gate.weight": np.ones((4, 4), np.float32)}
    drafted = model(TINY, held)
    drafted.extend(features(TINY, 3))
    with pytest.raises(ModelError, match=r"1 tensor of the file not used: blk\.0\.attn_gate\.weight"):
        drafted.lattice(3)


def test_the_budget_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_gguf.executor.weights.TILE_BYTES", 1024)  # many tiles even here
    results = []
    for memory in (RESERVE + 1, RESERVE + 12 * 1024, MEMORY):
        drafted = model(TINY, memory=memory)
        drafted.extend(features(TINY, 9))
        drafted.lattice(3)
        results.append(drafted.lattice(3).scores)
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()


def test_the_budget_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_gguf.executor.weights.TILE_BYTES", 1024)
    weights = Weights(ArraySource({"a": np.ones((1000, 32), np.float32)}), Budget(RESERVE + 8 * 1024))
    weights.linear("a", np.ones((2, 32), np.float32))
    assert sum(tile.nbytes for tile in weights._tiles.values()) == 8 * 1024


def test_a_budget_without_room() -> None:
    with pytest.raises(UsageError, match="--memory"):
        Budget(RESERVE)


def test_a_token_outside_the_codebook() -> None:
    weights = Weights(ArraySource({"a": np.ones((4, 3), np.float32)}), Budget(MEMORY))
    with pytest.raises(ModelError, match="token 4 is outside its 4 rows"):
        weights.rows("a", np.array([1, 4]))


def test_the_shared_vocabulary_is_what_embeds() -> None:
    table = vocabulary(TINY)
    assert (table.embed(np.array([2])) == table.table[2:3]).all()
