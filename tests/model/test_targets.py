"""Targets other than a plain folder: a GGUF, and drafts whose config leaves things to the target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders import (
    random_tensors,
    safetensors_bytes,
    target_config,
    v1_config,
    v2_config,
    write_draft,
    write_target,
)
from support.processes import Run
from support.real_engine import write_target_gguf

from dflash_gguf.conversion import ConvertOptions, convert, dry_run
from dflash_gguf.errors import DflashError, FormatError, ModelError, UsageError
from dflash_gguf.formats.gguf.emit import encode_header
from dflash_gguf.formats.gguf.scan import Header, scan_header
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, Metadata, MetaValue
from dflash_gguf.model.config import spec_from_config
from dflash_gguf.model.target import target_of_gguf
from dflash_gguf.storage.files import LocalFile, MemoryFile

STRING, U32 = ValueType.STRING, ValueType.UINT32


def header_of(path: Path) -> Header:
    with LocalFile(path) as source:
        return scan_header(source)


def tokenizer_block(metadata: Metadata) -> list[tuple[str, Any]]:
    values = [(key, value) for key, value in metadata.items() if key.startswith("tokenizer.")]
    return [(k, bytes(v.value.raw) if isinstance(v.value, Array) else v.value) for k, v in values]


def header_bytes(source: Path, **changes: MetaValue | None) -> bytes:
    """The header of a GGUF without tensors, keys set or (None) left out; `__` stands for a dot."""
    metadata = dict(header_of(source).metadata)
    for name, value in changes.items():
        key = name.replace("__", ".")
        metadata.pop(key, None)
        if value is not None:
            metadata[key] = value
    return encode_header(list(metadata.items()), []).data


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target as GGUF."""
    folder = tmp_path_factory.mktemp("target")
    return write_target_gguf(folder / "Tiny-Q8_0.gguf", write_target(folder / "Tiny"), target_config())


def test_a_gguf_gives_its_tokenizer_as_it_stands(gguf: Path, draft: Path, tmp_path: Path) -> None:
    convert(draft, gguf, ConvertOptions(out=str(tmp_path / "out.gguf")))
    ours, its = header_of(tmp_path / "out.gguf").metadata, header_of(gguf).metadata
    mask = ("tokenizer.ggml.mask_token_id", 2030)
    assert tokenizer_block(ours) == [*tokenizer_block(its), mask]
    assert ours["general.base_model.0.name"].value == "Tiny"


def test_a_folder_and_its_gguf_give_the_same_tokenizer(gguf: Path, draft: Path, target: Path, tmp_path: Path) -> None:
    for source, name in ((gguf, "a"), (target, "b")):
        convert(draft, source, ConvertOptions(out=str(tmp_path / f"{name}.gguf")))
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_default_name_and_the_target_as_output(gguf: Path, draft: Path, tmp_path: Path) -> None:
    (path,) = [output.path.name for output in dry_run(draft, gguf, ConvertOptions()).outputs]
    assert path == "dflash-Tiny-BF16.gguf"
    with pytest.raises(UsageError, match="is one of the inputs"):
        dry_run(draft, gguf, ConvertOptions(out=str(gguf), force=True))


@pytest.mark.parametrize(
    ("changes", "name", "url"),
    [
        ({"general__name": MetaValue(STRING, "Qwen3 Tiny")}, "Qwen3 Tiny", None),
        ({"general__name": MetaValue(STRING, "model")}, "big", None),
        (
            {"general__source__repo_url": MetaValue(STRING, "https://huggingface.co/Org/Tiny")},
            "Tiny",
            "https://huggingface.co/Org/Tiny",
        ),
        ({"general__repo_url": MetaValue(STRING, "https://example.com/Org/Tiny")}, "big", None),
    ],
)
def test_what_a_gguf_is_called(
    changes: dict[str, MetaValue], name: str, url: str | None, gguf: Path, draft: Path, tmp_path: Path
) -> None:
    path = tmp_path / "big-UD-Q4_K_XL-00001-of-00003.gguf"
    path.write_bytes(header_bytes(gguf, **changes))
    convert(draft, path, ConvertOptions(out=str(tmp_path / "out.gguf")))
    metadata = header_of(tmp_path / "out.gguf").metadata
    assert metadata["general.base_model.0.name"].value == name
    found = metadata.get("general.base_model.0.repo_url")
    assert (found.value if found else None) == url


def sections(*values: int) -> MetaValue:
    return MetaValue(ValueType.ARRAY, Array.of(ValueType.INT32, values))


@pytest.mark.parametrize(
    ("architecture", "values", "expected"),
    [("qwen3", (11, 11, 10, 0), (16, 0, 0, 0)), ("qwen3", (0, 0, 0, 0), None), ("hunyuan_vl", (1, 1, 1, 0), None)],
)
def test_sections_of_a_vision_targets_gguf(
    architecture: str, values: tuple[int, ...], expected: tuple[int, ...] | None, gguf: Path
) -> None:
    metadata = {
        "general__architecture": MetaValue(STRING, architecture),
        f"{architecture}__rope__dimension_sections": sections(*values),
        f"{architecture}__block_count": MetaValue(U32, 7),
        f"{architecture}__nextn_predict_layers": MetaValue(U32, 1),
    }
    target = target_of_gguf(MemoryFile(header_bytes(gguf, **metadata), "t.gguf"))
    reading = spec_from_config(v2_config(), target.config, where="config.json")
    assert reading.spec.rope_dimension_sections == expected
    assert target.config["num_hidden_layers"] == 6


def text_array(*texts: bytes) -> MetaValue:
    return MetaValue(ValueType.ARRAY, Array.of_strings([*texts]))


GGUF_FAULTS: dict[str, tuple[dict[str, MetaValue | None], type[DflashError], str]] = {
    "no tokens": ({"tokenizer__ggml__tokens": None}, ModelError, "holds no tokenizer"),
    "no model": ({"tokenizer__ggml__model": None}, ModelError, "holds no tokenizer"),
    "fewer tokens": ({"tokenizer__ggml__tokens": text_array(b"a", b"b")}, ModelError, "vocab_size is 2048"),
    "tokens are numbers": ({"tokenizer__ggml__tokens": sections(1, 2)}, ModelError, "vocab_size is 2048"),
    "types": ({"tokenizer__ggml__token_type": sections(1, 2)}, FormatError, "has 2 items for 2,048 tokens"),
    "types are texts": ({"tokenizer__ggml__token_type": text_array(b"a")}, FormatError, "no array of INT32"),
    "bos": ({"tokenizer__ggml__bos_token_id": MetaValue(U32, 2048)}, FormatError, "rows 0 … 2047"),
    "other blocks": ({"qwen3__block_count": MetaValue(U32, 2)}, ModelError, "exceed the target's 2 layers"),
}


@pytest.mark.parametrize("name", GGUF_FAULTS)
def test_faulty_ggufs_are_refused(name: str, gguf: Path, draft: Path, tmp_path: Path) -> None:
    changes, kind, complaint = GGUF_FAULTS[name]
    path = tmp_path / "t.gguf"
    path.write_bytes(header_bytes(gguf, **changes))
    with pytest.raises(kind, match=complaint):
        dry_run(draft, path, ConvertOptions(out=str(tmp_path / "x.gguf")))


def test_what_a_gguf_cannot_give(gguf: Path, draft: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the target is a GGUF"):
        dry_run(draft, gguf, ConvertOptions(out=str(tmp_path / "x.gguf"), embed="from-target"))
    with pytest.raises(ModelError, match="copied as it stands"):
        dry_run(draft, gguf, ConvertOptions(out=str(tmp_path / "x.gguf"), tokenizer_pre="qwen2"))
    (tmp_path / "page.gguf").write_text("<html>")
    with pytest.raises(FormatError):
        dry_run(draft, tmp_path / "page.gguf", ConvertOptions(out=str(tmp_path / "x.gguf")))


def test_command_line_with_a_gguf_and_embed(gguf: Path, draft: Path, run: Run, tmp_path: Path) -> None:
    done = run("convert", draft, "--target", gguf, "--embed", "drop", "--out", tmp_path / "o.gguf", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"][0]["tensors"] == 36
    wrong = run("convert", draft, "--target", gguf, "--embed", "maybe", "--out", tmp_path / "p.gguf")
    assert wrong.returncode == 2
    assert "keep, drop, from-target" in wrong.stderr


def speculators(config: dict[str, Any]) -> dict[str, Any]:
    """A z-lab config in the other dialect."""
    nested = config["dflash_config"]
    backbone = {k: v for k, v in config.items() if k not in ("architectures", "dflash_config", "is_causal")}
    flat = {k: v for k, v in nested.items() if k != "target_layer_ids"}
    return {
        "architectures": config["architectures"],
        "speculators_model_type": "dflash2",
        "aux_hidden_state_layer_ids": [item + 1 for item in nested["target_layer_ids"]],
        "draft_vocab_size": config["vocab_size"],
        "transformer_layer_config": backbone,
        "is_causal": config["is_causal"],
        **flat,
    }


@pytest.mark.parametrize("kind", ["bf16", "q4_k_m"])
@pytest.mark.parametrize("config", [v2_config(), v1_config()], ids=["v2", "v1"])
def test_two_dialects_of_one_meaning_give_identical_files(
    config: dict[str, Any], kind: str, target: Path, tmp_path: Path
) -> None:
    written = []
    for number, dialect in enumerate((config, speculators(config))):
        folder = write_draft(tmp_path / str(number) / "Tiny-DFlash", dialect, random_tensors(config))
        convert(folder, target, ConvertOptions(types=(kind,), out=str(tmp_path / f"{number}.gguf")))
        written.append((tmp_path / f"{number}.gguf").read_bytes())
    assert written[0] == written[1]


def assistant_config(**changes: Any) -> dict[str, Any]:
    """A config as transformers writes it for Muse Glimmer's assistant: no vocabulary, no use_sliding_window."""
    config = v1_config()
    nested = config.pop("dflash_config")
    for key in ("is_causal", "use_sliding_window", "vocab_size", "num_target_layers"):
        del config[key]
    return {
        **config,
        "architectures": ["MuseGlimmerAssistantModel"],
        "model_type": "muse_glimmer_assistant",
        "block_size": nested["block_size"],
        "mask_token_id": nested["mask_token_id"],
        "target_layer_ids": nested["target_layer_ids"],
        "layer_types": ["sliding_attention", "sliding_attention"],
        **changes,
    }


def test_muse_glimmers_assistant(target: Path, tmp_path: Path) -> None:
    renamed = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    tensors = {renamed.get(name, name): values for name, values in random_tensors(v1_config()).items()}
    draft = write_draft(tmp_path / "Assistant", assistant_config(), tensors)
    done = convert(draft, target, ConvertOptions(out=str(tmp_path / "out.gguf")))
    header = header_of(tmp_path / "out.gguf")
    with LocalFile(tmp_path / "out.gguf") as source:
        fc = header.tensors["fc.weight"]
        assert source.read(fc.offset, fc.size) == tensors["encoder.fc.weight"].tobytes()
    metadata = {key.removeprefix("dflash."): value.value for key, value in header.metadata.items()}
    assert "enc.output_norm.weight" in header.tensors
    assert metadata["block_size"] == 8
    assert metadata["attention.sliding_window"] == 16
    assert isinstance(pattern := metadata["attention.sliding_window_pattern"], Array)
    assert pattern.items() == [True, True]
    assert isinstance(layers := metadata["target_layers"], Array)
    assert layers.items() == [1, 2, 4]
    assert "attention.causal" not in metadata  # absent is non-causal, which is how this model is trained
    assert done.plan.warnings == ()


def test_an_assistant_without_a_targets_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="vocab_size is missing"):
        spec_from_config(assistant_config(), None, where="config.json")
    spec = spec_from_config(assistant_config(), {"text_config": {"vocab_size": 4096}}, where="config.json").spec
    assert (spec.vocab_size, spec.version) == (4096, 1)
    full = spec_from_config(assistant_config(layer_types=None, vocab_size=2048), None, where="config.json").spec
    assert full.sliding_window is None


def test_both_spellings_of_the_encoder_are_refused(target: Path, tmp_path: Path) -> None:
    tensors = random_tensors(v1_config())
    draft = write_draft(tmp_path / "d", v1_config(), tensors | {"encoder.fc.weight": tensors["fc.weight"]})
    with pytest.raises(ModelError, match=r"fc\.weight and encoder\.fc\.weight are one tensor"):
        dry_run(draft, target, ConvertOptions(out=str(tmp_path / "x.gguf")))


def test_odd_shard_names_through_the_index(target: Path, tmp_path: Path) -> None:
    config = v2_config()
    tensors = random_tensors(config)
    plain = write_draft(tmp_path / "a" / "Tiny", config, tensors)
    odd = tmp_path / "b" / "Tiny"
    odd.mkdir(parents=True)
    (odd / "config.json").write_text(json.dumps(config))
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard, part in (("draft part ä.safetensors", names[::2]), ("0.sft", names[1::2])):
        held: dict[str, np.ndarray[Any, Any]] = {name: tensors[name] for name in part}
        (odd / shard).write_bytes(safetensors_bytes(held))
        weight_map |= dict.fromkeys(part, shard)
    (odd / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for folder, name in ((plain, "a"), (odd, "b")):
        convert(folder, target, ConvertOptions(out=str(tmp_path / f"{name}.gguf")))
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_selector_vocab_size_is_no_obstacle() -> None:
    # the first ids are the selector's, its codebooks have a row for every token all the same
    spec = spec_from_config(v2_config(nested__selector_vocab_size=2030), None, where="config.json").spec
    assert spec == spec_from_config(v2_config(), None, where="config.json").spec
