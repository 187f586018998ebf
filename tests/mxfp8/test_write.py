"""Writing MXFP8 checkpoints: the bytes, the configs, the manifest, what is copied, what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from support.builders import bf16, random_tensors, safetensors_bytes, v1_config, v2_config, write_draft
from support.mxfp8_drafts import FLAT, NESTED, exact_values, linears, write_mxfp8_draft
from support.processes import Run

from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.errors import ModelError, UsageError
from dflash_gguf.formats.blocks import mxfp8_block
from dflash_gguf.model.checkpoint import Checkpoint
from dflash_gguf.mxfp8 import write_mxfp8
from dflash_gguf.mxfp8.checkpoint_plan import make_plan

TORCH_NAMES = {"F8_E4M3": "float8_e4m3fn", "U8": "uint8", "BF16": "bfloat16", "F32": "float32", "F16": "float16"}


def tensors_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Read by the safetensors library."""
    read: Any = safetensors.deserialize
    return dict(read((folder / "model.safetensors").read_bytes()))


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def widened(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def encoded(values: np.ndarray[Any, np.dtype[np.float32]]) -> tuple[bytes, bytes]:
    codes, scales = np.empty(values.size, np.uint8), np.empty(values.size // 32, np.uint8)
    mxfp8_block.encode(values.reshape(-1), codes, scales)
    return codes.tobytes(), scales.tobytes()


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_every_tensor(dtype: str, tmp_path: Path) -> None:
    config = v2_config()
    written = write_mxfp8(write_draft(tmp_path / "d", config, dtype=dtype), tmp_path / "out")
    source, found = random_tensors(config, dtype=dtype), tensors_of(tmp_path / "out")
    quantized = linears(config)
    assert len(quantized) == 9 * 2 + 2
    assert found.keys() == source.keys() | {name + "_scale" for name in quantized}
    for name, values in source.items():
        if name in quantized:
            codes, scales = encoded(widened(values) if dtype == "BF16" else values.astype(np.float32))
            assert found[name] == {"dtype": "F8_E4M3", "shape": list(values.shape), "data": codes}
            shape = [values.shape[0], values.shape[1] // 32]
            assert found[name + "_scale"] == {"dtype": "U8", "shape": shape, "data": scales}
        else:
            assert found[name] == {"dtype": dtype, "shape": list(values.shape), "data": values.tobytes()}
    assert written.plan.output_bytes == sum(len(data) for name, data in files_of(tmp_path / "out").items()) - len(
        (tmp_path / "out/conversion_manifest.json").read_bytes()
    )


def serialized(tensors: dict[str, dict[str, Any]]) -> bytes:
    """What the safetensors library writes; from 0.8 on it takes pointers."""
    kept: list[Any] = []
    specs: dict[str, Any] = {}
    for name, tensor in tensors.items():
        dtype, data = TORCH_NAMES[tensor["dtype"]], np.frombuffer(tensor["data"], np.uint8)
        kept.append(data)
        if hasattr(safetensors, "TensorSpec"):
            specs[name] = safetensors.TensorSpec(
                dtype=dtype, shape=tensor["shape"], data_ptr=data.ctypes.data, data_len=data.size
            )
        else:
            specs[name] = {"dtype": dtype, "shape": tensor["shape"], "data": data.tobytes()}
    return bytes(safetensors.serialize(specs, {"format": "pt"}))


def test_the_safetensors_library_writes_the_same_file(draft: Path, tmp_path: Path) -> None:
    write_mxfp8(draft, tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == serialized(tensors_of(tmp_path / "out"))


def glm_dims() -> dict[str, Any]:
    config = v2_config(hidden_size=4096, intermediate_size=12288, num_attention_heads=32, num_key_value_heads=8)
    config |= {"head_dim": 128, "num_hidden_layers": 5, "vocab_size": 154880, "layer_types": ["full_attention"] * 5}
    config["dflash_config"] |= {"selector_rank": 256, "selector_top_k": 16, "target_layer_ids": [0, 1, 2, 3, 4]}
    return config


def test_sizes_of_glm_dims(tmp_path: Path) -> None:
    """128 tensors, 47 of them quantized, 1,284,704,768 bytes of data; from a file that is all hole."""
    from support.builders import spec_of

    from dflash_gguf.model.tensors import draft_tensors

    config, header, offset = glm_dims(), {}, 0
    for tensor in draft_tensors(spec_of(config)):
        if not tensor.optional:
            size = 2 * int(np.prod(tensor.shape))
            offsets = [offset, offset + size]
            header[tensor.source_name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": offsets}
            offset += size
    text = json.dumps(header).encode()
    (tmp_path / "config.json").write_text(json.dumps(config))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    with Checkpoint(tmp_path) as checkpoint:
        plan = make_plan(checkpoint)
    assert len(plan.header.tensors) == 128
    assert sum(weight.scale is not None for weight in plan.weights) == 47
    assert plan.header.file_size - len(plan.header.data) == 1_284_704_768
    assert len(plan.header.data) % 8 == 0


def test_configs_are_those_that_vllm_reads(tmp_path: Path) -> None:
    config = v2_config()
    draft = write_draft(tmp_path / "d", config)
    write_mxfp8(draft, tmp_path / "out", exclude=("*.o_proj",))
    kept = ["lm_head", "layers.0.self_attn.o_proj", "layers.1.self_attn.o_proj"]
    expected = json.loads(json.dumps(FLAT)) | {"ignore": kept}
    assert json.loads((tmp_path / "out/config.json").read_text()) == {**config, "quantization_config": expected}
    nested = json.loads((tmp_path / "out/hf_quant_config.json").read_text())
    inner = {**NESTED["quantization"], "group_size": 32, "exclude_modules": kept}  # type: ignore[dict-item]
    assert nested == {**NESTED, "quantization": inner}


def test_manifest(tmp_path: Path) -> None:
    config = v2_config()
    draft = write_draft(tmp_path / "models--lab--Tiny-DFlash2" / "snapshots" / ("a" * 40), config)
    (draft / "README.md").write_text("# hi\n")
    written = write_mxfp8(draft, tmp_path / "out")
    document = json.loads((tmp_path / "out/conversion_manifest.json").read_text())
    assert document == written.manifest
    sha256 = {name: hashlib.sha256(data).hexdigest() for name, data in files_of(draft).items()}
    assert document["source"] == {"model": "lab/Tiny-DFlash2", "revision": "a" * 40, "files_sha256": sha256}
    out = {name: hashlib.sha256(data).hexdigest() for name, data in files_of(tmp_path / "out").items()}
    del out["conversion_manifest.json"]
    assert document["output_files_sha256"] == out
    assert document["exclude_modules"] == ["lm_head"]
    assert document["format"]["block"] == [1, 32]
    source, quantized = random_tensors(config), linears(config)
    elements = sum(source[name].size for name in quantized)
    kept = sum(values.size for values in source.values()) - elements
    assert document["coverage"] == {
        "tensors": 36,
        "quantized": 20,
        "kept": 16,
        "elements_quantized": elements,
        "elements_kept": kept,
    }
    assert document["weights"].keys() == set(quantized)
    squares = error = 0.0
    for name in quantized:
        exact = widened(source[name]).astype(np.float64)
        codes, scales = (np.frombuffer(part, np.uint8) for part in encoded(widened(source[name])))
        miss = exact.reshape(-1) - exact_values(codes.reshape(-1, 32), scales.reshape(-1, 1)).reshape(-1)
        told = document["weights"][name]
        assert told["shape"] == list(exact.shape)
        assert told["relative_rmse"] == pytest.approx(np.sqrt((miss**2).sum() / (exact**2).sum()), rel=1e-6)
        decoded = exact.reshape(-1) - miss
        cosine = exact.reshape(-1) @ decoded / np.sqrt((exact**2).sum() * (decoded**2).sum())
        assert told["cosine"] == pytest.approx(cosine, rel=1e-6)
        assert told["max_abs_error"] == np.abs(miss).max()
        assert told["amax"] == np.abs(exact).max()
        assert (told["saturated"], told["zero_blocks"]) == (0, 0)
        assert (told["scale_min"], told["scale_max"]) == (scales.min(), scales.max())
        squares, error = squares + (exact**2).sum(), error + (miss**2).sum()
    aggregate = document["aggregate_error"]
    assert aggregate["relative_rmse"] == pytest.approx(np.sqrt(error / squares), rel=1e-6)
    assert 100 * aggregate["relative_rmse"] == pytest.approx(2.66, abs=0.05)
    assert aggregate["sqnr_db"] == pytest.approx(31.5, abs=0.2)


def test_nothing_of_the_machine_is_in_the_files(draft: Path, tmp_path: Path) -> None:
    write_mxfp8(draft, tmp_path / "out")
    text = b"".join(data for name, data in files_of(tmp_path / "out").items() if name.endswith(".json"))
    assert str(tmp_path).encode() not in text
    assert b"seconds" not in text


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_threads_do_not_change_a_byte(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_gguf.mxfp8.encode.TILE", 4096)  # many tiles
    draft = write_draft(tmp_path / "d", v2_config())
    write_mxfp8(draft, tmp_path / "one")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(threads)))
    write_mxfp8(draft, tmp_path / "two")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_shards_prefixes_and_order_of_the_source_change_nothing_else(tmp_path: Path) -> None:
    config, draft = v2_config(), tmp_path / "d"
    tensors = {f"model.{name}": values for name, values in random_tensors(config).items()}
    whole = write_draft(tmp_path / "whole", config, tensors)
    draft.mkdir()
    (draft / "config.json").write_text(json.dumps(config))
    names = sorted(tensors, reverse=True)
    weight_map: dict[str, str] = {}
    for number in range(3):
        file = f"model-{number + 1:05d}-of-00003.safetensors"
        part = {name: tensors[name] for name in names[number::3]}
        (draft / file).write_bytes(safetensors_bytes(part, pad=number))
        weight_map |= dict.fromkeys(part, file)
    (draft / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    write_mxfp8(whole, tmp_path / "one")
    manifest = write_mxfp8(draft, tmp_path / "two").manifest
    assert len(manifest["source"]["files_sha256"]) == 5
    one, two = files_of(tmp_path / "one"), files_of(tmp_path / "two")
    for files in (one, two):
        del files["conversion_manifest.json"]
    assert one == two


def test_other_files_are_copied(draft: Path, tmp_path: Path) -> None:
    (draft / "README.md").write_text("# hi\n")
    (draft / "empty.txt").write_bytes(b"")
    (draft / "assets").mkdir()
    (draft / "assets/x.png").write_bytes(bytes(range(256)) * 9000)
    (draft / ".git").mkdir()
    (draft / ".git/config").write_text("hidden")
    (draft / ".gitattributes").write_text("hidden")
    write_mxfp8(draft, tmp_path / "out")
    found = files_of(tmp_path / "out")
    assert found["assets/x.png"] == bytes(range(256)) * 9000
    assert found.keys() == {
        "README.md",
        "assets/x.png",
        "config.json",
        "conversion_manifest.json",
        "empty.txt",
        "hf_quant_config.json",
        "model.safetensors",
    }


def test_round_trip_through_our_gguf(draft: Path, target: Path, tmp_path: Path) -> None:
    """q · 2^(s − 127) arrives bit for bit; quantizing what was decoded keeps every value."""
    from conversion.test_mxfp8_convert import data_of
    from support.builders import spec_of

    from dflash_gguf.model.tensors import draft_tensors

    config = v2_config()
    write_mxfp8(draft, tmp_path / "one")
    found = tensors_of(tmp_path / "one")
    convert(tmp_path / "one", target, ConvertOptions(out=str(tmp_path / "x.gguf")))
    data, decoded = data_of(tmp_path / "x.gguf"), random_tensors(config)
    for tensor in draft_tensors(spec_of(config)):
        if tensor.linear:
            codes = np.frombuffer(found[tensor.source_name]["data"], np.uint8)
            scales = np.frombuffer(found[tensor.source_name + "_scale"]["data"], np.uint8)
            exact = exact_values(codes.reshape(-1, 32), scales.reshape(-1, 1)).reshape(-1)
            assert data[tensor.gguf_name] == bf16(exact).tobytes()
            decoded[tensor.source_name] = bf16(exact).reshape(tensor.shape)
    write_mxfp8(write_draft(tmp_path / "d2", config, decoded), tmp_path / "two")
    convert(tmp_path / "two", target, ConvertOptions(out=str(tmp_path / "y.gguf")))
    assert data_of(tmp_path / "y.gguf") == data


def test_a_dflash_1_draft(tmp_path: Path) -> None:
    written = write_mxfp8(write_draft(tmp_path / "d", v1_config()), tmp_path / "out")
    assert written.manifest["coverage"]["quantized"] == 7 * 2 + 1


def test_an_own_head_and_embedding_stay_as_they_are(tmp_path: Path) -> None:
    config = v1_config()
    extra = {name: bf16(np.ones((2048, 64))) for name in ("lm_head.weight", "embed_tokens.weight")}
    write_mxfp8(write_draft(tmp_path / "d", config, {**random_tensors(config), **extra}), tmp_path / "out")
    found = tensors_of(tmp_path / "out")
    assert {found[name]["dtype"] for name in extra} == {"BF16"}


@pytest.mark.parametrize(
    ("exclude", "complaint"),
    [
        (("nonsense",), "'nonsense' matches no matrix of the draft"),
        (("norm.weight",), "matches no matrix"),
        (("*q_proj",), "vLLM reads q_proj, k_proj, v_proj as one matrix, and layers.0.self_attn.q_proj.weight"),
        (("layers.1.mlp.up_proj",), "vLLM reads gate_proj, up_proj as one matrix"),
    ],
)
def test_exclusions_that_cannot_be_are_refused(
    exclude: tuple[str, ...], complaint: str, draft: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        write_mxfp8(draft, tmp_path / "out", exclude=exclude)
    assert complaint in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_excluded_matrices_stay_as_they_are(draft: Path, tmp_path: Path) -> None:
    exclude = ("attention_conv", "*mlp_conv*", "lm_head", "fc")
    written = write_mxfp8(draft, tmp_path / "out", exclude=exclude)
    found = tensors_of(tmp_path / "out")
    assert {name for name in linears(v2_config()) if found[name]["dtype"] == "BF16"} == {
        "fc.weight",
        *(f"layers.{i}.{conv}.kernel_projection.weight" for i in range(2) for conv in ("attention_conv", "mlp_conv")),
    }
    assert written.manifest["coverage"]["quantized"] == 15
    assert written.plan.exclude[:2] == ("lm_head", "fc")


def test_rows_that_blocks_do_not_divide(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d", v1_config(intermediate_size=80))
    with pytest.raises(ModelError, match=r"layers.0.mlp.down_proj.weight: rows of 80 inputs are no multiple of 32"):
        write_mxfp8(draft, tmp_path / "out")
    write_mxfp8(draft, tmp_path / "out", exclude=("down_proj",))


@pytest.mark.parametrize(
    "name", ["layers.1.mlp.up_proj.weight", "norm.weight", "candidate_selector.successor_codebook"]
)
@pytest.mark.parametrize("bits", [0x7FC0, 0xFF80])
def test_weights_that_are_no_numbers(name: str, bits: int, tmp_path: Path) -> None:
    tensors = random_tensors(v2_config())
    tensors[name].reshape(-1)[40] = bits
    with pytest.raises(ModelError, match=f"{name}: weight 40 is NaN or infinite"):
        write_mxfp8(write_draft(tmp_path / "d", v2_config(), tensors), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_what_is_quantized_already(tmp_path: Path) -> None:
    for name, quantization in (("a", FLAT), ("b", None)):
        draft = write_mxfp8_draft(tmp_path / name, v2_config(), quantization=quantization)
        with pytest.raises(ModelError, match="is quantized already"):
            write_mxfp8(draft, tmp_path / "out")
    draft = write_draft(tmp_path / "c", {**v2_config(), "quantization_config": FLAT})
    with pytest.raises(ModelError, match="is quantized already"):
        write_mxfp8(draft, tmp_path / "out")


def test_command_line(draft: Path, run: Run, tmp_path: Path) -> None:
    done = run("mxfp8", draft, "out", "--json", "--exclude", "fc")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    out = tmp_path / "work/out"
    size = sum(len(data) for name, data in files_of(out).items() if name != "conversion_manifest.json")
    assert (document["schema_version"], document["path"], document["bytes"]) == (1, "out", size)
    assert document["exclude_modules"] == ["lm_head", "fc"]
    again = run("mxfp8", draft, "out")
    assert (again.returncode, again.stderr) == (2, "error: out: exists already (--force replaces it)\n")
    forced = run("mxfp8", draft, "out", "--force")
    assert forced.returncode == 0, forced.stderr
    assert "20 of 36 tensors quantized" in forced.stdout
    for wrong in (
        ("mxfp8",),
        ("mxfp8", draft),
        ("mxfp8", draft, "x", "--source", draft),
        ("mxfp8", draft, "--verify", "out"),
    ):
        assert run(*wrong).returncode == 2


def test_left_out_names_what_the_checkpoint_has(draft: Path, tmp_path: Path, run: Run) -> None:
    """`lm_head` always is in the configs that vLLM reads; a draft that borrows its head has none to leave out."""
    assert "left out" not in run("mxfp8", draft, tmp_path / "a").stdout
    done = run("mxfp8", draft, tmp_path / "b", "--exclude", "fc")
    assert "  left out: fc\n" in done.stdout
    assert (
        json.loads((tmp_path / "b/hf_quant_config.json").read_text())["quantization"]["exclude_modules"][0] == "lm_head"
    )
