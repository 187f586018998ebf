"""The real engine loads what we convert, drafts with it, and gives the target's own greedy tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builders import target_config, v1_config, v2_config, write_draft, write_target
from support.real_engine import ask_engine, write_target_gguf

from dflash_gguf.conversion import ConvertOptions, convert

pytestmark = pytest.mark.engine
pytest.importorskip("xllamacpp")

PROMPTS = [[5, 17, 300, 41, 9], list(range(100, 140))]


@pytest.mark.parametrize("version", [1, 2])
def test_the_engine_drafts_with_our_files(version: int, tmp_path: Path) -> None:
    config = v2_config(block_size=8) if version == 2 else v1_config(block_size=8)
    draft, folder = write_draft(tmp_path / "draft", config), write_target(tmp_path / "target")
    target = write_target_gguf(tmp_path / "target.gguf", folder, target_config())
    convert(draft, folder, ConvertOptions(types=("bf16", "q8_0", "q4_k_m"), out=str(tmp_path / "draft-{type}.gguf")))
    alone = ask_engine(target, None, PROMPTS, 24)
    assert all(answer["timings"]["predicted_n"] == 24 and answer["text"] for answer in alone)
    for kind in ("BF16", "Q8_0", "Q4_K_M"):
        drafted = ask_engine(target, tmp_path / f"draft-{kind}.gguf", PROMPTS, 24)
        assert [answer["text"] for answer in drafted] == [answer["text"] for answer in alone]
        assert all(answer["timings"]["draft_n"] > 0 for answer in drafted)
