"""The file against its source: exactness where it is due, an error bound where another quantizer was at work."""

from __future__ import annotations

import numpy as np
import pytest
from support.damaged_copies import decoded, requantized
from support.faults import I32, Workshop, quantized

from dflash_gguf.checks import Finding, check
from dflash_gguf.checks.compare_checkpoint import RMSE_BOUND
from dflash_gguf.formats.blocks import dequantize, quantize
from dflash_gguf.formats.gguf.types import GGMLType, tensor_bytes


def against_source(shop: Workshop, parts: object, recipe: str) -> list[Finding]:
    path = shop.write(parts, f"dflash-Tiny-{recipe.upper()}.gguf")  # type: ignore[arg-type]
    (report,) = check([path], source=shop.draft, select=["SR502"]).files
    assert report.not_checked == ()
    return list(report.findings)


@pytest.mark.parametrize("recipe", ["q8_0", "q6_k", "q5_0", "q4_0"])
def test_another_quantizer_is_judged_by_its_error(shop: Workshop, recipe: str) -> None:
    """Weights moved by a fifth of a quantization step, then quantized: every block differs, the error hardly does."""
    parts = requantized(quantized(shop, recipe), shop, wobble=0.2)
    findings = against_source(shop, parts, recipe)
    assert [f.severity.value for f in findings] == ["note"], findings
    assert "another quantizer" in findings[0].message


@pytest.mark.parametrize("recipe", ["q8_0", "q4_0"])
def test_weights_that_are_too_far_off_are_found(shop: Workshop, recipe: str) -> None:
    parts = requantized(quantized(shop, recipe), shop, wobble=6.0)
    findings = against_source(shop, parts, recipe)
    assert {f.severity.value for f in findings} == {"error"}
    assert "bound" in findings[0].message


@pytest.mark.parametrize("recipe", ["q8_0", "q4_0", "q5_0"])
@pytest.mark.parametrize("name", ["blk.0.ffn_up.weight", "selector_predecessor.weight", "fc.weight"])
def test_one_flipped_bit_in_a_quantized_tensor_is_found(shop: Workshop, recipe: str, name: str) -> None:
    parts = quantized(shop, recipe)
    raw = bytearray(parts.tensors[name][2])
    raw[-1] ^= 1
    findings = against_source(shop, parts.fill(name, bytes(raw)), recipe)
    assert [(f.where, f.severity.value) for f in findings] == [(name, "error")]
    blocks = len(raw) // tensor_bytes(parts.tensors[name][0], 32)
    message = findings[0].message
    assert f"1 of {blocks:,} blocks differs" in message
    assert f"(1 byte), the first is block {blocks - 1:,}, at byte " in message
    assert "within this type's bound of " in message
    assert "relative RMSE " in message


def test_the_first_difference_is_where_it_is_said_to_be(shop: Workshop) -> None:
    """Two bytes of a norm and of a matrix that spans several rows: the place is an offset in the file."""
    name = "blk.1.ffn_down.weight"
    good = shop.parts()
    raw = bytearray(good.tensors[name][2])
    raw[100] ^= 1
    raw[5000] ^= 1
    (finding,) = against_source(shop, good.fill(name, bytes(raw)), "bf16")
    whole, sound = good.encode(), shop.parts().encode()
    at = next(i for i, pair in enumerate(zip(whole, sound, strict=True)) if pair[0] != pair[1])
    assert (
        f"2 of {len(raw) // 2:,} weights differ (2 bytes), the first is weight 50, at byte {at:,} " in finding.message
    )
    assert "float weights are copied exactly" in finding.message


def test_exchanged_tensors_are_named(shop: Workshop) -> None:
    parts = shop.parts()
    for one, other in (("attn_q_norm", "attn_k_norm"), ("ffn_gate", "ffn_up"), ("attn_k", "attn_v")):
        a, b = (f"blk.1.{name}.weight" for name in (one, other))
        parts.tensors[a], parts.tensors[b] = parts.tensors[b], parts.tensors[a]
    findings = against_source(shop, parts, "bf16")
    assert len(findings) == 6
    messages = {f.where: f.message for f in findings}
    assert "begins like blk.1.attn_k_norm.weight" in messages["blk.1.attn_q_norm.weight"]
    assert "begins like blk.1.ffn_gate.weight" in messages["blk.1.ffn_up.weight"]


def test_exchanged_tensors_of_a_quantized_file_are_named(shop: Workshop) -> None:
    parts = quantized(shop, "q8_0")
    a, b = "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"
    parts.tensors[a], parts.tensors[b] = parts.tensors[b], parts.tensors[a]
    findings = against_source(shop, parts, "q8_0")
    assert {f.where: f.severity.value for f in findings} == {a: "error", b: "error"}
    assert "begins like" in findings[0].message


def test_a_norm_with_one_added_is_recognised(shop: Workshop) -> None:
    parts = shop.parts()
    name = "enc.output_norm.weight"
    raw = decoded(parts, name) + np.float32(1)
    findings = against_source(shop, parts.fill(name, raw.tobytes()), "bf16")
    assert [f.where for f in findings] == [name]
    assert "1 was added" in findings[0].message


def test_a_source_without_weights_is_not_checked(shop: Workshop) -> None:
    source = shop.source_with()
    (source / "model.safetensors").unlink()
    (report,) = check([shop.write(shop.parts())], source=source, select=["SR"], ignore=["SR503"]).files
    assert report.findings == ()
    assert report.not_checked == (f"SR502: {source} holds no safetensors",)


def test_a_damaged_source_is_not_taken_for_proof(shop: Workshop) -> None:
    source = shop.source_with()
    (source / "model.safetensors").write_bytes((shop.draft / "model.safetensors").read_bytes()[:-9])
    (report,) = check([shop.write(shop.parts())], source=source, select=["SR502"]).files
    assert report.findings == ()
    assert len(report.not_checked) == 1


@pytest.mark.parametrize("kind", [kind for kind in RMSE_BOUND if kind.name not in ("Q4_1", "Q5_1", "Q3_K", "Q2_K")])
def test_bounds_are_about_twice_what_quantizing_gives(kind: GGMLType) -> None:
    weights = np.random.default_rng(5).standard_normal(1 << 15).astype(np.float32)
    out = np.empty(tensor_bytes(kind, weights.size), np.uint8)
    quantize(kind, weights, out)
    error = dequantize(kind, out) - weights
    relative = float(np.sqrt((error**2).sum() / (weights**2).sum()))
    assert 1.5 < RMSE_BOUND[kind] / relative < 6


def test_a_wrong_type_is_told_by_its_name(shop: Workshop) -> None:
    path = shop.write(shop.parts().set("dflash.block_size", I32, 8))
    (finding,) = check([path], source=shop.draft, select=["SR501"]).files[0].findings
    assert finding.message == "is 8 (int32), converting the source gives 8 (uint32)"
