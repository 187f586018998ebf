"""Converting MXFP8 drafts: exact values in every type, every config shape, everything else refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders import bf16, target_config, v1_config, v2_config, write_draft, write_target
from support.mxfp8_drafts import FLAT, MINIMAX, NESTED, Tensors, exact_values, linears, mxfp8_tensors, write_mxfp8_draft
from support.processes import Run

from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.errors import ModelError
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.model.config import spec_from_config
from dflash_gguf.model.quantization import is_excluded
from dflash_gguf.model.tensors import draft_tensors
from dflash_gguf.storage.files import LocalFile

Break = Callable[[Tensors], Any]


def one(draft: Path, target: Path, tmp_path: Path, kind: str = "bf16") -> Path:
    out = tmp_path / f"{draft.name}-{kind}.gguf"
    convert(draft, target, ConvertOptions(types=(kind,), out=str(out), name="Tiny", force=True))
    return out


def bf16_draft(tensors: Tensors, folder: Path, config: dict[str, Any]) -> Path:
    """The same draft with every quantized weight decoded."""
    decoded = {
        name: bf16(exact_values(values, tensors[name + "_scale"][1])) if dtype == "F8_E4M3" else values
        for name, (dtype, values) in tensors.items()
        if not name.endswith("_scale")
    }
    return write_draft(folder, config, decoded)


def data_of(path: Path) -> dict[str, bytes]:
    raw = path.read_bytes()
    with LocalFile(path) as source:
        tensors = scan_header(source).tensors.values()
        return {tensor.name: raw[tensor.offset : tensor.offset + tensor.size] for tensor in tensors}


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32", "q8_0", "q4_k_m", "q5_0"])
def test_every_type_equals_that_of_the_decoded_draft(kind: str, tmp_path: Path) -> None:
    config = v2_config(hidden_size=256, intermediate_size=512)
    target = write_target(tmp_path / "Tiny-Target", target_config(hidden_size=256))
    tensors = mxfp8_tensors(config)
    ours = data_of(one(write_mxfp8_draft(tmp_path / "a", config, tensors), target, tmp_path, kind))
    assert ours == data_of(one(bf16_draft(tensors, tmp_path / "b", config), target, tmp_path, kind))
    assert len(ours) == 15 * 2 + 6


def test_bf16_values_are_the_exact_products(target: Path, tmp_path: Path) -> None:
    config = v1_config()
    tensors = mxfp8_tensors(config)
    ours = data_of(one(write_mxfp8_draft(tmp_path / "a", config, tensors), target, tmp_path))
    for tensor in draft_tensors(spec_from_config(config, None, where="").spec):
        if tensor.linear:
            name = tensor.source_name
            exact = exact_values(tensors[name][1], tensors[name + "_scale"][1])
            bits = np.frombuffer(ours[tensor.gguf_name], np.uint16).astype(np.uint32) << 16
            assert (bits.view(np.float32) == exact.reshape(-1)).all(), name


def _named(key: str, names: list[str]) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": "MXFP8", key: names}


SHAPES: dict[str, dict[str, Any]] = {
    "flat": {"quantization": FLAT},
    "nested": {"quantization": NESTED},
    "nested, with a method": {"quantization": {"quant_method": "modelopt", **NESTED}},
    "in its own file": {"quantization": None, "hf_quant": NESTED},
    "in both": {"quantization": FLAT, "hf_quant": NESTED},
    "MiniMax's": {"quantization": MINIMAX},
    "said by the tensors alone": {"quantization": None},
    "modelopt_mxfp8": {"quantization": {**FLAT, "quant_method": "modelopt_mxfp8"}},
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_of_config_is_read(name: str, target: Path, tmp_path: Path) -> None:
    config = v2_config()
    expected = data_of(one(write_mxfp8_draft(tmp_path / "a", config), target, tmp_path))
    other = write_mxfp8_draft(tmp_path / "b", config, **SHAPES[name])
    assert data_of(one(other, target, tmp_path)) == expected


@pytest.mark.parametrize("dtype", ["U8", "F8_E8M0"])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_scale_dtypes_and_prefixes(dtype: str, prefix: str, target: Path, tmp_path: Path) -> None:
    config = v2_config()
    expected = data_of(one(write_mxfp8_draft(tmp_path / "a", config), target, tmp_path))
    tensors = {
        prefix + name: (dtype if name.endswith("_scale") else kind, values)
        for name, (kind, values) in mxfp8_tensors(config).items()
    }
    assert data_of(one(write_mxfp8_draft(tmp_path / "b", config, tensors), target, tmp_path)) == expected


@pytest.mark.parametrize("key", ["exclude_modules", "ignore", "ignored_layers", "modules_to_not_convert"])
@pytest.mark.parametrize(
    "pattern", ["layers.1.mlp.down_proj", "model.layers.1.mlp.down_proj", "*1.mlp.down*", "down_proj"]
)
def test_an_excluded_matrix_may_stay_bf16(key: str, pattern: str, target: Path, tmp_path: Path) -> None:
    config = v2_config()
    tensors = mxfp8_tensors(config)
    keep_bf16(tensors, "layers.1.mlp.down_proj.weight")
    if pattern == "down_proj":
        keep_bf16(tensors, "layers.0.mlp.down_proj.weight")
    draft = write_mxfp8_draft(tmp_path / "a", config, tensors, quantization=_named(key, ["lm_head", pattern]))
    assert data_of(one(draft, target, tmp_path)) == data_of(
        one(bf16_draft(tensors, tmp_path / "b", config), target, tmp_path)
    )


def keep_bf16(tensors: Tensors, name: str) -> None:
    tensors[name] = ("BF16", bf16(exact_values(tensors[name][1], tensors.pop(name + "_scale")[1])))


def test_exclusion_is_vllms() -> None:
    assert is_excluded("layers.0.mlp.up_proj", ["mlp"])
    assert is_excluded("layers.0.mlp.up_proj", ["model.layers.0*"])
    assert is_excluded("model.layers.0.mlp.up_proj", ["layers.0.mlp.up_proj"])
    assert not is_excluded("layers.0.mlp.up_proj", ["lm_head", "", "layers.1*", "gate"])


W = "layers.1.self_attn.k_proj.weight"
S = W + "_scale"


def _poke(name: str, position: int, code: int) -> Break:
    return lambda tensors: tensors[name][1].reshape(-1).__setitem__(position, code)


def _reshape(shape: tuple[int, ...]) -> Break:
    return lambda tensors: tensors.update({S: ("U8", np.full(shape, 120, np.uint8))})


def _scale(dtype: str, kind: Any, shape: tuple[int, ...], suffix: str = "_scale") -> Break:
    def change(tensors: Tensors) -> None:
        del tensors[S]
        tensors[W + suffix] = (dtype, np.ones(shape, kind))

    return change


def _packed(scale_dtype: str, per: int) -> Break:
    def change(tensors: Tensors) -> None:
        tensors[W] = ("U8", np.zeros((64, 32), np.uint8))
        tensors[S] = (scale_dtype, np.zeros((64, 64 // per), np.uint8))

    return change


#: what is done to k_proj [64, 64] of layer 1 → what must be said
FAULTS: dict[str, tuple[Break, str]] = {
    "scale missing": (lambda t: t.pop(S), f"{W}: is F8_E4M3 but has no weight_scale beside it"),
    "weight missing": (lambda t: t.pop(W), f"{S}: is a scale without its weight"),
    "weight in BF16": (
        lambda t: t.update({W: ("BF16", np.zeros((64, 64), np.uint16))}),
        f"{W}: has a scale but is BF16, expected F8_E4M3",
    ),
    "half quantized": (
        lambda t: keep_bf16(t, W),
        f"{W}: is BF16 in an MXFP8 checkpoint with an exclude list of lm_head",
    ),
    "transposed": (_reshape((2, 64)), f"{W}: {S} has shape [2, 64] (transposed), expected [64, 2]"),
    "swizzled": (_reshape((512,)), "has shape [512] (flat, or swizzled for a kernel), expected [64, 2]"),
    "swizzled, 2-D": (_reshape((128, 4)), "has shape [128, 4] (flat, or swizzled for a kernel), expected [64, 2]"),
    "flat": (_reshape((128,)), "has shape [128] (flat, or swizzled for a kernel), expected [64, 2]"),
    "wrong shape": (_reshape((64, 3)), "has shape [64, 3], expected [64, 2]"),
    "scale of 255": (_poke(S, 5, 255), f"{W}: weight 160: scale 255 is NaN"),
    "code 0x7F": (_poke(W, 1000, 0x7F), f"{W}: weight 1,000: code 0x7F is NaN"),
    "code 0xFF": (_poke(W, 7, 0xFF), f"{W}: weight 7: code 0xFF is NaN"),
    "beyond BF16": (
        lambda t: (_poke(W, 64, 0x7E)(t), _poke(S, 2, 254)(t)),
        f"{W}: weight 64: 448 · 2^127 does not fit BF16",
    ),
    "below BF16": (
        lambda t: (_poke(W, slice(0, 32), 1)(t), _poke(S, 0, 0)(t)),  # type: ignore[arg-type]
        f"{W}: weight 0: 0.00195312 · 2^-127 does not fit BF16",
    ),
    "NaN in a norm": (lambda t: t["norm.weight"][1].__setitem__(3, 0x7FC0), "norm.weight: weight 3 is NaN or infinite"),
    "scale dtype": (_scale("I8", np.int8, (64, 2)), f"{W}: {S} is I8, expected U8 or F8_E8M0"),
    "128×128 blocks": (
        _scale("F32", np.float32, (1, 1), "_scale_inv"),
        f"{W}: is quantized as FP8 with 128×128 blocks",
    ),
    "per channel": (_scale("F32", np.float32, (64, 1)), f"{W}: is quantized as FP8 with one scale a channel"),
    "per channel, 1-D": (_scale("BF16", np.uint16, (64,)), f"{W}: is quantized as FP8 with one scale a channel"),
    "per tensor": (_scale("F32", np.float32, ()), f"{W}: is quantized as FP8 with one scale a tensor"),
    "NVFP4": (_packed("F8_E4M3", 16), f"{W}: is quantized as NVFP4"),
    "MXFP4": (_packed("U8", 32), f"{W}: is quantized as MXFP4"),
    "E5M2": (
        lambda t: t.update({W: ("F8_E5M2", t[W][1])}),
        f"{W}: is quantized as F8_E5M2 weights with U8 scales",
    ),
    "a norm in FP8": (
        lambda t: t.update({"norm.weight": ("F8_E4M3", np.zeros(64, np.uint8))}),
        "norm.weight: is F8_E4M3 but has no weight_scale beside it",
    ),
    "a norm with scales": (
        lambda t: t.update(
            {"norm.weight": ("F8_E4M3", np.zeros(64, np.uint8)), "norm.weight_scale": ("U8", np.zeros(2, np.uint8))}
        ),
        "norm.weight: shape [64]: no matrix with rows of a multiple of 32 inputs",
    ),
    "two spellings of a scale": (
        lambda t: t.update({"model." + S: t[S]}),
        "are one tensor in two spellings",
    ),
    "two scales": (
        lambda t: t.update({W + "_scale_inv": ("F32", np.ones((1, 1), np.float32))}),
        f"has two scales: {S} and {S}_inv",
    ),
    "input scale": (
        lambda t: t.update({W.replace("weight", "input_scale"): ("F32", np.ones((), np.float32))}),
        "unknown to arch dflash: layers.1.self_attn.k_proj.input_scale",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_tensors_are_refused_by_name(name: str, target: Path, tmp_path: Path) -> None:
    breaker, complaint = FAULTS[name]
    config = v2_config()
    tensors = mxfp8_tensors(config)
    breaker(tensors)
    draft = write_mxfp8_draft(tmp_path / "d", config, tensors)
    with pytest.raises(ModelError) as caught:
        one(draft, target, tmp_path)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.gguf"))


def test_rows_that_blocks_do_not_divide_are_refused(target: Path, tmp_path: Path) -> None:
    config = v1_config(intermediate_size=80)
    tensors = mxfp8_tensors(v1_config(intermediate_size=96))
    for layer in range(2):
        for name, shape in (("gate_proj", (80, 64)), ("up_proj", (80, 64)), ("down_proj", (64, 80))):
            weight = f"layers.{layer}.mlp.{name}.weight"
            tensors[weight] = ("F8_E4M3", np.zeros(shape, np.uint8))
            tensors[weight + "_scale"] = ("U8", np.zeros((shape[0], shape[1] // 32), np.uint8))
    with pytest.raises(ModelError, match=r"down_proj.weight: shape .64, 80.: no matrix with rows of a multiple of 32"):
        one(write_mxfp8_draft(tmp_path / "d", config, tensors), target, tmp_path)


SCHEMES: dict[str, tuple[Any, str]] = {
    "blocks": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8 with 128×128 blocks"),
    "fp8": ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "FP8 with one scale a tensor"),
    "ModelOpt FP8": ({**FLAT, "quant_algo": "FP8"}, "FP8 with one scale a tensor"),
    "per channel": ({**FLAT, "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, "FP8 with one scale a channel"),
    "ModelOpt blocks": ({**FLAT, "quant_algo": "fp8_pb_wo"}, "FP8 with 128×128 blocks"),
    "NVFP4": ({**FLAT, "quant_algo": "NVFP4"}, "NVFP4"),
    "mixed": ({**FLAT, "quant_algo": "MIXED_PRECISION"}, "MIXED_PRECISION"),
    "compressed-tensors": (
        {"quant_method": "compressed-tensors", "format": "float-quantized"},
        "compressed-tensors: float-quantized",
    ),
    "gptq": ({"quant_method": "gptq", "bits": 4}, "gptq"),
    "other blocks": ({**FLAT, "group_size": 16}, "MXFP8 with blocks of 16"),
}


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("own_file", [False, True])
def test_other_schemes_are_refused_by_name(name: str, own_file: bool, target: Path, tmp_path: Path) -> None:
    scheme, told = SCHEMES[name]
    where = {"quantization": None, "hf_quant": scheme} if own_file else {"quantization": scheme}
    with pytest.raises(ModelError) as caught:
        one(write_mxfp8_draft(tmp_path / "d", v2_config(), **where), target, tmp_path)
    assert f"is quantized as {told}: only MXFP8 is read" in str(caught.value)


def test_a_config_of_mxfp8_over_bf16_weights_is_refused(target: Path, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d", {**v2_config(), "quantization_config": FLAT})
    with pytest.raises(ModelError, match=r"fc.weight: is BF16 in an MXFP8 checkpoint"):
        one(draft, target, tmp_path)


@pytest.mark.parametrize("value", [{"ignore": "lm_head"}, {"ignore": [1]}])
def test_a_list_that_is_none_is_refused(value: dict[str, Any], target: Path, tmp_path: Path) -> None:
    draft = write_mxfp8_draft(tmp_path / "d", v2_config(), quantization={**FLAT, **value})
    with pytest.raises(ModelError, match=r"ignore is .* expected a list of module names"):
        one(draft, target, tmp_path)


def test_command_line_and_plan(target: Path, run: Run, tmp_path: Path) -> None:
    draft = write_mxfp8_draft(tmp_path / "Tiny-DFlash2-MXFP8", v2_config())
    plan = json.loads(run("convert", draft, "--target", target, "--dry-run", "--json").stdout)
    assert {tensor["type"] for tensor in plan["files"][0]["tensors"]} == {"F32", "BF16"}
    done = run("convert", draft, "--target", target, "--type", "bf16", "--type", "q8_0")
    assert done.returncode == 0, done.stderr
    assert len(linears(v2_config())) == 9 * 2 + 2
