"""Embedding, head, mask embedding and reduced vocabulary: what a draft brings, borrows or leaves to its target."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders import (
    bf16,
    random_tensors,
    safetensors_bytes,
    target_config,
    v1_config,
    v2_config,
    write_draft,
    write_target,
)
from support.vocabulary_tensors import (
    EMBED,
    HEAD,
    IDS,
    MASKS,
    MEMBERS,
    OFFSETS,
    Arrays,
    mixed_safetensors,
    reduced,
    target_with_weights,
)

from dflash_gguf.conversion import ConvertOptions, convert, dry_run
from dflash_gguf.errors import FormatError, ModelError, UsageError
from dflash_gguf.formats.gguf.scan import Header, scan_header
from dflash_gguf.formats.gguf.types import GGMLType
from dflash_gguf.storage.files import LocalFile


def made(draft: Path, target: Path, out: Path, **options: Any) -> tuple[Header, dict[str, bytes]]:
    """Convert to BF16; the file's header and its tensors' bytes."""
    path = out / "out.gguf"
    convert(draft, target, ConvertOptions(out=str(path), force=True, **options))
    with LocalFile(path) as source:
        header = scan_header(source)
        header.require_sound(path.name)
        data = {name: source.read(tensor.offset, tensor.size) for name, tensor in header.tensors.items()}
    return header, data


def own_tables() -> Arrays:
    return random_tensors(v2_config()) | {"embed_tokens.weight": EMBED, "model.lm_head.weight": HEAD}


def test_keep_drop_and_what_was_dropped(target: Path, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft", v2_config(), own_tables())
    _, kept = made(draft, target, tmp_path)
    assert (kept["token_embd.weight"], kept["output.weight"]) == (EMBED.tobytes(), HEAD.tobytes())
    header, _ = made(draft, target, tmp_path, embed="drop")
    assert not {"token_embd.weight", "output.weight"} & header.tensors.keys()
    plan = dry_run(draft, target, ConvertOptions(out=str(tmp_path / "x.gguf"), embed="drop"))
    assert [name for name, _ in plan.dropped] == ["embed_tokens.weight", "model.lm_head.weight"]


@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", "language_model.model.", ""])
@pytest.mark.parametrize("sharded", [False, True])
def test_from_target(prefix: str, sharded: bool, tmp_path: Path) -> None:
    target = target_with_weights(tmp_path / "Tiny", sharded=sharded, prefix=prefix)
    draft = write_draft(tmp_path / "draft", v2_config(has_embed_tokens=False))
    if sharded:  # a shard that is not needed is not even opened
        (target / "model-00001.safetensors").write_bytes(b"damaged")
    _, data = made(draft, target, tmp_path, embed="from-target")
    assert (data["token_embd.weight"], data["output.weight"]) == (EMBED.tobytes(), HEAD.tobytes())


def test_from_a_tied_target_there_is_no_head(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft", v2_config())
    header, data = made(draft, target_with_weights(tmp_path / "Tiny", tied=True), tmp_path, embed="from-target")
    assert data["token_embd.weight"] == EMBED.tobytes()
    assert "output.weight" not in header.tensors


def test_a_config_that_does_not_say_whether_it_is_tied(tmp_path: Path) -> None:
    target = target_with_weights(tmp_path / "Tiny", tied=True)
    (target / "config.json").write_text(json.dumps(target_config(tie_word_embeddings=None)))
    draft = write_draft(tmp_path / "draft", v2_config())
    header, _ = made(draft, target, tmp_path, embed="from-target")
    assert "output.weight" not in header.tensors


def test_from_target_replaces_own_ones(tmp_path: Path) -> None:
    own = random_tensors(v2_config()) | {"embed_tokens.weight": HEAD, "lm_head.weight": EMBED}
    draft = write_draft(tmp_path / "draft", v2_config(), own)
    _, data = made(draft, target_with_weights(tmp_path / "Tiny"), tmp_path, embed="from-target")
    assert (data["token_embd.weight"], data["output.weight"]) == (EMBED.tobytes(), HEAD.tobytes())


def test_embed_refusals(target: Path, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft", v2_config(), own_tables())
    wide = write_target(tmp_path / "Wide", target_config(hidden_size=128))
    bare = write_target(tmp_path / "Bare", target_config(tie_word_embeddings=False))
    (bare / "model.safetensors").write_bytes(safetensors_bytes({"model.norm.weight": EMBED[0]}))
    short = target_with_weights(tmp_path / "Short")
    (short / "model.safetensors").write_bytes(
        safetensors_bytes({"model.embed_tokens.weight": EMBED[:9], "lm_head.weight": HEAD})
    )
    for folder, embed, kind, complaint in (
        (target, "half", UsageError, "'half', expected one of keep, drop, from-target"),
        (wide, "drop", ModelError, "hidden_size is 64 in the draft but 128 in the target"),
        (target, "from-target", ModelError, "no safetensors file"),
        (bare, "from-target", ModelError, "has no embed_tokens.weight"),
        (short, "from-target", ModelError, r"shape \[9, 64\]"),
    ):
        with pytest.raises(kind, match=complaint):
            dry_run(draft, folder, ConvertOptions(out=str(tmp_path / "x.gguf"), embed=embed))


@pytest.mark.parametrize("name", ["bf16", "f32", "f16-view", "parameter"])
def test_a_mask_embedding_takes_its_row_of_the_targets_table(name: str, tmp_path: Path) -> None:
    # as the reference: the embedding with the row, and a head of its own in which the row is the target's
    draft = write_draft(tmp_path / "draft", v1_config(has_embed_tokens=False))
    shutil.copy(MASKS / f"{name}.pt", draft / "mask_embedding.pt")
    _, data = made(draft, target_with_weights(tmp_path / "Tiny", tied=True), tmp_path)
    table = np.frombuffer(data["token_embd.weight"], np.uint16).reshape(2048, 64)
    changed = np.flatnonzero((table != EMBED).any(axis=1))
    assert changed.tolist() == [2030]
    if name != "f16-view":
        values = np.array(json.loads((MASKS / "values.json").read_text())["f32"], np.float32)
        assert (table[2030] == bf16(values)).all()  # torch rounds so too
    assert data["output.weight"] == EMBED.tobytes()


def test_a_mask_embedding_in_own_tables_in_every_type(target: Path, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft", v2_config(), own_tables())
    shutil.copy(MASKS / "bf16.pt", draft / "mask_embedding.pt")
    _, plain = made(draft, target, tmp_path)
    expected = EMBED.copy()
    with LocalFile(MASKS / "bf16.pt") as source:
        raw = source.read(0, source.size)
    expected[2030] = np.frombuffer(plain["token_embd.weight"], np.uint16).reshape(2048, 64)[2030]
    assert expected[2030].tobytes() in raw
    assert plain["token_embd.weight"] == expected.tobytes()
    assert plain["output.weight"] == HEAD.tobytes()


def test_mask_embedding_refusals(target: Path, tmp_path: Path) -> None:
    for number, (config, embed, kind, complaint) in enumerate(
        (
            (v2_config(mask_token_id=2031), "keep", ModelError, "mask_token_id 2030, the config says 2031"),
            (v2_config(), "drop", ModelError, "belongs into the embedding"),
            (v2_config(), "keep", ModelError, "no safetensors file"),
        )
    ):
        draft = write_draft(tmp_path / str(number), config)
        shutil.copy(MASKS / "bf16.pt", draft / "mask_embedding.pt")
        with pytest.raises(kind, match=complaint):
            dry_run(draft, target, ConvertOptions(out=str(tmp_path / "x.gguf"), embed=embed))
    wide = v1_config(hidden_size=128, head_dim=32)
    draft = write_draft(tmp_path / "wide", wide)
    shutil.copy(MASKS / "bf16.pt", draft / "mask_embedding.pt")
    broad = write_target(tmp_path / "Broad", target_config(hidden_size=128))
    with pytest.raises(ModelError, match=r"shape \[64\], the draft wants \[128\]"):
        dry_run(draft, broad, ConvertOptions(out=str(tmp_path / "x.gguf")))


@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_a_reduced_vocabulary(kind: type[np.integer[Any]], target: Path, tmp_path: Path) -> None:
    draft = reduced(tmp_path / "draft", OFFSETS.astype(kind), t2d=MEMBERS)
    convert(draft, target, ConvertOptions(types=("bf16", "q4_k_m"), out=str(tmp_path / "out-{type}.gguf")))
    for name in ("BF16", "Q4_K_M"):
        with LocalFile(tmp_path / f"out-{name}.gguf") as source:
            header = scan_header(source)
            table = header.tensors["d2t"]
            assert (table.type, table.shape) == (GGMLType.I64, (512,))
            # llama.cpp reads ids of the target, the checkpoint holds offsets from the row's own number
            assert source.read(table.offset, table.size) == IDS.astype("<i8").tobytes()
        assert header.tensors["output.weight"].shape == (64, 512)
        assert header.tensors["selector_predecessor.weight"].shape == (32, 2048)


def test_reduced_vocabulary_refusals(target: Path, tmp_path: Path) -> None:
    def refused(complaint: str, folder: Path, embed: str = "keep") -> None:
        with pytest.raises(ModelError, match=complaint):
            dry_run(folder, target, ConvertOptions(out=str(tmp_path / "x.gguf"), embed=embed))

    refused("row 409 is token 2048", reduced(tmp_path / "ids", IDS))
    refused("two rows are the same", reduced(tmp_path / "twice", np.where(np.arange(512) == 1, 2, OFFSETS)))
    refused("names other tokens than d2t", reduced(tmp_path / "other", OFFSETS, t2d=np.roll(MEMBERS, 1)))
    refused(r"is F32 \[512\]", reduced(tmp_path / "floats", OFFSETS.astype(np.float32)))
    refused("needs its own head", reduced(tmp_path / "drop", OFFSETS), embed="drop")
    draft = reduced(tmp_path / "headless", OFFSETS)
    tensors = {k: v for k, v in random_tensors(v2_config()).items() if k != "lm_head.weight"}
    (draft / "model.safetensors").write_bytes(mixed_safetensors(tensors))
    refused("2 tensors missing: lm_head.weight, d2t", draft)


def test_a_map_over_the_whole_vocabulary_is_left_out(target: Path, tmp_path: Path) -> None:
    draft = reduced(tmp_path / "draft", OFFSETS, t2d=MEMBERS)
    (draft / "config.json").write_text(json.dumps(v2_config(nested__draft_vocab_size=2048)))
    whole = random_tensors(v2_config()) | {"d2t": np.zeros(2048, np.int64), "t2d": np.ones(2048, bool)}
    (draft / "model.safetensors").write_bytes(mixed_safetensors(whole))
    plan = dry_run(draft, target, ConvertOptions(out=str(tmp_path / "x.gguf")))
    assert dict(plan.dropped) == {"d2t": "every token has its own row", "t2d": "not used at run time"}


def test_damaged_mask_embedding(target: Path, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft", v2_config(), own_tables())
    (draft / "mask_embedding.pt").write_bytes(b"PK\x03\x04")
    with pytest.raises(FormatError, match=r"no file of torch\.save"):
        dry_run(draft, target, ConvertOptions(out=str(tmp_path / "x.gguf")))
