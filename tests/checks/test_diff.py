"""Two files compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.damaged_copies import decoded
from support.faults import NAME, U32, Workshop, quantized
from support.processes import Run

from dflash_gguf.checks.diff import diff
from dflash_gguf.errors import FormatError, UsageError


def test_a_file_equals_itself(shop: Workshop) -> None:
    found = diff(shop.root / NAME, shop.root / NAME)
    assert found.equal
    assert found.same == len(shop.good.tensors)


def test_keys_and_tensors_that_differ(shop: Workshop) -> None:
    parts = shop.parts().set("dflash.block_size", U32, 16).remove("dflash.attention.causal").drop("fc.weight")
    parts.reshape("selector_hidden.weight", (32, 64))
    raw = bytearray(parts.tensors["blk.0.attn_norm.weight"][2])
    raw[-1] ^= 0x80
    parts.fill("blk.0.attn_norm.weight", bytes(raw))
    found = diff(shop.root / NAME, shop.write(parts))
    assert {key.key: (key.a is None, key.b is None) for key in found.keys} == {
        "dflash.block_size": (False, False),
        "dflash.attention.causal": (False, True),
    }
    problems = {tensor.name: tensor.problem for tensor in found.tensors}
    assert problems == {
        "fc.weight": "only in the first file",
        "selector_hidden.weight": "the shapes differ",
        "blk.0.attn_norm.weight": "",
    }
    assert found.same == len(shop.good.tensors) - 3


def test_errors_between_types_are_the_weights_own(shop: Workshop) -> None:
    parts = quantized(shop, "q4_0")
    path = shop.write(parts, "dflash-Tiny-Q4_0.gguf")
    found = diff(shop.root / NAME, path)
    values = [tensor.rmse for tensor in found.tensors]
    assert values == sorted(values, key=lambda value: -(value or 0))
    (fc,) = [tensor for tensor in found.tensors if tensor.name == "fc.weight"]
    a, b = (decoded(p, "fc.weight").astype(np.float64) for p in (shop.good, parts))
    assert fc.rmse == pytest.approx(np.sqrt(((b - a) ** 2).sum() / (a**2).sum()))
    assert fc.max_error == pytest.approx(np.abs(b - a).max())
    assert fc.cosine == pytest.approx(a @ b / np.sqrt((a @ a) * (b @ b)))


def test_the_command(shop: Workshop, run: Run) -> None:
    path = shop.write(quantized(shop, "q8_0"), "dflash-Tiny-Q8_0.gguf")
    done = run("diff", shop.root / NAME, path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "general.file_type: 32 (uint32) → 7 (uint32)" in done.stdout
    document = json.loads(run("diff", shop.root / NAME, path, "--json").stdout)
    assert document["equal"] is False
    assert document["tensors"][0]["relative_rmse"] > 0
    assert run("diff", path, path).stdout.startswith("equal")


def test_what_cannot_be_compared(shop: Workshop, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        diff(shop.root / NAME, tmp_path / "none.gguf")
    cut = shop.write(shop.good.encode()[:-100])
    with pytest.raises(FormatError, match="truncated"):
        diff(shop.root / NAME, cut)
