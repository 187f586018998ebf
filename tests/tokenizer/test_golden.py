"""The reference's own tokenizer keys, byte for byte."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.model.tokenizer import Tokenizer, load_tokenizer

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("DFLASH_SHARED", ROOT.parent / "shared"))
MINI = ROOT / "fixtures" / "tokenizers" / "mini"
#: What tools/make_checkpoint.py writes into the config of such a target, as far as a tokenizer is concerned.
QWEN3_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "eos_token_id": 151645,
    "bos_token_id": 151643,
}


def digest(value: MetaValue) -> list[Any]:
    """A value as the golden files write it."""
    if isinstance(value.value, Array):
        array = value.value
        sha = hashlib.sha256(array.raw).hexdigest()
        return [int(value.type), ["arr", int(array.item_type), array.count, sha]]
    return [int(value.type), value.value]


def digests(tokenizer: Tokenizer) -> list[tuple[str, list[Any]]]:
    return [(key, digest(value)) for key, value in tokenizer.key_values]


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = SHARED / "tokenizers" / "qwen3.tar.xz"
    if not archive.is_file():
        pytest.skip("needs the shared folder")
    folder = tmp_path_factory.mktemp("qwen3")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (found,) = folder.rglob("tokenizer.json")
    (found.parent / "config.json").write_text(json.dumps(QWEN3_CONFIG))
    return found.parent


@pytest.mark.parametrize("name", ["glm53flash-bf16", "odd-bf16"])
def test_real_tokenizer_equals_reference(qwen3: Path, name: str) -> None:
    golden = json.loads((SHARED / "golden" / f"{name}.json").read_text())["kv"]
    tokenizer = load_tokenizer(qwen3, vocab_size=151_936, mask_token_id=151_669)
    assert digests(tokenizer) == [(key, value) for key, value in golden.items() if key.startswith("tokenizer.")]
    assert (tokenizer.defined, tokenizer.token_count) == (151_669, 151_936)
    assert tokenizer.warnings == ()


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
