"""What drafts beside DFlash: each kind is recognised, named, and told with the options that run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.builders_gguf import Parts, target_gguf
from support.processes import Run

from dflash_gguf.checks import check
from dflash_gguf.formats.gguf.types import GGMLType, ValueType

F32 = GGMLType.F32


def plain(path: Path) -> Parts:
    """A small model that drafts nothing."""
    return Parts.of(target_gguf(path))


def with_heads(parts: Parts, *, alone: bool) -> Parts:
    """Multi-token prediction: one more block, with the tensors that join two tokens' states."""
    architecture = str(parts.pairs["general.architecture"].value)
    parts.set(f"{architecture}.nextn_predict_layers", ValueType.UINT32, 1)
    number = int(str(parts.pairs[f"{architecture}.block_count"].value))
    parts.set(f"{architecture}.block_count", ValueType.UINT32, number + 1)
    if alone:
        parts.drop(*[name for name in parts.tensors if name.startswith("blk.")])
    else:
        parts.tensors.setdefault("blk.0.attn_norm.weight", (F32, (32,), bytes(128)))
    parts.tensors[f"blk.{number}.attn_norm.weight"] = (F32, (32,), bytes(128))
    parts.tensors[f"blk.{number}.nextn.eh_proj.weight"] = (F32, (64, 32), bytes(64 * 32 * 4))
    return parts


def of_kind(kind: str, folder: Path) -> Parts:
    parts = plain(folder / "plain.gguf")
    if kind == "eagle3":
        return parts.set("general.architecture", ValueType.STRING, "eagle3")
    if kind == "assistant":
        return parts.set("general.architecture", ValueType.STRING, "gemma4-assistant")
    if kind in ("mtp", "mtp inside"):
        return with_heads(parts, alone=kind == "mtp")
    if kind == "dspark":
        parts.tensors["markov_w1.weight"] = (F32, (8, 4), bytes(128))
        return parts.set("general.architecture", ValueType.STRING, "dflash")
    return parts


KINDS = {
    "eagle3": ("EAGLE-3 draft", "-md FILE --spec-type draft-eagle3"),
    "assistant": ("MTP draft", "-md FILE --spec-type draft-mtp"),
    "mtp": ("MTP draft", "-md FILE --spec-type draft-mtp"),
    "mtp inside": ("target with MTP heads", "--spec-type draft-mtp"),
    "dspark": ("DSpark draft", "-md FILE --spec-type draft-dspark"),
    "plain": (None, None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_inspect_says_what_it_is_and_what_runs_it(kind: str, run: Run, tmp_path: Path) -> None:
    name, flag = KINDS[kind]
    file = tmp_path / "x.gguf"
    file.write_bytes(of_kind(kind, tmp_path).encode())
    page = run("inspect", file)
    document = json.loads(run("inspect", file, "--json").stdout)
    if name is None:
        assert "runs with" not in page.stdout
        assert document["sidecar"] is None
        return
    assert f", {name}, arch " in page.stdout.split("\n")[0]
    assert f"  runs with     llama-server -m TARGET {flag}\n" in page.stdout
    assert (document["sidecar"]["name"], document["sidecar"]["flag"]) == (name, flag)


@pytest.mark.parametrize("kind", KINDS)
def test_check_judges_no_other_kind_by_the_rules_of_dflash(kind: str, tmp_path: Path) -> None:
    name, flag = KINDS[kind]
    file = tmp_path / "x.gguf"
    file.write_bytes(of_kind(kind, tmp_path).encode())
    report = check([file]).files[0]
    rules = [(finding.rule, finding.severity.value) for finding in report.findings]
    if kind == "plain":
        assert rules == [("KV101", "error")]
    elif kind == "dspark":
        assert ("KV109", "warning") in rules
        assert any(flag in finding.hint for finding in report.findings if flag)
    else:
        assert rules == [("KV101", "note")]
        assert str(name) in report.findings[0].message
        assert str(flag) in report.findings[0].hint
        assert report.verdict == "pass"


def test_a_foreign_dialect_is_named(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(plain(tmp_path / "y.gguf").set("general.architecture", ValueType.STRING, "dflash-draft").encode())
    assert (
        "dflash-draft: foreign, not read; `dflash-gguf patch IN OUT --fix all` migrates it"
        in run("inspect", file).stdout
    )
