"""The real engine drafts with reduced vocabularies, with embeddings of the draft's own and with a mask embedding."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders import random_tensors, target_config, v1_config, v2_config, write_draft, write_target
from support.real_engine import ask_engine, write_target_gguf
from support.vocabulary_tensors import MASKS, OFFSETS, mixed_safetensors, random_table, target_with_weights

from dflash_gguf.conversion import ConvertOptions, convert

pytestmark = pytest.mark.engine
pytest.importorskip("xllamacpp")

PROMPTS = [[5, 17, 300, 41, 9], list(range(100, 140))]


def drafted(draft: Path, folder: Path, tmp_path: Path, **options: Any) -> list[dict[str, Any]]:
    """What the engine says with the draft, after checking that its text is the target's own."""
    target = write_target_gguf(tmp_path / "target.gguf", write_target(tmp_path / "plain"), target_config())
    convert(draft, folder, ConvertOptions(types=("q8_0",), out=str(tmp_path / "draft.gguf"), **options))
    alone = ask_engine(target, None, PROMPTS, 24)
    answers = ask_engine(target, tmp_path / "draft.gguf", PROMPTS, 24)
    assert [answer["text"] for answer in answers] == [answer["text"] for answer in alone]
    return [answer["timings"] for answer in answers]


@pytest.mark.parametrize("version", [1, 2])
def test_a_reduced_vocabulary_is_drafted_with(version: int, tmp_path: Path) -> None:
    plain = v2_config() if version == 2 else v1_config()
    tensors: dict[str, np.ndarray[Any, Any]] = random_tensors(plain)
    draft = write_draft(tmp_path / "draft", {**plain, "draft_vocab_size": len(OFFSETS)}, tensors)
    head = random_table(len(OFFSETS), 8)
    (draft / "model.safetensors").write_bytes(mixed_safetensors(tensors | {"lm_head.weight": head, "d2t": OFFSETS}))
    timings = drafted(draft, write_target(tmp_path / "t"), tmp_path)
    assert all(timing["draft_n"] > 0 for timing in timings)


def test_the_targets_embedding_in_the_draft(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft", v2_config())
    timings = drafted(draft, target_with_weights(tmp_path / "Tiny"), tmp_path, embed="from-target")
    assert all(timing["draft_n"] > 0 for timing in timings)


def test_a_mask_embedding(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft", v1_config(has_embed_tokens=False))
    shutil.copy(MASKS / "bf16.pt", draft / "mask_embedding.pt")
    timings = drafted(draft, target_with_weights(tmp_path / "Tiny", tied=True), tmp_path)
    assert all(timing["draft_n"] > 0 for timing in timings)


def test_a_targets_gguf_as_target(tmp_path: Path) -> None:
    folder = write_target(tmp_path / "t")
    gguf = write_target_gguf(tmp_path / "t.gguf", folder, json.loads((folder / "config.json").read_text()))
    timings = drafted(write_draft(tmp_path / "draft", v2_config()), gguf, tmp_path)
    assert all(timing["draft_n"] > 0 for timing in timings)
