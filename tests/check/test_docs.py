"""The pages say what the code does."""

from __future__ import annotations

import runpy

import yaml
from builders import ROOT

from check.faults import Workshop
from dflash_gguf.checks import check

DOCS = ROOT / "docs"


def test_the_page_of_rules_is_current() -> None:
    script = runpy.run_path(str(DOCS / "make_rules.py"))
    assert (DOCS / "rules.md").read_text() == script["render"](), "run: python docs/make_rules.py"


def test_hooks_name_commands_that_are_there(shop: Workshop) -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert [hook["entry"].split()[:2] for hook in hooks] == [["dflash-gguf", "check"]] * 2
    path = shop.write(shop.parts())
    (path.parent / "README.md").write_text("81 tensors")
    (file,) = check([path.parent / "README.md"], select=["NM602"]).files
    assert [finding.rule for finding in file.findings] == ["NM602"]
