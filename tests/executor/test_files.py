"""`draft` and `generate` on converted files: the reference's results, the commands, and files that cannot be drafts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.builders import random_tensors, target_config, v1_config, v2_config, write_draft, write_target
from support.processes import Run

from dflash_gguf.cli.draft import parse_memory
from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.errors import DflashError, FormatError, ModelError, UsageError
from dflash_gguf.executor import Limits, Sampling, draft, generate
from dflash_gguf.formats.gguf.emit import OutTensor, encode_header
from dflash_gguf.formats.gguf.types import GGMLType, ValueType
from dflash_gguf.formats.gguf.values import Array, Metadata, MetaValue

GOLDEN = {
    "dec-glm": ("GLM-5.3-Flash-DFlash2", ["sliding_window=16"], 21),
    "dec-v1": ("Qwen3-4B-DFlash-b16", [], 24),
}
SETTINGS = (
    "vocab_size=2048 dflash_config.mask_token_id=2030 num_target_layers=6 dflash_config.target_layer_ids=[0,1,2,3,4]"
)


@pytest.fixture(scope="session", params=list(GOLDEN))
def golden(
    request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, NDArray[Any]]]:
    """The folder of a synthetic checkpoint and what the reference drafted with it."""
    config, settings, seed = GOLDEN[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    make = [sys.executable, shared / "tools/make_checkpoint.py", folder, "--tokenizer", shared / "tokenizers/mini"]
    make += ["--config", shared / "facts/configs" / config / "config.json", "--shrink", "--target-weights"]
    make += ["--seed", str(seed), "--set", *SETTINGS.split(), *settings]
    subprocess.run([str(part) for part in make], check=True, capture_output=True)
    with np.load(shared / f"golden/{request.param}.npz") as results:
        return folder, dict(results)


@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_blocks_of_the_reference(golden: tuple[Path, dict[str, NDArray[Any]]], kind: str, tmp_path: Path) -> None:
    folder, results = golden
    file, features, trace = (tmp_path / name for name in ("d.gguf", "f.npy", "t.npz"))
    convert(folder / "draft", folder / "target", ConvertOptions(types=(kind,), out=str(file)))
    for i in range(4):
        np.save(features, results[f"features_{i}"])
        drafted = draft(file, folder / "target", str(features), int(results[f"anchor_{i}"]), trace=trace)
        with np.load(trace) as seen:
            hidden = seen["block.hidden"]
        expected = results[f"hidden_{i}"]
        assert np.abs(hidden - expected).max() <= 1e-5 * np.abs(expected).max()
        assert list(drafted.proposal.tokens) == results[f"path_{i}"].tolist()
        assert list(drafted.proposal.argmax) == results[f"argmax_{i}"].tolist()
        count = drafted.proposal.candidates.shape[1]
        assert drafted.proposal.candidates.tolist() == results[f"top_ids_{i}"][:, :count].tolist()


# The commands, on a small pair whose draft knows nothing.


@pytest.fixture(scope="session", params=[1, 2])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A draft GGUF with random weights and the folder of its target."""
    root = tmp_path_factory.mktemp("pair")
    target = write_target_weights(write_target(root / "target", target_config()))
    source = write_draft(root / "draft", v2_config() if request.param == 2 else v1_config())
    convert(source, target, ConvertOptions(types=("bf16",), out=str(root / "d.gguf")))
    return root / "d.gguf", target


def write_target_weights(folder: Path) -> Path:
    """Random weights for target_config(): a draft's tensors without fc, under a target's names."""
    config = v1_config(num_hidden_layers=6, layer_types=["full_attention"] * 6, use_sliding_window=False)
    tensors = {
        f"model.{n}": v
        for n, v in random_tensors(config, seed=3).items()
        if n not in ("fc.weight", "hidden_norm.weight")
    }
    table = np.random.default_rng(5).standard_normal((2048, 64)).astype(np.float32) * np.float32(0.1)
    from support.builders import bf16, safetensors_bytes

    tensors["model.embed_tokens.weight"] = bf16(table)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return folder


def test_draft_command(pair: tuple[Path, Path], run: Run) -> None:
    file, target = pair
    common = ("draft", file, "--target", target, "--features", "random:9:4", "--anchor", 7)
    done = run(*common, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    drafted = draft(file, target, "random:9:4", 7).proposal
    assert answer == {
        "schema_version": 1,
        "tokens": list(drafted.tokens),
        "candidates": drafted.candidates.tolist(),
        "probabilities": list(drafted.probabilities),
        "argmax": list(drafted.argmax),
        "stopped_by_p_min": False,
    }
    assert len(answer["tokens"]) == len(answer["candidates"]) == 7
    clamped = run(*common, "--n-max", 20)
    assert "note: --n-max 20 is clamped to 7" in clamped.stderr
    assert len(clamped.stdout.splitlines()) == 8


def test_limits_and_seeds(pair: tuple[Path, Path]) -> None:
    def tokens(**settings: Any) -> tuple[int, ...]:
        return draft(*pair, "random:9:4", 7, **settings).proposal.tokens

    assert tokens(limits=Limits(n_max=2)) == tokens()[:2]
    assert tokens(limits=Limits(n_max=20)) == tokens()
    assert tokens(limits=Limits(p_min=1.0)) == ()
    sampled = [tokens(sampling=Sampling(3.0, seed=seed)) for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]


def test_generate_command(pair: tuple[Path, Path], run: Run) -> None:
    file, target = pair
    common = ("generate", file, "--target", target, "--prompt", "Hello world", "-n", 12)
    done = run(*common, "--json", "--ignore-eos")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert len(answer["tokens"]) == 12
    assert answer["n_draft"] == sum(block["proposed"] for block in answer["blocks"])
    assert answer["n_accept"] == sum(block["accepted"] for block in answer["blocks"])
    assert answer["mean_accepted"] == pytest.approx(answer["n_accept"] / len(answer["blocks"]))
    assert answer["accept_rate"] == pytest.approx(answer["n_accept"] / answer["n_draft"])
    assert answer["mean_emitted"] == pytest.approx(11 / len(answer["blocks"]))
    person = run(*common, "--ignore-eos", "--n-max", 3)
    assert "12 tokens in" in person.stdout
    assert "of at most 3 a block" in person.stdout


def test_the_text_is_the_targets_own_whatever_the_draft(pair: tuple[Path, Path]) -> None:
    file, target = pair
    settings: list[dict[str, Any]] = [
        {},
        {"limits": Limits(n_max=1)},
        {"limits": Limits(p_min=1.0)},  # nothing is ever proposed: the target alone
        {"sampling": Sampling(0.0, 2.0, seed=3)},
        {"memory": 200 << 20},
    ]
    texts = {generate(file, target, "The cat", 24, ignore_eos=True, **each).generation.tokens for each in settings}
    assert len(texts) == 1


def test_sampling_is_reproducible(pair: tuple[Path, Path]) -> None:
    file, target = pair
    texts = [
        generate(file, target, "The cat", 12, sampling=Sampling(1.0, seed=seed), ignore_eos=True).generation.tokens
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_trace_of_a_whole_decode(pair: tuple[Path, Path], tmp_path: Path) -> None:
    file, target = pair
    done = generate(file, target, "The cat", 6, ignore_eos=True, trace=tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as trace:
        blocks = {name.split("/")[0] for name in trace if name.endswith("selector.scores")}
    assert blocks == {f"block{i}" for i in range(len(done.generation.blocks))}


USAGE: list[tuple[dict[str, Any], str]] = [
    ({"limits": Limits(n_max=0)}, "--n-max"),
    ({"limits": Limits(p_min=1.5)}, "--p-min"),
    ({"limits": Limits(p_min=float("nan"))}, "--p-min"),
    ({"sampling": Sampling(-1.0)}, "--temperature"),
    ({"sampling": Sampling(float("inf"))}, "--temperature"),
    ({"sampling": Sampling(seed=-1)}, "--seed"),
    ({"memory": 1 << 20}, "--memory"),
    ({"anchor": 2048}, "--anchor"),
    ({"anchor": -1}, "--anchor"),
]


@pytest.mark.parametrize(("changes", "option"), USAGE)
def test_values_out_of_range(pair: tuple[Path, Path], changes: dict[str, Any], option: str) -> None:
    values = {"anchor": 7, **changes}
    with pytest.raises(UsageError, match=option):
        draft(pair[0], pair[1], "random:3", **values)


@pytest.mark.parametrize("text", ["", "4X", "G", "nan", "1e999"])
def test_a_memory_that_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="--memory"):
        parse_memory(text)


def test_sizes_of_memory() -> None:
    assert [parse_memory(text) for text in ("512M", "4g", "1.5GiB", "2GB", "1000")] == [
        512 << 20,
        4 << 30,
        3 << 29,
        2 << 30,
        1000,
    ]


def test_a_draft_without_a_target(pair: tuple[Path, Path]) -> None:
    with pytest.raises(ModelError, match="no token embedding of its own"):
        draft(pair[0], None, "random:3", 7)


# Files whose metadata or tensors are not those of a draft.


def rewritten(file: Path, out: Path, change: Metadata, tensors: dict[str, tuple[int, ...]] | None = None) -> Path:
    """The header of `file` with keys changed and tensors added or resized, over zeros."""
    from dflash_gguf.formats.gguf.scan import scan_header
    from dflash_gguf.storage.files import LocalFile

    with LocalFile(file) as source:
        header = scan_header(source)
    shapes = {name: info.shape for name, info in header.tensors.items()} | (tensors or {})
    outs = [OutTensor(name, GGMLType.F32, shape) for name, shape in shapes.items() if shape]
    encoded = encode_header(list({**header.metadata, **change}.items()), outs)
    out.write_bytes(encoded.data + bytes(encoded.file_size - len(encoded.data)))
    return out


def u32(value: int) -> MetaValue:
    return MetaValue(ValueType.UINT32, value)


BROKEN: dict[str, tuple[Metadata, dict[str, tuple[int, ...]], str]] = {
    "block of one": ({"dflash.block_size": u32(1)}, {}, "block_size 1"),
    "no heads": ({"dflash.attention.head_count": u32(0)}, {}, "a size of 0"),
    "odd heads": ({"dflash.attention.head_count_kv": u32(3)}, {}, "no multiple of head_count_kv"),
    "no taps": (
        {"dflash.target_layers": MetaValue(ValueType.ARRAY, Array.of(ValueType.INT32, []))},
        {},
        "no target_layers",
    ),
    "rotary": ({"dflash.rope.dimension_count": u32(64)}, {}, "rotary dims"),
    "odd rotary": ({"dflash.rope.dimension_count": u32(7)}, {}, "rotary dims"),
    "mask": ({"tokenizer.ggml.mask_token_id": u32(2048)}, {}, "mask_token_id 2048 of 2048"),
    "an unknown tensor": ({}, {"blk.0.attn_gate.weight": (4, 4)}, r"1 tensor unknown: blk\.0\.attn_gate\.weight"),
    "a missing tensor": ({}, {"fc.weight": ()}, r"1 tensor missing: fc\.weight"),
    "another shape": ({}, {"fc.weight": (64, 64)}, r"fc\.weight: ne is \[64, 64\], the metadata asks for \[192, 64\]"),
    "more layers": ({"dflash.block_count": u32(3)}, {}, "do not go together|tensors are missing"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_is_no_draft(name: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    change, tensors, message = BROKEN[name]
    file = rewritten(pair[0], tmp_path / "broken.gguf", change, tensors)
    with pytest.raises(DflashError, match=message) as caught:
        draft(file, pair[1], "random:3", 7)
    assert str(file) in str(caught.value)


def test_something_else_altogether(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"<html>" * 100)
    with pytest.raises(FormatError):
        draft(tmp_path / "x.gguf", pair[1], "random:3", 7)
    with pytest.raises(UsageError, match="no such file"):
        draft(tmp_path / "y.gguf", pair[1], "random:3", 7)
