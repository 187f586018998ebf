"""Prompts from files of every form, and those that repeat themselves."""

from __future__ import annotations

import pytest

from dflash_gguf.engine.prompt_sets import REPETITIVE, UNIQUE, sets_of
from dflash_gguf.errors import FormatError
from dflash_gguf.model.prompts import parse_prompts, prompt_of


@pytest.mark.parametrize(
    ("name", "data", "texts"),
    [
        ("p.json", b'["a", "b"]', ["a", "b"]),
        ("p.json", b'{"prompts": [{"text": "a", "id": 1}, {"prompt": "b"}]}', ["a", "b"]),
        ("p.jsonl", b'"a"\n\n{"text": "b"}\n', ["a", "b"]),
        ("p.txt", "Grüße\n\nsecond paragraph".encode(), ["Grüße\n\nsecond paragraph"]),
    ],
)
def test_forms(name: str, data: bytes, texts: list[str]) -> None:
    assert [prompt.text for prompt in parse_prompts(data, name)] == texts


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("p.json", b"[1]", "expected text"),
        ("p.json", b"[]", "no list of prompts"),
        ("p.json", b'{"rows": []}', "no list of prompts"),
        ("p.json", b"[", "no JSON"),
        ("p.json", b"[" * 100_000, "no JSON"),
        ("p.jsonl", b'"a"\n[', "no JSON"),
        ("p.txt", b"\xff", "UTF-8"),
        ("p.txt", b" \n", "expected text"),
    ],
)
def test_what_is_no_prompt(name: str, data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_prompts(data, name)


def test_repeated_sentences_are_told_apart() -> None:
    assert prompt_of("The sky is blue. " * 5 + "Go on.").repetitive
    assert not prompt_of("Yes. No. Yes. Perhaps. Who knows. Never. Always.").repetitive
    assert not any(prompt.repetitive for prompt in UNIQUE)
    assert all(prompt.repetitive for prompt in REPETITIVE)


def test_a_repetitive_text_never_stands_alone() -> None:
    alone = (prompt_of("Again and again. " * 9),)
    assert sets_of(alone) == {"unique": UNIQUE, "repetitive": alone}
    other = (prompt_of("A question?"),)
    assert sets_of(other) == {"unique": other}
    assert list(sets_of((*alone, *other))) == ["unique", "repetitive"]
