"""NM601 names the right name."""

from __future__ import annotations

import pytest
from support.builders_gguf import Parts
from support.faults import STR, U32, Workshop, quantized

from dflash_gguf.checks import Finding, check
from dflash_gguf.checks.rules import find_rule
from dflash_gguf.formats.gguf.types import GGMLType


def judge(shop: Workshop, parts: Parts, name: str, card: str = "") -> Finding:
    path = shop.write(parts, name)
    if card:
        (path.parent / "README.md").write_text(card)
    (finding,) = check([path], select=["NM601"]).files[0].findings
    return finding


def nameless(shop: Workshop) -> Parts:
    parts = shop.parts()
    return parts.remove(*(key for key in parts.pairs if key.startswith("general.base_model.0.")))


@pytest.mark.parametrize("name", ["model.gguf", "DFlash-Tiny-BF16.gguf", "dflash-Tiny.gguf", "dflash-Tiny-Q8_0.gguf"])
def test_the_right_name_is_suggested(shop: Workshop, name: str) -> None:
    assert judge(shop, shop.parts(), name).hint == "rename it to dflash-Tiny-BF16.gguf"


def test_the_type_is_the_file_s_own(shop: Workshop) -> None:
    q4 = quantized(shop, "q4_k_m")
    assert judge(shop, q4, "dflash-Tiny.gguf").hint == "rename it to dflash-Tiny-Q4_K_M.gguf"
    wrong = quantized(shop, "q8_0").set("general.file_type", U32, 15)  # KV109: the label is what lies
    assert judge(shop, wrong, "x.gguf").hint == "rename it to dflash-Tiny-Q8_0.gguf"
    bare = shop.parts().remove("general.file_type")
    assert judge(shop, bare, "x.gguf").hint == "rename it to dflash-Tiny-BF16.gguf"
    empty = bare.copy().drop(*(name for name, part in bare.tensors.items() if part[0] is not GGMLType.F32))
    assert judge(shop, empty, "x.gguf").hint == "rename it to dflash-Tiny-<TYPE>.gguf"


def test_the_target_is_the_card_s_or_left_open(shop: Workshop) -> None:
    card = "---\nbase_model: org/Some-Target\n---\n"
    assert judge(shop, nameless(shop), "x.gguf", card).hint == "rename it to dflash-Some-Target-BF16.gguf"
    assert judge(shop, nameless(shop), "x.gguf").hint == "rename it to dflash-<target>-BF16.gguf"
    hostile = shop.parts().set("general.base_model.0.name", STR, "../\x1b[31m" + "x" * 5000)
    hint = judge(shop, hostile, "x.gguf").hint
    assert (hint.isprintable(), "/" in hint, len(hint) < 200) == (True, False, True)


def test_a_name_with_the_prefix_is_not_said_to_be_overlooked(shop: Workshop) -> None:
    assert "does not begin with dflash-" in judge(shop, shop.parts(), "x.gguf").message
    message = judge(shop, shop.parts(), "dflash-Tiny-latest.gguf").message
    assert message == "'dflash-Tiny-latest.gguf' does not end in a type, as in -BF16.gguf"
    assert find_rule("NM601").at_run_time.startswith("Without the prefix ")


def test_a_name_that_the_weights_bear_out_is_right(shop: Workshop) -> None:
    """The label is wrong then, and KV109 says so."""
    parts = shop.parts().set("general.file_type", U32, 7)
    report = check([shop.write(parts, "dflash-Tiny-BF16.gguf")]).files[0]
    assert [f.rule for f in report.findings if f.severity.value != "note"] == ["KV109"]
