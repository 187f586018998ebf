"""Broken targets: one clear line each, and never anything but the package's own errors."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.tokenizer_targets import FAMILIES, Edit, Target, load_edited, mini

from dflash_gguf.errors import DflashError, FormatError, ModelError, UsageError
from dflash_gguf.model.tokenizer import load_tokenizer


def model(**changes: Any) -> Edit:
    return lambda t: t.tokenizer["model"].update(changes)


def vocab(**changes: Any) -> Edit:
    return lambda t: t.tokenizer["model"]["vocab"].update(changes)


def top(**changes: Any) -> Edit:
    return lambda t: t.tokenizer.update(changes)


def settings(**changes: Any) -> Edit:
    return lambda t: t.settings.update(changes) if t.settings is not None else None


def config(**changes: Any) -> Edit:
    return lambda t: t.config.update(changes)


def merge(value: Any, at: int = -1) -> Edit:
    return lambda t: t.tokenizer["model"]["merges"].__setitem__(at, value)


def string_merges(value: str) -> Edit:
    def edit(target: Target) -> None:
        made = target.tokenizer["model"]
        made["merges"] = [" ".join(pair) for pair in made["merges"]]
        made["merges"][7] = value

    return edit


def added(**changes: Any) -> Edit:
    return lambda t: t.tokenizer["added_tokens"][3].update(changes)


def decoder(key: str, value: Any) -> Edit:
    return settings(added_tokens_decoder={key: value})


def extra(name: str, text: str) -> Edit:
    return lambda t: t.extra.update({name: text})


FAULTS: list[tuple[Edit, type[DflashError], str]] = [
    (model(type="Unigram"), ModelError, "'Unigram' model is not supported"),
    (model(type="WordPiece"), ModelError, "'WordPiece' model is not supported"),
    (top(model=None), FormatError, "model: found null, expected a JSON object"),
    (top(model=[]), FormatError, "model: found an array, expected a JSON object"),
    (model(vocab=[]), FormatError, "model.vocab: found an array"),
    (model(vocab={}), FormatError, "model.vocab is empty"),
    (vocab(x="1"), FormatError, "id of 'x' is '1', expected an integer"),
    (vocab(x=1.5), FormatError, "id of 'x' is 1.5"),
    (vocab(x=True), FormatError, "id of 'x' is True"),
    (vocab(x=None), FormatError, "id of 'x' is null"),
    (vocab(qqx=-1), FormatError, "id -1 is negative"),
    (vocab(qqx=5), FormatError, "id 5 is both '&' and 'qqx'"),
    (vocab(qqx=2100), ModelError, "2001 tokens up to id 2100, but the draft has 2100 vocabulary rows"),
    (vocab(qqx=10**30), ModelError, "vocabulary rows"),
    (vocab(**{"\ud800": 2090}), FormatError, "number 2090 holds a lone surrogate"),
    (vocab(qqx=2010), FormatError, "id 2010 is both 'qqx' and"),
    (vocab(x=[[[1]]]), FormatError, "id of 'x' is an array"),
    (vocab(x="y" * 10_000), FormatError, "is 'y{59}…, expected"),
    (model(merges=None), FormatError, "no merges"),
    (model(merges=[]), FormatError, "no merges"),
    (model(merges={}), FormatError, "no merges"),
    (model(merges="ab"), FormatError, "merges: found 'ab', expected a JSON array"),
    (model(merges=[1, 2]), FormatError, "neither strings nor pairs"),
    (merge("Ġ a"), FormatError, "neither strings nor pairs"),
    (merge(["a", "b", "c"]), FormatError, "neither strings nor pairs"),
    (merge(["a", 1]), FormatError, "number 1743 is not two strings"),
    (merge(["a", "qqx"]), ModelError, "a merge names 'qqx'"),
    (string_merges("a b c"), FormatError, "number 7, 'a b c', is not two tokens"),
    (string_merges("ab"), FormatError, "number 7, 'ab', is not two tokens"),
    (string_merges("a qqx"), ModelError, "a merge names 'qqx'"),
    (top(added_tokens={"a": 1}), FormatError, "added_tokens: found an object, expected a JSON array"),
    (top(added_tokens=[1]), FormatError, "added_tokens: found 1, expected"),
    (added(content=7), FormatError, "content is 7, expected a text"),
    (added(content=""), FormatError, "content is '', expected a text"),
    (added(content="\ud800", id=2026), FormatError, "number 2026 holds a lone surrogate"),
    (added(id="3"), FormatError, "id of '<|object_ref_start|>' is '3'"),
    (added(id=-3), FormatError, "is -3, expected an integer ≥ 0"),
    (added(id=True), FormatError, "is True, expected an integer"),
    (added(id=2002), FormatError, "id 2002 is both '<|im_end|>' and '<|object_ref_start|>'"),
    (added(id=5), FormatError, "id 5 is both"),
    (added(id=2100), ModelError, "up to id 2100, but the draft has 2100"),
    (added(content="<|im_end|>"), FormatError, "two ids, 2002 and 2003"),
    (added(content="Ġthe"), FormatError, "two ids, 279 and 2003"),
    (decoder("x", {"content": "a"}), FormatError, "'x' is no token id"),
    (decoder("-1", {"content": "a"}), FormatError, "'-1' is no token id"),
    (decoder("9" * 5000, {"content": "a"}), FormatError, "is no token id"),
    (decoder("2050", "a"), FormatError, "added_tokens_decoder: found 'a'"),
    (decoder("2050", {}), FormatError, "content is null"),
    (settings(added_tokens_decoder=[]), FormatError, "added_tokens_decoder: found an array"),
    (top(post_processor=[1]), FormatError, "post_processor: found an array"),
    (top(post_processor={"processors": 1}), FormatError, "post_processor: found 1, expected"),
    (top(post_processor={"processors": [1]}), FormatError, "post_processor: found 1, expected"),
    (top(post_processor={"type": "TemplateProcessing", "single": 3}), FormatError, "post_processor: found 3, expected"),
    (config(bos_token_id=-1), FormatError, "bos_token_id is -1"),
    (config(architectures=["Glm4MoeForCausalLM"]), ModelError, r"needs the added token \[gMASK\]"),
    (settings(chat_template=[1]), FormatError, "an entry is no named template"),
    (settings(chat_template=[{"name": 1, "template": "a"}]), FormatError, "an entry is no named template"),
    (settings(chat_template=[{"name": "a", "template": 1}]), FormatError, "an entry is no named template"),
    (settings(chat_template="\udfff"), FormatError, "chat_template: a lone surrogate at character 0"),
    (extra("tokenizer.json", "{"), FormatError, r"tokenizer\.json: is not JSON"),
    (extra("tokenizer.json", "[]"), FormatError, r"tokenizer\.json: holds a list"),
    (extra("tokenizer.json", ""), FormatError, r"tokenizer\.json: is not JSON"),
    (extra("tokenizer.json", '{"a": 1, "a": 2}'), FormatError, "the key 'a' stands twice"),
    (extra("tokenizer.json", "[" * 200_000), FormatError, r"tokenizer\.json: "),
    (extra("tokenizer.json", '{"a": ' + "9" * 5000 + "}"), FormatError, r"tokenizer\.json: "),
    (extra("tokenizer_config.json", "null"), FormatError, r"tokenizer_config\.json: "),
    (extra("config.json", "nope"), FormatError, r"config\.json: is not JSON"),
]


@pytest.mark.parametrize(("edit", "kind", "message"), FAULTS)
def test_fault_is_one_clear_line(tmp_path: Path, edit: Edit, kind: type[DflashError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        load_edited(tmp_path, edit)
    line = str(caught.value)
    assert line.isprintable()
    assert str(tmp_path) in line


@pytest.mark.parametrize("text", [b"\xff\xfe", b'{"a": "\xed\xa0\x80"}'])
def test_text_that_is_not_utf8(tmp_path: Path, text: bytes) -> None:
    mini().write(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(text)
    with pytest.raises(FormatError, match="UTF-8"):
        load_tokenizer(tmp_path, vocab_size=2100, mask_token_id=1)
    mini().write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"a": 1}')
    (tmp_path / "chat_template.jinja").write_bytes(text)
    with pytest.raises(FormatError, match=r"chat_template\.jinja: not UTF-8"):
        load_tokenizer(tmp_path, vocab_size=2100, mask_token_id=1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("vocab.json", "slow BPE"),
        ("vocab.txt", "WordPiece"),
    ],
)
def test_other_kinds_are_named(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=f"a {kind}.* tokenizer is not supported"):
        load_tokenizer(tmp_path, vocab_size=10, mask_token_id=1)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        load_tokenizer(tmp_path / "nowhere", vocab_size=10, mask_token_id=1)
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_tokenizer(tmp_path, vocab_size=10, mask_token_id=1)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FormatError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path, vocab_size=10, mask_token_id=1)


@pytest.mark.parametrize("size", [0, -1, 1 << 40])
def test_impossible_vocab_size(tmp_path: Path, size: int) -> None:
    with pytest.raises(ModelError, match=f"vocab_size is {size}, expected 1"):
        load_tokenizer(tmp_path, vocab_size=size, mask_token_id=1)


@pytest.mark.parametrize("mask", [-1, 2100, 1 << 40])
def test_mask_beyond_the_rows(tmp_path: Path, mask: int) -> None:
    with pytest.raises(ModelError, match=f"mask_token_id is {mask}, the vocabulary has rows 0 … 2099"):
        load_tokenizer(tmp_path, vocab_size=2100, mask_token_id=mask)


def test_smallest_vocab_size_that_fits(tmp_path: Path) -> None:
    folder = mini().write(tmp_path)
    assert load_tokenizer(folder, vocab_size=2026, mask_token_id=3).defined == 2026
    with pytest.raises(ModelError, match="2026 tokens up to id 2025, but the draft has 2025"):
        load_tokenizer(folder, vocab_size=2025, mask_token_id=3)


JUNK: list[Any] = [None, True, -1, 2**70, 1.5, "", "x", "\ud800", [], [1], ["a", "b"], {}, {"type": "Sequence"}]
JUNK += [{"content": "<z>"}, {"type": "ByteLevel"}, float("nan"), "<|im_end|>", [[]], [{}], {"id": 3}]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value; of long ones, the first few."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        keys = list(value)[:40] if isinstance(value, dict) else list(range(min(len(value), 40)))
        for key in keys:
            found.append((value, key))
            found += places(value[key])
    return found


def mutate(target: Target, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 3)):
        part = rng.choice([target.tokenizer, target.tokenizer, target.settings, target.config])
        container, key = rng.choice(places(part) or [({"": 0}, "")])
        if rng.random() < 0.2:
            del container[key]
        else:
            container[key] = copy.deepcopy(rng.choice(JUNK))


def small_target(name: str) -> Target:
    parts = [json.loads((FAMILIES / name / f"{file}.json").read_text()) for file in ("tokenizer", "tokenizer_config")]
    return Target(parts[0], parts[1], json.loads((FAMILIES / name / "config.json").read_text()))


@pytest.mark.parametrize("name", ["llama-bpe", "glm4", "deepseek-v3"])
def test_mutated_files_give_only_our_errors(tmp_path: Path, name: str) -> None:
    rng, lines = random.Random(name), list[str]()
    for _ in range(400):
        target = small_target(name)
        mutate(target, rng)
        target.write(tmp_path)
        try:
            tokenizer = load_tokenizer(tmp_path, vocab_size=16, mask_token_id=12)
        except DflashError as error:
            lines.append(str(error))
        else:
            assert tokenizer.tokens.count == len(list(tokenizer.tokens.strings())) == 16
    assert 20 < len(lines) < 380
    assert all(line.isprintable() for line in lines)
