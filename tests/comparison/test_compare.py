"""What a quantization costs, and what a mistake looks like."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.builders import random_tensors, v2_config, write_draft
from support.builders_gguf import Parts
from support.executor_fixture import FIXTURES
from support.measured_drafts import (
    TARGET,
    Fault,
    exchange_q_and_k,
    faulty,
    prompts,
    reference,
    transpose_conv_base,
    unshift_target_layers,
    wrong_mask,
)
from support.processes import Run

from dflash_gguf.comparison import Comparison, Inputs, compare
from dflash_gguf.comparison.agreement import Agreement, ComparedBlock, divergence
from dflash_gguf.comparison.api import totals
from dflash_gguf.errors import DflashError, ModelError, UsageError
from dflash_gguf.executor.api import Limits, generate
from dflash_gguf.mxfp8 import write_mxfp8

SOME = (3, 7, 16, 22, 23)


def run_prompts(a: Path, b: Path, numbers: Sequence[int] = SOME, n_max: int | None = None) -> Comparison:
    return compare(a, b, TARGET, Inputs(prompts(*numbers), n_max=n_max))


@pytest.fixture(scope="module")
def against_q4(files: dict[str, Path]) -> Comparison:
    return run_prompts(files["bf16"], files["q4_k_m"])


def test_accepted_lengths_are_the_references(against_q4: Comparison) -> None:
    for number, prompt in zip(SOME, against_q4.prompts, strict=True):
        told = reference("draft", number)
        whole = len(told["accepted"]) - told["last_block_cut"]
        assert list(prompt.a.accepted[:whole]) == told["accepted"][:whole]


@pytest.mark.parametrize("n_max", [None, pytest.param(3, marks=pytest.mark.slow)])
def test_a_replay_is_the_decode(files: dict[str, Path], n_max: int | None) -> None:
    """Both drafts' blocks are those of `generate`, the last ones too, which the budget or the end token cuts."""
    numbers = (7, 20, 23)
    found = run_prompts(files["bf16"], files["q4_k_m"], numbers, n_max)
    for prompt, told in zip(prompts(*numbers), found.prompts, strict=True):
        for kind, run in (("bf16", told.a), ("q4_k_m", told.b)):
            blocks = generate(files[kind], TARGET, prompt.text, 64, limits=Limits(n_max)).generation.blocks
            assert run.accepted == tuple(block.accepted for block in blocks)
            assert run.proposed == tuple(block.proposed for block in blocks)


def test_the_verdict_is_the_sequence(files: dict[str, Path], against_q4: Comparison) -> None:
    """Q4_K_M's mean is as good as BF16's; that blocks differ shows all the same."""
    a, b = (totals([getattr(prompt, side) for prompt in against_q4.prompts]) for side in "ab")
    assert b[2] / b[0] == pytest.approx(a[2] / a[0], rel=0.1)
    assert not against_q4.equal
    assert 0 < against_q4.n_same_sequences < len(SOME)
    q8_0 = run_prompts(files["bf16"], files["q8_0"])
    assert q8_0.n_same_sequences > against_q4.n_same_sequences
    assert max(slot.kl for slot in q8_0.slots) < min(slot.kl for slot in against_q4.slots)


def test_quantization_explains_the_damage(against_q4: Comparison) -> None:
    assert not against_q4.unexplained
    assert not against_q4.differences
    rmse = {item.name: item.rmse for item in against_q4.damage}
    assert rmse["output_norm.weight"] == 0
    assert rmse["fc.weight"] == pytest.approx(0.07, rel=0.1)


FAULTS: dict[str, tuple[Fault, set[str], set[str]]] = {
    "q and k exchanged": (exchange_q_and_k, {"blk.1.attn_q.weight", "blk.1.attn_k.weight"}, set()),
    "conv base transposed": (transpose_conv_base, {"blk.0.ffn_conv_base"}, set()),
    "target layers not shifted": (unshift_target_layers, set(), {"target_layers"}),
    "mask id - 1": (wrong_mask, set(), {"mask_token_id"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_shows(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    fault, tensors, fields = FAULTS[name]
    found = run_prompts(files["bf16"], faulty(files["bf16"], tmp_path / "bad.gguf", fault))
    assert not found.equal
    assert found.n_same_sequences < len(SOME)
    assert {item.name for item in found.unexplained} == tensors
    assert {item.name for item in found.damage[: len(tensors)]} == tensors
    assert {item.field for item in found.differences} == fields


def test_a_fault_in_a_quantized_file_stands_out(files: dict[str, Path], tmp_path: Path) -> None:
    bad = faulty(files["q4_k_m"], tmp_path / "bad.gguf", transpose_conv_base)
    found = compare(files["bf16"], bad, TARGET, Inputs())
    assert [item.name for item in found.unexplained] == ["blk.0.ffn_conv_base"]
    assert found.damage[0] is found.unexplained[0]


def test_q_and_k_of_unequal_shapes_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    def swap(parts: Parts) -> None:
        q, k = "blk.1.attn_q.weight", "blk.1.attn_k.weight"
        parts.tensors[q], parts.tensors[k] = parts.tensors[k], parts.tensors[q]

    bad = faulty(files["bf16"], tmp_path / "bad.gguf", swap)
    with pytest.raises(ModelError, match=r"bad\.gguf: blk\.1\.attn_[qk]\.weight"):
        compare(files["bf16"], bad, TARGET, Inputs())


def own_vocabulary(folder: Path, *, swapped: bool = False) -> Path:
    """A small draft of random weights with as many k heads as q heads, an embedding and a head of its own."""
    config = v2_config(num_key_value_heads=4, vocab_size=256, mask_token_id=255)
    tensors = random_tensors(config)
    rng = np.random.default_rng(4)
    for name in ("embed_tokens.weight", "lm_head.weight"):
        tensors[name] = rng.integers(0x3C00, 0x3E00, (256, 64)).astype(np.uint16)
    if swapped:
        q, k = (f"layers.1.self_attn.{name}_proj.weight" for name in "qk")
        tensors[q], tensors[k] = tensors[k], tensors[q]
    return write_draft(folder, config, tensors)


def test_a_whole_swap_without_a_target(tmp_path: Path) -> None:
    good = own_vocabulary(tmp_path / "good")
    bad = own_vocabulary(tmp_path / "bad", swapped=True)
    found = compare(good, bad, None, Inputs())
    assert {item.name for item in found.unexplained} == {"blk.1.attn_q.weight", "blk.1.attn_k.weight"}
    assert max(slot.kl for slot in found.slots) > 0
    assert compare(good, good, None, Inputs()).equal


def test_a_checkpoint_is_its_bf16_file(files: dict[str, Path]) -> None:
    found = compare(FIXTURES / "draft", files["bf16"], TARGET, Inputs())
    assert found.equal
    assert not found.differences
    assert all(item.rmse == 0 for item in found.damage)
    assert all((s.path, s.top_1, s.top_k, s.kl) == (1, 1, 1, 0) for s in found.slots)


def test_an_mxfp8_checkpoint(tmp_path: Path) -> None:
    write_mxfp8(FIXTURES / "draft", tmp_path / "mxfp8")
    found = compare(FIXTURES / "draft", tmp_path / "mxfp8", TARGET, Inputs())
    assert not found.unexplained
    rmse = {item.types: item.rmse for item in found.damage if item.name == "fc.weight"}
    assert rmse[("BF16", "MXFP8")] == pytest.approx(0.03, rel=0.2)


def test_interleaved_rows_are_read_as_they_are_converted(tmp_path: Path) -> None:
    """rope_is_neox_style: false — q and k change their rows on the way into a GGUF, whatever part of them is read."""
    from support.builders import write_target

    from dflash_gguf.conversion import ConvertOptions, convert

    draft = write_draft(tmp_path / "draft", v2_config(rope_is_neox_style=False))
    target = write_target(tmp_path / "target")
    convert(draft, target, ConvertOptions(out=str(tmp_path / "d.gguf")))
    from contextlib import ExitStack

    from dflash_gguf.comparison.open_drafts import open_compared
    from dflash_gguf.executor.weights import Budget

    with ExitStack() as stack:
        a, b = (open_compared(p, target, Budget(1 << 30), stack) for p in (draft, tmp_path / "d.gguf"))
        for name in ("blk.0.attn_q.weight", "blk.1.attn_k_norm.weight"):
            rows = 1 if "norm" in name else 41
            first = 0 if "norm" in name else 5
            x, y = (side.weights.source.read_rows(name, first, first + rows) for side in (a, b))
            assert (x == y).all()


def test_divergence_by_hand() -> None:
    """p_a = (1/2, 1/2), p_b = (1/4, 3/4): ½·ln(2) + ½·ln(2/3)."""
    a, b = np.array([[0.0, 0.0]], np.float32), np.log(np.array([[1.0, 3.0]], np.float32))
    assert divergence(a, b)[0] == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3), rel=1e-6)
    assert divergence(a, a + np.float32(7))[0] == pytest.approx(0, abs=1e-12)


def test_agreement_by_hand() -> None:
    logits = np.zeros((2, 6), np.float32)
    a = ComparedBlock((1, 2), np.array([[1, 3], [2, 4]]), logits)
    b = ComparedBlock((1, 5), np.array([[1, 4], [4, 2]]), logits)
    agreement = Agreement(2)
    agreement.add(a, b)
    agreement.add(a, a)
    first, second = agreement.slots()
    assert (first.path, first.top_1, first.top_k) == (1, 1, 0.75)
    assert (second.path, second.top_1, second.top_k) == (0.5, 0.5, 1)
    assert (agreement.n_blocks, agreement.n_same_paths) == (2, 1)


def test_given_features_are_used(files: dict[str, Path], tmp_path: Path) -> None:
    features = np.random.default_rng(1).standard_normal((20, 3 * 256), dtype=np.float32)
    np.save(tmp_path / "f.npy", features)
    given = compare(files["bf16"], files["q4_k_m"], TARGET, Inputs(features=str(tmp_path / "f.npy"), anchor=5))
    other = compare(files["bf16"], files["q4_k_m"], TARGET, Inputs(features="random:20:9", anchor=5))
    assert given.n_blocks == other.n_blocks == 16
    assert [s.kl for s in given.slots] != [s.kl for s in other.slots]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (Inputs(n_predict=1), "-n"),
        (Inputs(n_max=0), "--n-max"),
        (Inputs(anchor=-1), "--anchor"),
        (Inputs(anchor=2048), "--anchor"),
        (Inputs(features="random:0"), "--features"),
    ],
)
def test_values_out_of_range(inputs: Inputs, message: str, files: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=message):
        compare(files["bf16"], files["bf16"], TARGET, inputs)


def test_drafts_of_two_targets(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="vocab_size is 256"):
        compare(files["bf16"], own_vocabulary(tmp_path / "other"), TARGET, Inputs())


def test_prompts_need_a_target(files: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="--target"):
        compare(files["bf16"], files["bf16"], None, Inputs(prompts(0)))


def test_drafts_with_other_taps_need_prompts(files: dict[str, Path], tmp_path: Path) -> None:
    from support.executor_fixture import converted

    with pytest.raises(DflashError, match="features of 512 and 768"):
        compare(files["bf16"], converted(tmp_path, "draft-v1", "bf16"), TARGET, Inputs())


def test_two_versions_on_the_same_prompts(files: dict[str, Path], tmp_path: Path) -> None:
    """A DFlash 1 draft beside a DFlash 2 draft of the same target: each along its own blocks."""
    from support.executor_fixture import converted

    v1 = converted(tmp_path, "draft-v1", "bf16")
    found = run_prompts(files["bf16"], v1, (3, 20))
    told = reference("draft-v1", 20)
    whole = len(told["accepted"]) - told["last_block_cut"]
    assert list(found.prompts[1].b.accepted[:whole]) == told["accepted"][:whole]
    assert any(item.problem == "absent from one of them" for item in found.damage)


def test_the_command(files: dict[str, Path], run: Run, tmp_path: Path) -> None:
    chosen = tmp_path / "prompts.jsonl"
    chosen.write_text("".join(json.dumps(p.text) + "\n" for p in prompts(7, 22)))
    pair = (files["bf16"], files["q4_k_m"], "--target", TARGET, "--prompts", chosen)
    plot = tmp_path / "plot.svg"
    done = run("compare", *pair, "--plot", plot)
    assert done.returncode == 0, done.stderr
    assert "verdict: the same accepted lengths in every block of 1 of 2 prompts" in done.stdout
    assert "A 7 7 0 4 7 7 7 7 7 0" in done.stdout
    root = ET.fromstring(plot.read_text(encoding="utf-8"))  # noqa: S314 - our own
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [7, 7, 7]
    answer = json.loads(run("compare", *pair, "--json").stdout)
    assert answer["schema_version"] == 1
    assert answer["accepted"]["a"]["sequences"][0] == [7, 7, 0, 4, 7, 7, 7, 7, 7, 0]
    assert not answer["equal"]
    assert len(answer["tensors"]) == 36
    assert run("compare", *pair, "--plot", plot).returncode == 2  # it exists
    for more in (["--plot", tmp_path / "plot.png"], ["--features", "random:3"]):
        refused = run("compare", *pair, *more)
        assert refused.returncode == 2
        assert len(refused.stderr.strip().splitlines()) == 1
