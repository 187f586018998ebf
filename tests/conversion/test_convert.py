"""Conversion: the reference's bytes, every key by the table, every source tensor accounted for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders import (
    GOLDENS,
    bf16,
    random_tensors,
    safetensors_bytes,
    target_config,
    v1_config,
    v2_config,
    write_draft,
    write_target,
)
from support.processes import Run

from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.errors import DflashError, FormatError, ModelError, UsageError
from dflash_gguf.formats.gguf.scan import MAX_HEADER, Header, scan_header
from dflash_gguf.formats.gguf.values import Array
from dflash_gguf.storage.files import LocalFile


def header_of(path: Path) -> Header:
    with LocalFile(path) as source:
        return scan_header(source)


def values(header: Header) -> dict[str, Any]:
    return {k: v.value.items() if isinstance(v.value, Array) else v.value for k, v in header.metadata.items()}


def tensor_bytes_of(path: Path, name: str) -> bytes:
    tensor = header_of(path).tensors[name]
    return path.read_bytes()[tensor.offset : tensor.offset + tensor.size]


def one(draft: Path, target: Path, tmp_path: Path, kind: str = "bf16", **options: Any) -> Path:
    out = tmp_path / f"out-{kind}.gguf"
    convert(draft, target, ConvertOptions(types=(kind,), out=str(out), **options))
    return out


@pytest.mark.parametrize("name", GOLDENS)
def test_outputs_equal_the_reference(name: str, golden_inputs: Path, shared: Path, tmp_path: Path) -> None:
    pattern = str(tmp_path / "{type}.gguf")
    options = ConvertOptions(types=("bf16", "q8_0", "q4_k_m"), out=pattern)
    convert(golden_inputs / name / "draft", golden_inputs / name / "target", options)
    for golden, written in (("bf16", "BF16"), ("Q8_0", "Q8_0"), ("Q4_K_M", "Q4_K_M")):
        command: list[str | Path] = [
            sys.executable,
            shared / "tools/gguf_digest.py",
            "--cmp",
            shared / f"golden/{name}-{golden}.json",
        ]
        result = subprocess.run([*command, tmp_path / f"{written}.gguf"], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout
        assert "0 differ" in result.stdout


def shrunken(config: dict[str, Any]) -> dict[str, Any]:
    """A real config with small dims and the small vocabulary; everything else as it stands."""
    backbone = config.get("transformer_layer_config", config)
    backbone |= {"hidden_size": 288, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    backbone |= {"head_dim": 32, "vocab_size": 2048}
    if "v_head_dim" in backbone:
        backbone["v_head_dim"] = 32
    for holder in (config, config.get("dflash_config", {})):
        for key, value in (("selector_rank", 32), ("mask_token_id", 2030), ("draft_vocab_size", 2048)):
            if key in holder:
                holder[key] = value
    return config


EXPECTED: dict[str, dict[str, Any]] = {
    "GLM-5.3-Flash-DFlash2": {
        "dflash.target_layers": [6, 15, 25, 34, 43],
        "dflash.attention.sliding_window": 2048,
        "dflash.attention.sliding_window_pattern": [True] * 5,
        "dflash.attention.causal": False,
        "dflash.block_size": 8,
        "dflash.selector_top_k": 16,
        "dflash.rope.freq_base": 10000.0,
    },
    "Muse-Glimmer-30B-DFlash2": {
        "dflash.logit_scale": float(np.float32(0.19611613513818404)),
        "dflash.final_logit_softcapping": 20.0,
        "dflash.block_size": 16,
        "dflash.target_layers": [2, 14, 26, 38, 50],
    },
    "Kimi-K2.7-code-DFlash.partial": {
        "dflash.rope.scaling.type": "yarn",
        "dflash.rope.scaling.factor": 64.0,
        "dflash.rope.scaling.original_context_length": 4096,
        "dflash.rope.scaling.yarn_beta_fast": 32.0,
        "dflash.rope.scaling.yarn_beta_slow": 1.0,
        "dflash.rope.freq_base": 50000.0,
        "dflash.attention.causal": None,
        "dflash.attention.sliding_window": None,
    },
    "MiMo-V2.5-Pro-FP4-DFlash": {
        "dflash.attention.value_scale": float(np.float32(0.612)),
        "dflash.rope.dimension_count": 16,
        "dflash.attention.sliding_window": 1024,
        "dflash.attention.sliding_window_pattern": [True] * 5,
        "dflash.target_layers": [1, 16, 32, 48, 70],
    },
    "Qwen3.8-Flash-Next-DFlash2": {"dflash.attention.sliding_window_pattern": [True] * 5 + [False]},
    "Qwen3-4B-speculator.dflash2": {"dflash.target_layers": [1, 9, 17, 25, 33], "dflash.attention.causal": False},
    "Qwen3-4B-DFlash-b16": {"dflash.block_size": 16, "dflash.selector_rank": None, "dflash.rope.scaling.type": None},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_real_configs_key_by_key(name: str, shared: Path, tmp_path: Path) -> None:
    config = shrunken(json.loads((shared / "facts/configs" / name / "config.json").read_text()))
    tensors = random_tensors(config)
    sinks = config.get("dflash_config", {}).get("attention_sink_bias")
    if sinks:
        for layer in range(config["num_hidden_layers"]):
            tensors[f"layers.{layer}.self_attn.attention_sink_bias"] = bf16(np.ones(4))
    draft = write_draft(tmp_path / name, config, tensors)
    target = write_target(tmp_path / "Target", target_config(hidden_size=288, num_hidden_layers=100))
    out = one(draft, target, tmp_path)
    found = values(header_of(out))
    for key, value in EXPECTED[name].items():
        assert found.get(key) == value, key
    assert ("blk.0.attn_sinks.weight" in header_of(out).tensors) == bool(sinks)


def test_a_vision_target_gives_sections(draft: Path, shared: Path, tmp_path: Path) -> None:
    config = json.loads((shared / "facts/configs/targets/Qwen3.8-27B/config.json").read_text())
    config["text_config"] |= {"hidden_size": 64, "vocab_size": 2048}
    target = write_target(tmp_path / "Vision", config)
    found = values(header_of(one(draft, target, tmp_path, tokenizer_pre="qwen2")))
    assert found["dflash.rope.dimension_sections"] == [16, 0, 0, 0]


def test_general_and_draft_keys_stand_before_the_vocabulary(draft: Path, target: Path, tmp_path: Path) -> None:
    keys = list(header_of(one(draft, target, tmp_path)).metadata)
    first = next(i for i, key in enumerate(keys) if key.startswith("tokenizer."))
    assert all(key.startswith(("general.", "dflash.")) for key in keys[:first])
    assert all(key.startswith("tokenizer.") for key in keys[first:])


def test_bf16_is_copied_and_vectors_become_f32(draft: Path, target: Path, tmp_path: Path) -> None:
    tensors = random_tensors(v2_config())
    out = one(draft, target, tmp_path)
    assert tensor_bytes_of(out, "blk.1.attn_q.weight") == tensors["layers.1.self_attn.q_proj.weight"].tobytes()
    norm = (tensors["norm.weight"].astype(np.uint32) << 16).view(np.float32)
    assert tensor_bytes_of(out, "output_norm.weight") == norm.tobytes()
    assert len(header_of(out).tensors) == 15 * 2 + 6


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_float_sources_in_float_types(dtype: str, kind: str, target: Path, tmp_path: Path) -> None:
    config = v1_config()
    draft = write_draft(tmp_path / "d", config, dtype=dtype)
    source = random_tensors(config, dtype=dtype)["fc.weight"]
    exact = (source.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else source.astype(np.float32)
    raw = tensor_bytes_of(one(draft, target, tmp_path, kind), "fc.weight")
    expected = {"f32": exact, "f16": exact.astype(np.float16), "bf16": bf16(exact)}[kind]
    assert raw == expected.tobytes()


def test_several_types_in_one_pass_equal_single_runs(draft: Path, target: Path, tmp_path: Path) -> None:
    kinds = ("bf16", "q8_0", "q4_k_m", "f32")
    convert(draft, target, ConvertOptions(types=kinds, out=str(tmp_path / "many-{type}.gguf")))
    for kind in kinds:
        assert (tmp_path / f"many-{kind.upper()}.gguf").read_bytes() == one(draft, target, tmp_path, kind).read_bytes()


def test_shards_and_the_model_prefix_change_nothing(target: Path, tmp_path: Path) -> None:
    config = v2_config()
    whole = one(write_draft(tmp_path / "draft", config), target, tmp_path).read_bytes()
    (tmp_path / "draft").rename(tmp_path / "whole")
    tensors = {f"model.{name}": value for name, value in random_tensors(config).items()}
    sharded = tmp_path / "draft"
    sharded.mkdir()
    (sharded / "config.json").write_text(json.dumps(config))
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for number in range(3):
        part = {name: tensors[name] for name in names[number::3]}
        file = f"model-{number + 1:05d}-of-00003.safetensors"
        (sharded / file).write_bytes(safetensors_bytes(part, pad=number))  # odd header lengths: unaligned data
        weight_map |= dict.fromkeys(part, file)
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert one(sharded, target, tmp_path, force=True).read_bytes() == whole


def test_interleaved_rope_is_permuted_per_head(target: Path, tmp_path: Path) -> None:
    config = v1_config(rope_is_neox_style=False)
    out = one(write_draft(tmp_path / "d", config), target, tmp_path)
    tensors = random_tensors(config)
    order = [head * 32 + i for head in range(4) for i in (*range(0, 32, 2), *range(1, 32, 2))]
    assert tensor_bytes_of(out, "blk.0.attn_q.weight") == tensors["layers.0.self_attn.q_proj.weight"][order].tobytes()
    norm = (tensors["layers.0.self_attn.k_norm.weight"][order[:32]].astype(np.uint32) << 16).view(np.float32)
    assert tensor_bytes_of(out, "blk.0.attn_k_norm.weight") == norm.tobytes()
    assert tensor_bytes_of(out, "blk.0.attn_v.weight") == tensors["layers.0.self_attn.v_proj.weight"].tobytes()


def test_own_embedding_is_kept_or_dropped_as_the_config_says(target: Path, tmp_path: Path) -> None:
    for keep in (True, False):
        config = v1_config(has_embed_tokens=keep)
        tensors = {**random_tensors(config), "embed_tokens.weight": bf16(np.ones((2048, 64)))}
        out = one(write_draft(tmp_path / f"d{keep}", config, tensors), target, tmp_path, force=True)
        assert ("token_embd.weight" in header_of(out).tensors) == keep


def test_provenance(target: Path, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "models--lab--Tiny-DFlash2" / "snapshots" / ("a" * 40), v1_config())
    (draft / "README.md").write_text("---\nlicense: mit\nbase_model:\n- org/Tiny\n---\n# hi\n")
    found = values(header_of(one(draft, target, tmp_path)))
    assert found["general.name"] == "Tiny-DFlash2"
    assert found["general.source.repo_url"] == "https://huggingface.co/lab/Tiny-DFlash2"
    assert found["general.source.version"] == "a" * 40
    assert found["general.license"] == "mit"
    assert found["general.base_model.0.name"] == "Tiny"
    assert found["general.base_model.count"] == 1


@pytest.mark.parametrize(
    ("front", "license_name"),
    [
        ("license: 2024-99-99", "2024-99-99"),
        ("license: mit\nbase_model: !!int x\nlicense_link: !!timestamp x", "mit"),
        ('license: "a\\ud800b"', "a?b"),
        ("license: null", None),
        ("license: ~", None),
        ("license: [mit, {", None),
        ("license: &a [*a]", None),
    ],
)
def test_any_card_is_read(front: str, license_name: str | None, draft: Path, target: Path, tmp_path: Path) -> None:
    (draft / "README.md").write_text(f"---\n{front}\n---\n")
    assert values(header_of(one(draft, target, tmp_path))).get("general.license") == license_name


def test_names_that_are_no_utf_8_become_some(target: Path, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d\udcff\n", v1_config())
    header = header_of(one(draft, target, tmp_path))
    assert values(header)["general.name"] == "d?\n"
    assert header.defects == ()


def test_a_link_to_itself_among_the_inputs_does_no_harm(draft: Path, target: Path, tmp_path: Path) -> None:
    (draft / "loop").symlink_to("loop")
    assert one(draft, target, tmp_path).is_file()


def test_two_outputs_that_are_one_file_are_refused(draft: Path, target: Path, tmp_path: Path) -> None:
    (tmp_path / "x-BF16.gguf").symlink_to("x-F32.gguf")
    with pytest.raises(UsageError, match="is the same file as"):
        convert(draft, target, ConvertOptions(types=("bf16", "f32"), out=str(tmp_path / "x-{type}.gguf"), force=True))


def test_a_header_that_nobody_would_read_is_not_written(draft: Path, target: Path, tmp_path: Path) -> None:
    (target / "tokenizer_config.json").write_text('{"bos_token": null}')
    (target / "chat_template.jinja").write_text("x" * MAX_HEADER)
    with pytest.raises(ModelError, match=r"a header of .* bytes, at most"):
        one(draft, target, tmp_path)


Breaker = Any


def _drop(name: str) -> Breaker:
    return lambda tensors: tensors.pop(name)


def _add(name: str, value: np.ndarray[Any, Any]) -> Breaker:
    return lambda tensors: tensors.update({name: value})


def _poison(name: str, position: int, bits: int) -> Breaker:
    return lambda tensors: tensors[name].reshape(-1).__setitem__(position, bits)


TENSOR_FAULTS: dict[str, tuple[Breaker, str]] = {
    "missing": (_drop("layers.1.self_attn.v_proj.weight"), "1 tensor missing: layers.1.self_attn.v_proj.weight"),
    "unknown": (_add("layers.1.extra.weight", bf16(np.ones(4))), "1 tensor unknown to arch dflash: layers.1.extra"),
    "Markov head": (_add("markov_w1.weight", bf16(np.ones((4, 4)))), "unknown to arch dflash: markov_w1.weight"),
    "two spellings": (_add("model.norm.weight", bf16(np.ones(64))), "one tensor in two spellings"),
    "shape": (_add("norm.weight", bf16(np.ones(65))), "shape [65], the config wants [64]"),
    "transposed": (_add("fc.weight", bf16(np.ones((192, 64)))), "shape [192, 64], the config wants [64, 192]"),
    "NaN": (_poison("fc.weight", 77, 0x7FC1), "weight 77 is NaN or infinite"),
    "infinity": (_poison("layers.0.mlp.up_proj.weight", 5, 0xFF80), "weight 5 is NaN or infinite"),
    "NaN in a norm": (_poison("norm.weight", 63, 0x7F81), "weight 63 is NaN or infinite"),
}


@pytest.mark.parametrize("name", TENSOR_FAULTS)
@pytest.mark.parametrize("kind", ["bf16", "q8_0"])
def test_faulty_tensors_are_refused(name: str, kind: str, target: Path, tmp_path: Path) -> None:
    breaker, complaint = TENSOR_FAULTS[name]
    tensors = random_tensors(v2_config())
    breaker(tensors)
    draft = write_draft(tmp_path / "d", v2_config(), tensors)
    with pytest.raises(ModelError) as caught:
        one(draft, target, tmp_path, kind)
    assert complaint in str(caught.value)
    assert [path.name for path in tmp_path.iterdir() if "gguf" in path.name] == []


@pytest.mark.parametrize(("kind", "value"), [("f16", 1e5), ("q4_0", 1e6), ("q8_0", 1e7), ("bf16", 3.4e38)])
def test_a_weight_that_the_type_cannot_hold_is_refused(kind: str, value: float, target: Path, tmp_path: Path) -> None:
    tensors = random_tensors(v1_config(), dtype="F32")
    tensors["fc.weight"][3, 5] = value
    draft = write_draft(tmp_path / "d", v1_config(), tensors, dtype="F32")
    with pytest.raises(ModelError, match=f"is too large for {kind.upper()}"):
        one(draft, target, tmp_path, kind)
    one(draft, target, tmp_path, "f32")


def test_the_first_ten_missing_are_named(target: Path, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d", v2_config(), {"norm.weight": bf16(np.ones(64))})
    with pytest.raises(ModelError) as caught:
        one(draft, target, tmp_path)
    assert str(caught.value).count("layers.0.") <= 10
    assert "35 tensors missing" in str(caught.value)
    assert ", …" in str(caught.value)


def _index(draft: Path, weight_map: object) -> None:
    (draft / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def _as_fifo(draft: Path) -> None:
    (draft / "model.safetensors").unlink()
    os.mkfifo(draft / "model.safetensors")


def _as_folder(draft: Path) -> None:
    (draft / "model.safetensors").unlink()
    (draft / "model.safetensors").mkdir()


FOLDER_FAULTS: dict[str, tuple[Any, type[DflashError], str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), ModelError, "has no config.json"),
    "config not JSON": (lambda d: (d / "config.json").write_text("{"), FormatError, "is not JSON"),
    "config key twice": (lambda d: (d / "config.json").write_text('{"a":1,"a":2}'), FormatError, "stands twice"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), ModelError, "holds no safetensors file"),
    "weights truncated": (
        lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-2]),
        FormatError,
        "do not fit",
    ),
    "two files, no index": (
        lambda d: (d / "more.safetensors").write_bytes(safetensors_bytes({})),
        ModelError,
        "but no model.safetensors.index.json",
    ),
    "pickle": (lambda d: (d / "mask_embedding.pt").write_bytes(b"x"), FormatError, "no file of torch.save"),
    "missing shard": (lambda d: _index(d, {"a": "gone.safetensors"}), ModelError, "gone.safetensors is missing"),
    "shard above": (lambda d: _index(d, {"a": "../x.safetensors"}), FormatError, "not a plain file name"),
    "shard absolute": (lambda d: _index(d, {"a": "/etc/passwd"}), FormatError, "not a plain file name"),
    "index and shard differ": (lambda d: _index(d, {"a": "model.safetensors"}), FormatError, "does not hold what"),
    "shard of 300 letters": (lambda d: _index(d, {"a": "x" * 300}), ModelError, "is missing"),
    "weights a FIFO": (_as_fifo, UsageError, "not a regular file"),
    "weights a folder": (_as_folder, UsageError, "not a regular file"),
    "index no map": (lambda d: _index(d, [1]), FormatError, "weight_map does not map"),
}


@pytest.mark.parametrize("name", FOLDER_FAULTS)
def test_faulty_folders_are_refused(name: str, draft: Path, target: Path, tmp_path: Path) -> None:
    breaker, kind, complaint = FOLDER_FAULTS[name]
    breaker(draft)
    with pytest.raises(kind) as caught:
        one(draft, target, tmp_path)
    assert complaint in str(caught.value)


def test_outputs_that_cannot_be_are_refused(draft: Path, target: Path, tmp_path: Path) -> None:
    for out, complaint in (
        (str(tmp_path / "no" / "x.gguf"), "folder does not exist"),
        (str(draft / "model.safetensors"), "exists already"),
        ("/dev/null", "not a regular file"),
    ):
        with pytest.raises(UsageError, match=complaint):
            convert(draft, target, ConvertOptions(out=out))
    with pytest.raises(UsageError, match="one of the inputs"):
        convert(draft, target, ConvertOptions(out=str(draft / "model.safetensors"), force=True))
    with pytest.raises(UsageError, match="cannot hold 2 types"):
        convert(draft, target, ConvertOptions(types=("bf16", "f32"), out=str(tmp_path / "x.gguf")))
    with pytest.raises(UsageError, match="unknown type 'q3'"):
        convert(draft, target, ConvertOptions(types=("q3",)))


def test_command_line(draft: Path, target: Path, run: Run, tmp_path: Path) -> None:
    done = run("convert", draft, "--target", target, "--type", "bf16", "--type", "q8_0", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert [file["type"] for file in document["files"]] == ["BF16", "Q8_0"]
    work = tmp_path / "work"
    assert sorted(path.name for path in work.iterdir()) == ["dflash-Tiny-BF16.gguf", "dflash-Tiny-Q8_0.gguf"]
    for file in document["files"]:
        import hashlib

        data = (work / file["path"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file["bytes"], file["sha256"])
    again = run("convert", draft, "--target", target)
    assert again.returncode == 2
    assert again.stderr == "error: dflash-Tiny-BF16.gguf: exists already (--force replaces it)\n"
    assert run("convert", draft, "--target", target, "--force").returncode == 0


def test_dry_run_writes_nothing_and_is_exact(draft: Path, target: Path, run: Run, tmp_path: Path) -> None:
    plan = json.loads(run("convert", draft, "--target", target, "--type", "q4_k_m", "--dry-run", "--json").stdout)
    assert list((tmp_path / "work").iterdir()) == []
    text = run("convert", draft, "--target", target, "--type", "q4_k_m", "--dry-run").stdout
    assert "fallback: a row of 64 is not a multiple of 256 (Q4_K)" in text
    run("convert", draft, "--target", target, "--type", "q4_k_m")
    written = tmp_path / "work" / plan["files"][0]["path"]
    assert written.stat().st_size == plan["files"][0]["bytes"]
    tensors = header_of(written).tensors
    assert [(t["name"], t["type"], t["bytes"]) for t in plan["files"][0]["tensors"]] == [
        (t.name, t.type.name, t.size) for t in tensors.values()
    ]


def test_target_layers_from_the_command_line(target: Path, run: Run, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d", v1_config())
    config = v1_config(target_layer_ids=None)
    (draft / "config.json").write_text(json.dumps(config))
    failed = run("convert", draft, "--target", target)
    assert failed.returncode == 1
    assert "--target-layers gives it" in failed.stderr
    assert run("convert", draft, "--target", target, "--target-layers", "0,1,3", "--out", "x.gguf").returncode == 0
    assert values(header_of(tmp_path / "work/x.gguf"))["dflash.target_layers"] == [1, 2, 4]
    assert run("convert", draft, "--target", target, "--target-layers", "3,1").returncode == 2
