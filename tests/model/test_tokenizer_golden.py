"""The reference's own tokenizer keys, byte for byte and in its order."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from support.tokenizer_targets import FAMILIES, MINI, digest

from dflash_gguf.model.tokenizer import load_tokenizer

#: What tools/make_checkpoint.py writes into the config of such a target, as far as a tokenizer is concerned.
QWEN3_CONFIG = {"architectures": ["Qwen3ForCausalLM"], "eos_token_id": 151_645, "bos_token_id": 151_643}


@pytest.fixture(scope="module")
def qwen3(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    with tarfile.open(shared / "tokenizers" / "qwen3.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    (found,) = folder.rglob("tokenizer.json")
    (found.parent / "config.json").write_text(json.dumps(QWEN3_CONFIG))
    return found.parent


@pytest.mark.parametrize("name", ["glm53flash-bf16", "odd-bf16"])
def test_real_tokenizer_equals_reference(shared: Path, qwen3: Path, name: str) -> None:
    golden = json.loads((shared / "golden" / f"{name}.json").read_text())["kv"]
    tokenizer = load_tokenizer(qwen3, vocab_size=151_936, mask_token_id=151_669)
    found = [(key, digest(value)) for key, value in tokenizer.key_values]
    assert found == [(key, value) for key, value in golden.items() if key.startswith("tokenizer.")]
    assert (tokenizer.defined, tokenizer.token_count) == (151_669, 151_936)
    assert tokenizer.warnings == ()


@pytest.mark.parametrize("family", sorted(path.name for path in FAMILIES.iterdir() if path.is_dir()))
def test_hand_made_families_equal_reference(family: str) -> None:
    # what the reference's converter wrote for these directories; its hash of `pre` knows no hand-made vocabulary
    reference = json.loads((FAMILIES / "reference.json").read_text())[family]
    tokenizer = load_tokenizer(FAMILIES / family, vocab_size=16, mask_token_id=12)
    assert [(key, digest(value)) for key, value in tokenizer.key_values] == list(reference.items())


def test_mini_tokenizer(tmp_path: Path) -> None:
    shutil.copytree(MINI, tmp_path / "target")
    (tmp_path / "target" / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]}))
    tokenizer = load_tokenizer(tmp_path / "target", vocab_size=2048, mask_token_id=2030)
    assert (tokenizer.model, tokenizer.pre, tokenizer.defined) == ("gpt2", "qwen2", 2026)
    texts = list(tokenizer.tokens.strings())
    assert texts[:3] == [b"!", b'"', b"#"]
    assert texts[2000:2003] == [b"<|endoftext|>", b"<|im_start|>", b"<|im_end|>"]
    assert texts[2025:2028] == [b"</think>", b"[PAD2026]", b"[PAD2027]"]
    assert tokenizer.specials == {"eos": 2002, "pad": 2000, "mask": 2030}
