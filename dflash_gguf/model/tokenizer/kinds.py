"""Which kind of tokenizer a target has, and what that kind writes: the one place that tells them apart.

| files | kind | tokenizer.ggml.model |
|---|---|---|
| tokenizer.json, byte-level BPE | byte-level | gpt2 |
| tokenizer.model (with or without a tokenizer.json with byte fallback) | SentencePiece | llama |
| tokenizer.json with byte fallback alone, of a Llama | SentencePiece | llama |
| tokenizer.json with byte fallback alone, of a Gemma 4 | SentencePiece with merges | gemma4 |
| tokenizer.json with byte fallback alone, of others | byte-level, split by `pre` gemma4 | gpt2 |
| tekken.json alone | ranks | gpt2 |
| tiktoken.model, qwen.tiktoken | ranks | gpt2 |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from dflash_gguf.errors import FormatError, ModelError, UsageError
from dflash_gguf.model.tokenizer import sentencepiece, tekken, tiktoken
from dflash_gguf.model.tokenizer.families import VISIBLE_GEMMA4, is_llama, late_flags, space_prefix
from dflash_gguf.model.tokenizer.files import as_object, brief
from dflash_gguf.model.tokenizer.merges import read_merges
from dflash_gguf.model.tokenizer.pre import find_pre, require_pre
from dflash_gguf.model.tokenizer.pre_names import require_known_pre, same_pre
from dflash_gguf.model.tokenizer.vocabulary import TokenType, Vocabulary, base_vocabulary, read_vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from dflash_gguf.model.tokenizer.files import TokenizerFiles


@dataclass(frozen=True, slots=True)
class Parts:
    """What a kind of tokenizer gives.

    `pre` is None where llama.cpp takes none. `space_prefix` is written before everything else, `late_flags` after it.
    `ids` are special ids that the kind itself names, before any that the JSON files name.
    """

    model: str
    pre: str | None
    vocabulary: Vocabulary
    merges: list[bytes] | None = None
    space_prefix: bool | None = None
    late_flags: dict[str, bool] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    flags: dict[str, bool] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


#: kinds that are named and refused, by the file that only they have
_OTHER_KINDS = {"vocab.json": "slow BPE (vocab.json and merges.txt)", "vocab.txt": "WordPiece"}


class Kind(Enum):
    """How a target's vocabulary is given."""

    BYTE_LEVEL = "byte-level BPE"
    SENTENCEPIECE = "a SentencePiece model"
    LLAMA_JSON = "a SentencePiece vocabulary in a tokenizer.json"
    GEMMA4 = "the same with merges"
    TEKKEN = "tekken"
    TIKTOKEN = "tiktoken"


def find_kind(target: TokenizerFiles) -> Kind:
    """The kind of a target's vocabulary; raises ModelError or FormatError for one that is not read."""
    fallback = bool(target.tokenizer) and _has_byte_fallback(target)
    if fallback and target.architecture.startswith("gemma4"):
        return Kind.GEMMA4
    if (fallback or not target.tokenizer) and sentencepiece.is_model(target.folder / sentencepiece.MODEL_FILE):
        return Kind.SENTENCEPIECE
    if target.tokenizer:
        return Kind.LLAMA_JSON if fallback and is_llama(target) else Kind.BYTE_LEVEL
    if (target.folder / tekken.TEKKEN_FILE).is_file():
        return Kind.TEKKEN
    if tiktoken.find_file(target.folder):
        return Kind.TIKTOKEN
    raise _unknown_kind(target.folder)


def read_parts(target: TokenizerFiles, vocab_size: int, pre: str | None) -> Parts:
    """Everything that depends on the kind; `pre` overrides what the structure or the family tells.

    Raises ModelError for a kind that is not known, what the kinds' own readers raise, and UsageError for a `pre`
    where there is none or that llama.cpp does not know.
    """
    if pre is not None:
        require_known_pre(pre)
    return _READERS[find_kind(target)](target, vocab_size, pre)


def read_texts(target: TokenizerFiles, vocab_size: int) -> tuple[str, str | None, list[bytes]]:
    """The part of a tokenizer that a draft must share: model, pre-tokenizer (None where it cannot be told), texts.

    The merges of a tokenizer.json are not read. Raises what `read_parts` raises.
    """
    kind = find_kind(target)
    if kind is Kind.BYTE_LEVEL:
        return "gpt2", find_pre(target), read_vocabulary(target, vocab_size).texts
    if kind is Kind.GEMMA4:
        return "gemma4", None, sentencepiece.from_json(target, vocab_size).texts
    unnamed = kind is Kind.TIKTOKEN and tiktoken.family_pre(target) is None
    parts = read_parts(target, vocab_size, "gpt-2" if unnamed else None)
    return parts.model, None if unnamed else parts.pre, parts.vocabulary.texts


def _has_byte_fallback(target: TokenizerFiles) -> bool:
    """Whether tokenizer.json is SentencePiece's kind of BPE; refuses models that are no BPE."""
    model = as_object(target.tokenizer.get("model"), f"{target.tokenizer_path}: model")
    kind = model.get("type", "BPE")
    if kind != "BPE":
        raise ModelError(
            f"a {brief(kind)} model is not supported, byte-level BPE, SentencePiece and tiktoken are",
            where=target.tokenizer_path,
        )
    return model.get("byte_fallback") is True


def _byte_level(target: TokenizerFiles, vocab_size: int, pre: str | None) -> Parts:
    name, doubts = (require_pre(target), ()) if pre is None else (pre, _doubts(find_pre(target), pre))
    vocabulary = read_vocabulary(target, vocab_size)
    merges = read_merges(target.tokenizer["model"], base_vocabulary(target), target.tokenizer_path)
    late = late_flags(target, vocab_size) if is_llama(target) else {}
    return Parts("gpt2", name, vocabulary, merges, space_prefix(target), late, warnings=doubts)


def _sentencepiece(target: TokenizerFiles, vocab_size: int, pre: str | None) -> Parts:
    _refuse_pre(pre, target)
    return _llama(target, sentencepiece.from_model(target, vocab_size))


def _llama_json(target: TokenizerFiles, vocab_size: int, pre: str | None) -> Parts:
    _refuse_pre(pre, target)
    return _llama(target, sentencepiece.from_json(target, vocab_size))


def _llama(target: TokenizerFiles, vocabulary: Vocabulary) -> Parts:
    late = late_flags(target, len(vocabulary.texts))
    return Parts("llama", "default", vocabulary, None, space_prefix(target), late)


def _gemma4(target: TokenizerFiles, vocab_size: int, pre: str | None) -> Parts:
    _refuse_pre(pre, target)
    vocabulary = sentencepiece.from_json(target, vocab_size)
    for token_id, text in enumerate(vocabulary.texts):
        if text in VISIBLE_GEMMA4:
            vocabulary.types[token_id] = TokenType.USER_DEFINED
    merges = read_merges(target.tokenizer["model"], base_vocabulary(target), target.tokenizer_path)
    return Parts("gemma4", None, vocabulary, merges, late_flags=late_flags(target, vocab_size))


def _tiktoken(target: TokenizerFiles, vocab_size: int, pre: str | None) -> Parts:
    name = tiktoken.require_pre(target) if pre is None else pre
    doubts = _doubts(tiktoken.family_pre(target), name)
    vocabulary, merges = tiktoken.from_tiktoken(target, vocab_size)
    return Parts("gpt2", name, vocabulary, merges, warnings=doubts)


def _tekken(target: TokenizerFiles, vocab_size: int, pre: str | None) -> Parts:
    vocabulary, merges, ids = tekken.from_tekken(target, vocab_size)
    name = pre or "tekken"
    flags = {"bos": True, "eos": False}
    return Parts("gpt2", name, vocabulary, merges, ids=ids, flags=flags, warnings=_doubts("tekken", name))


def _refuse_pre(pre: str | None, target: TokenizerFiles) -> None:
    if pre is not None:
        raise UsageError(
            f"{pre!a} for a SentencePiece tokenizer, which llama.cpp splits in its own way",
            where=f"--tokenizer-pre ({target.folder})",
            hint="leave it out",
        )


def _doubts(found: str | None, pre: str) -> tuple[str, ...]:
    if found is None or same_pre(found, pre):
        return ()
    return (f"the target splits text like {found}, --tokenizer-pre says {pre}",)


def _unknown_kind(folder: Path) -> FormatError | ModelError:
    for name, kind in _OTHER_KINDS.items():
        if (folder / name).is_file():
            return ModelError(
                f"a {kind} tokenizer is not supported, byte-level BPE, SentencePiece and tiktoken are",
                where=str(folder / name),
                hint="no tokenizer.json beside it",
            )
    return FormatError("no tokenizer.json", where=str(folder), hint="pass the target's checkpoint directory")


_READERS: dict[Kind, Callable[[TokenizerFiles, int, str | None], Parts]] = {
    Kind.BYTE_LEVEL: _byte_level,
    Kind.SENTENCEPIECE: _sentencepiece,
    Kind.LLAMA_JSON: _llama_json,
    Kind.GEMMA4: _gemma4,
    Kind.TEKKEN: _tekken,
    Kind.TIKTOKEN: _tiktoken,
}
