"""`passed` holds what was carried out, and nothing else: what was not stands in `not_checked`, with the reason."""

from __future__ import annotations

import pytest
from support.builders_gguf import Parts
from support.faults import LAYERS, NAME, U32, Workshop

from dflash_gguf.checks import FileReport, check
from dflash_gguf.checks.rules import all_rules
from dflash_gguf.checks.runner import _ranges
from dflash_gguf.formats.gguf.types import GGMLType

CONTAINER = ["GF002", "GF003", "GF004", "GF005", "GF006", "GF007"]


def judge(shop: Workshop, what: Parts | bytes, **options: object) -> FileReport:
    (report,) = check([shop.write(what)], **options).files  # type: ignore[arg-type]
    skipped = [line.partition(":")[0] for line in report.not_checked]
    both = [rule for rule in report.passed if any(rule in _spread(ids) for ids in skipped)]
    assert not both, "passed and not checked at once"
    return report


def _spread(ids: str) -> list[str]:
    """The rules that a line of `not_checked` begins with: `GF002-GF007, KV101`."""
    rules = list(all_rules())
    spread = []
    for part in ids.split(", "):
        first, _, last = part.partition("-")
        spread += rules[rules.index(first) : rules.index(last or first) + 1]
    return spread


def not_checked(report: FileReport) -> dict[str, str]:
    told = (line.partition(": ") for line in report.not_checked)
    return {rule: reason for ids, _, reason in told for rule in _spread(ids)}


def test_ranges_join_only_neighbours() -> None:
    rules = list(all_rules())
    assert _ranges(["GF003", "GF004", "GF006", "KV101"], rules) == "GF003-GF004, GF006, KV101"
    assert _spread("GF003-GF004, GF006, KV101") == ["GF003", "GF004", "GF006", "KV101"]


@pytest.mark.parametrize(
    "raw", [b"", b"<!doctype html><html>404</html>", b"version https://git-lfs.github.com/spec/v1\n"]
)
def test_what_is_no_gguf_passes_nothing(shop: Workshop, raw: bytes) -> None:
    report = judge(shop, raw)
    assert [f.rule for f in report.findings] == ["GF001"]
    assert report.passed == ()
    assert {rule: reason for rule, reason in not_checked(report).items() if rule in CONTAINER} == dict.fromkeys(
        CONTAINER, "reading stopped at GF001"
    )


def test_what_the_scanner_had_seen_before_it_stopped_counts(shop: Workshop) -> None:
    whole = shop.parts().encode()
    assert judge(shop, b"GGUF\x09" + whole[5:]).passed == ("GF001",)  # version 9
    assert judge(shop, whole[:6]).passed == ("GF001",)  # GF003: the version itself is cut
    assert judge(shop, whole[:200]).passed == ("GF001", "GF002")  # GF003 among the keys


def test_a_truncated_file_is_not_compared_with_its_source(shop: Workshop) -> None:
    report = judge(shop, shop.parts().encode()[:-5000], source=shop.draft, data=True)
    assert [f.rule for f in report.findings] == ["GF006"]
    told = not_checked(report)
    assert "beyond the end of the file" in told["SR502"]
    assert "beyond the end of the file" in told["TN306"]


def test_tensors_that_are_absent_are_not_compared(shop: Workshop) -> None:
    report = judge(shop, shop.parts().drop("fc.weight"), source=shop.draft, target=shop.target)
    assert not_checked(report)["SR502"] == "1 tensor not in the file"
    assert not_checked(report)["PR402"] == "the draft holds no fc.weight"


def test_without_geometry_no_tensor_rule_passes(shop: Workshop) -> None:
    geometry = [key for key in shop.good.pairs if key.startswith("dflash.")]
    report = judge(shop, shop.parts().remove(*geometry).drop(*(n for n in shop.good.tensors if n != "fc.weight")))
    reason = "the metadata do not say what tensors there should be"
    told = not_checked(report)
    assert [rule for rule, why in told.items() if why == reason] == [
        "TN301",
        "TN302",
        "TN303",
        "TN304",
        "TN305",
        "TN307",
    ]


def test_no_tensors_and_too_many(shop: Workshop) -> None:
    none = not_checked(judge(shop, shop.parts().drop(*shop.good.tensors), data=True))
    rules = ("TN302", "TN303", "TN304", "TN305", "TN306", "TN307")
    assert {rule: none[rule] for rule in rules} == dict.fromkeys(rules, "the file holds no tensors")
    many = shop.parts()
    many.tensors |= {f"t{number}": (GGMLType.F32, (1,), bytes(4)) for number in range(10_000)}
    told = not_checked(judge(shop, many))
    assert {told[rule] for rule in rules if rule != "TN306"} == {"no draft has so many tensors"}


def test_without_a_vocabulary_ids_are_not_judged(shop: Workshop) -> None:
    report = judge(shop, shop.parts().remove("tokenizer.ggml.tokens"), target=shop.target)
    told = not_checked(report)
    reason = "the file holds no vocabulary"
    assert {rule: told[rule] for rule in ("TK202", "TK203", "TK204", "TK205")} == dict.fromkeys(
        ("TK202", "TK203", "TK204", "TK205"), reason
    )
    assert told["PR401"] == "the draft holds no tokens that can be compared"


def test_a_target_that_says_little(shop: Workshop) -> None:
    target = shop.target_with(num_hidden_layers=None)
    report = judge(shop, shop.parts(), target=target)
    assert not_checked(report)["PR402"] == "the target does not say its number of blocks"
    report = judge(shop, shop.parts().remove(LAYERS), target=shop.target)
    assert not_checked(report)["PR402"] == "the draft names no target_layers"


def test_a_revision_that_nobody_recorded(shop: Workshop) -> None:
    report = judge(shop, shop.parts().remove("general.source.spec_sha256"), source=shop.draft)
    assert not_checked(report)["SR503"] == "the file records neither a revision nor a hash that the source has"


def test_a_type_without_a_recipe(shop: Workshop) -> None:
    reason = "no recipe is known of the type that general.file_type names"
    assert not_checked(judge(shop, shop.parts().set("general.file_type", U32, 38)))["TN307"] == reason
    assert not_checked(judge(shop, shop.parts().remove("general.file_type")))["TN307"] == reason


def test_a_good_file_leaves_nothing_out(shop: Workshop) -> None:
    (report,) = check([shop.root / NAME], target=shop.target, source=shop.draft, data=True).files
    assert report.not_checked == ()
    assert set(report.passed) == set(all_rules())


def test_an_absurd_array_is_not_looked_at(shop: Workshop) -> None:
    parts = shop.parts().set_strings("some.texts", [b""] * ((1 << 20) + 1))
    assert "more than are looked at" in not_checked(judge(shop, parts))["GF007"]
