"""Vocabularies that are not byte-level BPE in a tokenizer.json: equal to the reference's, and every refusal."""

from __future__ import annotations

import base64
import json
import random
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.builders import ROOT
from support.tokenizer_targets import digest, row, values

from dflash_gguf.errors import DflashError, FormatError, ModelError, UsageError
from dflash_gguf.formats.protobuf import fields
from dflash_gguf.model.tokenizer import Tokenizer, load_tokenizer
from dflash_gguf.model.tokenizer.load import load_texts

DATA = ROOT / "tests/data/vocabularies"
REFERENCE: dict[str, Any] = json.loads((DATA / "reference.json").read_text())
#: what the reference writes otherwise: a template of its own collection by name, and zeros as integers
TEKKEN_ONLY = {"tokenizer.chat_template", "tokenizer.ggml.scores"}


def load(folder: Path, rows: int, pre: str | None = None) -> Tokenizer:
    return load_tokenizer(folder, vocab_size=rows, mask_token_id=rows - 1, pre=pre)


@pytest.mark.parametrize("name", REFERENCE)
def test_equal_to_the_reference(name: str) -> None:
    rows, keys = REFERENCE[name]["rows"], REFERENCE[name]["keys"]
    tokenizer = load(DATA / name, rows)
    found = {key: digest(value) for key, value in tokenizer.key_values}
    if "tekken" in name:
        # the reference has the special ids before the tokens
        assert {k: v for k, v in found.items() if k not in TEKKEN_ONLY} == {
            k: v for k, v in keys.items() if k not in TEKKEN_ONLY
        }
        assert found["tokenizer.ggml.scores"][1][3] == keys["tokenizer.ggml.scores"][1][3]
    else:
        assert list(found.items()) == list(keys.items())
    assert tokenizer.model == keys["tokenizer.ggml.model"][1]


@pytest.mark.parametrize("name", REFERENCE)
def test_texts_alone_are_the_same(name: str) -> None:
    rows = REFERENCE[name]["rows"]
    model, pre, texts = load_texts(DATA / name, vocab_size=rows)
    tokenizer = load(DATA / name, rows)
    assert (model, pre) == (tokenizer.model, tokenizer.pre)
    assert texts == list(tokenizer.tokens.strings())


def copied(name: str, folder: Path, **files: bytes | None) -> Path:
    """A target of the test data with files replaced or (None) left out; `__` in a name stands for a dot."""
    shutil.copytree(DATA / name, folder)
    for key, content in files.items():
        path = folder / key.replace("__", ".")
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
    return folder


def config(architecture: str) -> bytes:
    return json.dumps({"architectures": [architecture]}).encode()


def test_rows_of_a_sentencepiece_model(tmp_path: Path) -> None:
    tokenizer = load(DATA / "llama2", 640)
    assert [row(tokenizer, i) for i in (0, 1, 5, 6, 601, 602, 610, 620)] == [
        ("<unk>", 3),  # unknown, but its added token is special
        ("<s>", 3),
        ("<0x00>", 6),
        ("<0x01>", 6),
        ("<y z>", 4),  # U+2581 of a user-defined token is a space
        ("<|looks|>", 3),
        ("<new>", 4),
        ("[PAD620]", 5),
    ]
    assert tokenizer.defined == 603
    assert any("<beyond>" in warning for warning in tokenizer.warnings)
    assert row(load(copied("llama2", tmp_path / "a", tokenizer_config__json=None), 640), 0) == ("<unk>", 2)


def test_a_model_wins_over_a_json_with_byte_fallback(tmp_path: Path) -> None:
    model = (DATA / "llama2/tokenizer.model").read_bytes()
    both = copied("llama2-json", tmp_path / "both", tokenizer__model=model)
    assert "ggml.scores" in values(load(both, 640))
    scores = values(load(both, 640))["ggml.scores"].items()
    assert len(set(scores)) > 100  # the model's own, not the constant of a JSON
    # Llama 3 ships a tiktoken file under that name; its tokenizer.json is byte-level
    mini = ROOT / "fixtures/tokenizers/mini"
    byte_level = copied("qwen1", tmp_path / "mini", tokenizer__model=b"IQ== 0\n", qwen__tiktoken=None)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(mini / file, byte_level / file)
    (byte_level / "config.json").write_bytes(config("Qwen3ForCausalLM"))
    assert load(byte_level, 2048).pre == "qwen2"


def test_kimis_special_tokens() -> None:
    tokenizer = load(DATA / "kimi-k2", 958)
    assert [row(tokenizer, i)[0] for i in (700, 702, 703, 955, 956)] == [
        "[BOS]",
        "<|im_end|>",
        "<|reserved_token_703|>",
        "[PAD]",
        "[PAD956]",
    ]
    assert load(DATA / "qwen1", 920).specials["eos"] == 700
    assert row(load(DATA / "qwen1", 920), 703) == ("<|extra_0|>", 3)


def test_merges_of_ranks_are_those_of_the_same_tokenizer_json() -> None:
    # two forms of one vocabulary, published side by side: the cut Qwen3 and its first 700 tokens as ranks
    mini = json.loads((ROOT / "fixtures/tokenizers/mini/tokenizer.json").read_text())["model"]
    known = {token for token, token_id in mini["vocab"].items() if token_id < 700}
    merges = [" ".join(pair).encode() for pair in mini["merges"] if "".join(pair) in known]
    found = values(load(DATA / "qwen1", 920))["ggml.merges"]
    assert list(found.strings()) == merges
    assert len(merges) == 444


def test_a_tiktoken_file_of_another_family_needs_a_name(tmp_path: Path) -> None:
    folder = copied("qwen1", tmp_path / "t", config__json=config("GrokForCausalLM"))
    with pytest.raises(ModelError, match="its regex stands in code that is never run"):
        load(folder, 920)
    tokenizer = load(folder, 920, "gpt-4o")
    assert (tokenizer.pre, tokenizer.defined) == ("gpt-4o", 700)
    assert load_texts(folder, vocab_size=920)[:2] == ("gpt2", None)


def test_a_pre_tokenizer_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="for a SentencePiece tokenizer"):
        load(DATA / "llama2", 640, "llama-bpe")
    assert load(DATA / "kimi-k2", 958, "qwen2").warnings == (
        "the target splits text like kimi-k2, --tokenizer-pre says qwen2",
    )


def test_hunyuans_missing_pad(tmp_path: Path) -> None:
    text = json.dumps({"architectures": ["HunYuanVLForConditionalGeneration"], "pad_token_id": -1}).encode()
    assert "pad" not in load(copied("gemma3-json", tmp_path / "h", config__json=text), 620).specials


def field_bytes(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2, len(payload)]) + payload


def piece(text: bytes = b"a", score: float = 0.0, kind: int = 1) -> bytes:
    return field_bytes(1, field_bytes(1, text) + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind]))


MODELS: list[tuple[bytes, str]] = [
    (b"\x0a", "ends inside a number"),
    (b"\x0a\x05ab", "passes the end"),
    (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "passes the end"),
    (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "more than 64 bits"),
    (piece() + b"\x0b", "wire type 3"),
    (piece() + b"\x0e", "wire type 6"),
    (piece() + b"\x08\x01", "piece 1 is no message"),
    (piece(b""), "has no text"),
    (piece(b"\xff"), "is not UTF-8"),
    (piece(kind=9), "unknown type 9"),
    (piece(score=float("nan")), "has NaN as its score"),
    (field_bytes(1, b"\x08\x01"), "field 1 has wire type 0"),
    (field_bytes(1, b"\x10\x01"), "field 2 has wire type 0"),
    (b"\x0a\x00", "has no text"),
    (piece() * 21, "21 tokens up to id 20, but the draft has 20"),
]


@pytest.mark.parametrize(("raw", "complaint"), MODELS)
def test_broken_sentencepiece_models(raw: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.model").write_bytes(raw)
    with pytest.raises(DflashError, match=complaint):
        load(tmp_path, 20)


def test_unknown_fields_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    more = b"\x20\x05" + b"\x29" + bytes(8) + b"\x35" + bytes(4) + field_bytes(7, b"xyz")
    (tmp_path / "tokenizer.model").write_bytes(piece(b"<unk>", kind=2) + more + piece(b"\xc3\xa9", -1.5))
    tokenizer = load(tmp_path, 4)
    assert [row(tokenizer, i) for i in range(3)] == [("<unk>", 2), ("é", 1), ("[PAD2]", 5)]
    assert values(tokenizer)["ggml.scores"].items() == [0.0, -1.5, -10000.0, -10000.0]


def test_field_values() -> None:
    raw = b"\x08\x96\x01" + field_bytes(2, b"hi") + b"\x1d" + struct.pack("<f", 1.0)
    assert list(fields(raw, "x")) == [(1, 0, 150), (2, 2, b"hi"), (3, 5, struct.pack("<f", 1.0))]


def line(token: bytes, rank: object) -> bytes:
    return base64.b64encode(token) + f" {rank}\n".encode()


TIKTOKEN: list[tuple[bytes, str]] = [
    (b"", "holds no tokens"),
    (b"hello world\n", "line 1 is not a token"),
    (line(b"a", 0) + line(b"b", -1), "line 2 is not a token"),
    (line(b"a", 0) + b"Yg==\n", "line 2 is not a token"),
    (line(b"a", 0) + b"Y!== 1\n", "line 2 is not a token"),
    (line(b"a", 0) + line(b"b", 2), "has rank 2, expected 1"),
    (line(b"a", 0) + line(b"a", 1), "is given twice"),
    (line(b"a" * 2000, 0), "has 2,000 bytes"),
    (b"".join(line(bytes([i]), i) for i in range(250)), "458 tokens up to id 457"),
]


@pytest.mark.parametrize(("raw", "complaint"), TIKTOKEN)
def test_broken_tiktoken_files(raw: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(config("QWenLMHeadModel"))
    (tmp_path / "qwen.tiktoken").write_bytes(raw)
    with pytest.raises((FormatError, ModelError), match=complaint):
        load(tmp_path, 260)


def test_special_tokens_that_cannot_be(tmp_path: Path) -> None:
    def settings(entries: dict[str, str]) -> bytes:
        return json.dumps(
            {"added_tokens_decoder": {k: {"content": v, "special": True} for k, v in entries.items()}}
        ).encode()

    twice = copied("kimi-k2", tmp_path / "a", tokenizer_config__json=settings({"700": "x", "701": "x"}))
    with pytest.raises(FormatError, match="same text"):
        load(twice, 958)
    ranked = copied("qwen1", tmp_path / "b", tokenizer_config__json=settings({"5": "x"}), config__json=config("Grok"))
    with pytest.raises(FormatError, match="id 5 of a token with a rank"):
        load(ranked, 920, "qwen2")


def tekken(change: Callable[[dict[str, Any]], object]) -> bytes:
    whole = json.loads((DATA / "tekken/tekken.json").read_text())
    change(whole)
    return json.dumps(whole).encode()


TEKKEN: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda w: w.pop("config"), "config: found null"),
    (lambda w: w["config"].update(default_vocab_size="824"), "default_vocab_size is '824'"),
    (lambda w: w["config"].update(default_vocab_size=5000), "5,000 tokens of which 24 are special, but 900"),
    (lambda w: w["config"].update(default_vocab_size=900), "900 tokens up to id 899"),
    (lambda w: w.update(vocab={}), "vocab: found an object"),
    (lambda w: w["vocab"][3].update(rank=4), "has rank 4, expected 3"),
    (lambda w: w["vocab"][3].update(rank=None), "entry 3 of vocab"),
    (lambda w: w["vocab"][3].update({"token_bytes": "AA=="}), "entry 3 of vocab"),
    (lambda w: w["vocab"][300].update({"token_bytes": "é"}), "entry 300 of vocab"),
    (lambda w: w["vocab"].__setitem__(300, 5), "vocab 300: found 5"),
    (lambda w: w["special_tokens"][3].update(rank=9), "not ranked"),
    (lambda w: w["special_tokens"][3].update({"token_str": "<s>"}), "different texts"),
    (lambda w: w["special_tokens"][3].update({"token_str": None}), "different texts"),
    (lambda w: w["config"].update(default_num_special_tokens=5), "21 special tokens, expected at most 5"),
]


@pytest.mark.parametrize(("change", "complaint"), TEKKEN)
def test_broken_tekken_files(change: Callable[[dict[str, Any]], object], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(DflashError, match=complaint):
        load(copied("tekken", tmp_path / "t", tekken__json=tekken(change)), 824)


@pytest.mark.parametrize(
    ("name", "file"),
    [("llama2", "tokenizer.model"), ("kimi-k2", "tiktoken.model"), ("tekken", "tekken.json")],
)
def test_mutations_raise_nothing_else(name: str, file: str, tmp_path: Path) -> None:
    rng, raw = random.Random(11), (DATA / name / file).read_bytes()
    folder = copied(name, tmp_path / "t")
    for _ in range(60):
        damaged = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(raw))] = rng.randrange(256)
        (folder / file).write_bytes(damaged[: rng.choice([len(raw), rng.randrange(len(raw))])])
        with suppress(DflashError):
            load(folder, REFERENCE[name]["rows"])


def test_the_texts_of_a_json_without_its_merges(tmp_path: Path) -> None:
    # what reads texts alone leaves the merges unread; Gemma's kinds must not miss them
    for name in ("gemma4", "gemma3-json", "llama2-json"):
        rows = REFERENCE[name]["rows"]
        raw = json.loads((DATA / name / "tokenizer.json").read_text())
        model = raw.pop("model")
        merges = model.pop("merges")
        text = json.dumps(raw | {"model": model | {"merges": merges}}).encode()
        folder = copied(name, tmp_path / name, tokenizer__json=text)
        assert load_texts(folder, vocab_size=rows)[2] == list(load(folder, rows).tokens.strings())
