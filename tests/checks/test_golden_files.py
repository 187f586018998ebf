"""No false alarms: the golden conversions, with everything that can be looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.builders import v1_config, v2_config
from support.faults import I32, LAYERS, NAME, U32, Workshop

from dflash_gguf.checks import FileReport, check
from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.errors import ModelError
from dflash_gguf.formats.gguf.types import ValueType

TYPES = ("bf16", "q8_0", "q4_k_m")


def told(report: FileReport) -> list[tuple[str, str]]:
    return [(f.rule, f.severity.value) for f in report.findings if f.severity.value != "note"]


@pytest.fixture(scope="module")
def golden_files(golden_inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    files = {}
    for name in ("glm53flash", "odd"):
        out = tmp_path_factory.mktemp(name)
        draft, target = golden_inputs / name / "draft", golden_inputs / name / "target"
        convert(draft, target, ConvertOptions(types=TYPES, out=str(out / f"dflash-{name}-{{type}}.gguf")))
        files[name] = sorted(out.iterdir())
    return files


def test_golden_conversions_pass(golden_files: dict[str, list[Path]], golden_inputs: Path) -> None:
    folder = golden_inputs / "glm53flash"
    reports = check(golden_files["glm53flash"], target=folder / "target", source=folder / "draft", data=True).files
    assert [(report.verdict, told(report), report.not_checked) for report in reports] == [("pass", [], ())] * 3


def test_the_odd_conversions_pass(golden_files: dict[str, list[Path]], golden_inputs: Path) -> None:
    folder = golden_inputs / "odd"
    for report in check(golden_files["odd"], target=folder / "target", source=folder / "draft", data=True).files:
        assert (report.verdict, told(report)) == ("pass", [])


@pytest.mark.parametrize("partial", [0.5, None])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_rope_sections_of_either_size_pass(tmp_path: Path, version: str, partial: float | None) -> None:
    """Rope sections as the reference writes them (half a head, also where only part of it is roped)."""
    config = v2_config() if version == "v2" else v1_config()
    if partial:
        config["rope_parameters"]["partial_rotary_factor"] = partial
    shop = Workshop.open(tmp_path, config)
    for half in (16, 8) if partial else (16,):
        parts = shop.parts().set_array("dflash.rope.dimension_sections", I32, [half, 0, 0, 0])
        rope = {"mrope_section": [6, 5, 5], "rope_type": "default", "rope_theta": 1e4}
        (report,) = check([shop.write(parts)], target=shop.target_with(rope_parameters=rope), source=shop.draft).files
        assert report.findings == ()


def test_keys_that_loaders_do_not_know_are_nobodys_business(shop: Workshop) -> None:
    parts = shop.parts().set("dflash.some_future_key", U32, 1).set("org.example.note", ValueType.STRING, "hi")
    (report,) = check([shop.write(parts)], source=shop.draft).files
    assert report.findings == ()


def test_optional_tensors_pass(shop: Workshop) -> None:
    parts = shop.parts()
    kind, _, raw = parts.tensors["fc.weight"]
    parts.tensors["token_embd.weight"] = (kind, (64, 2048), (raw * 12)[: 2 * 64 * 2048])
    parts.tensors["output.weight"] = parts.tensors["token_embd.weight"]
    norm = parts.tensors["output_norm.weight"]
    parts.tensors["rope_freqs.weight"] = (norm[0], (16,), norm[2][:64])
    parts.tensors["blk.0.attn_sinks.weight"] = (norm[0], (4,), norm[2][:16])
    parts.tensors["blk.1.post_attention_norm.weight"] = norm
    (report,) = check([shop.write(parts)]).files
    assert report.findings == ()


@pytest.mark.parametrize("block", [8, 16])
def test_block_size_16_on_a_draft_of_8(shop: Workshop, block: int) -> None:
    parts = shop.parts().set("dflash.block_size", U32, block)
    (report,) = check([shop.write(parts)], source=shop.draft).files
    expected = [] if block == 8 else [("SR501", "error"), ("KV103", "warning")]
    assert told(report) == expected


def test_taps_off_by_one(shop: Workshop) -> None:
    config = json.loads((shop.draft / "config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [1, 2, 4]  # unshifted these are this file's target_layers
    source = shop.source_with(target_layer_ids=[1, 2, 4])
    (report,) = check([shop.root / NAME], source=source, ignore=["SR502", "SR503"]).files
    assert [(f.rule, f.where) for f in report.findings] == [("SR501", LAYERS), ("KV104", LAYERS)]
    assert "off by one" in report.findings[1].message


def test_a_source_that_is_no_draft_is_an_error(shop: Workshop) -> None:
    with pytest.raises(ModelError, match="not a DFlash draft"):
        check([shop.root / NAME], source=shop.target)
