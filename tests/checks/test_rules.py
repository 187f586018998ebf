"""Every rule: a file that breaks it and only it; good files on which all are silent."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builders_gguf import target_gguf
from support.faults import FAULTS, NAME, Workshop, quantized

from dflash_gguf.checks import FileReport, check
from dflash_gguf.checks.rules import all_rules


def only(file: Path, **options: object) -> FileReport:
    (report,) = check([file], **options).files  # type: ignore[arg-type]
    return report


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_nothing_else(shop: Workshop, name: str) -> None:
    fault = FAULTS[name]
    case = fault.make(shop)
    report = only(case.file, **case.options)
    assert {(f.rule, f.severity.value) for f in report.findings} == {(fault.rule, fault.severity)}, report.findings
    assert fault.where in {f.where for f in report.findings} or not fault.where, report.findings
    assert report.verdict == {"error": "fail", "warning": "warn", "note": "pass"}[fault.severity]
    for finding in report.findings:
        assert finding.message
        assert finding.hint
        assert "\n" not in finding.message


def test_every_rule_has_a_fault() -> None:
    assert {fault.rule for fault in FAULTS.values()} == set(all_rules())


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_good_file_passes_every_rule(shop: Workshop, v1_shop: Workshop, version: str) -> None:
    good = shop if version == "v2" else v1_shop
    report = only(good.root / NAME, target=good.target, source=good.draft, data=True)
    assert report.findings == ()
    assert report.not_checked == ()
    assert set(report.passed) == set(all_rules())


@pytest.mark.parametrize("recipe", ["q8_0", "q4_k_m", "q6_k", "f32"])
def test_good_files_of_other_types_pass(shop: Workshop, recipe: str) -> None:
    path = shop.write(quantized(shop, recipe), f"dflash-Tiny-{recipe.upper()}.gguf")
    report = only(path, target=shop.target, source=shop.draft, data=True)
    assert [f for f in report.findings if f.severity.value != "note"] == []


def test_the_gguf_of_its_target_fits(shop: Workshop) -> None:
    report = only(shop.root / NAME, target=target_gguf(shop.folder() / "Tiny-BF16.gguf"))
    assert report.findings == ()


def test_what_was_not_looked_at_is_listed(shop: Workshop) -> None:
    report = only(shop.root / NAME)
    assert report.not_checked == (
        "TN306: weights are read with --data",
        "PR401-PR405: no --target was given",
        "SR501-SR503: no --source was given",
    )
