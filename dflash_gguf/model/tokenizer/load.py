"""From a target's directory to the `tokenizer.*` keys of a draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_gguf.errors import ModelError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.model.tokenizer.families import late_ids, special_texts
from dflash_gguf.model.tokenizer.files import read_target, read_target_texts
from dflash_gguf.model.tokenizer.kinds import Parts, read_parts, read_texts
from dflash_gguf.model.tokenizer.specials import read_specials
from dflash_gguf.model.tokenizer.templates import read_templates

if TYPE_CHECKING:
    from pathlib import Path

#: No vocabulary comes near; a config that claims more would make us reserve memory for it.
MAX_VOCAB_SIZE = 1 << 24

#: Word of a special token → its GGUF key ("seperator" is the key's own spelling; a cls token has none).
ID_KEYS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "sep": "tokenizer.ggml.seperator_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
    "mask": "tokenizer.ggml.mask_token_id",
    "eot": "tokenizer.ggml.eot_token_id",
    "eom": "tokenizer.ggml.eom_token_id",
}
FLAG_KEYS = {word: f"tokenizer.ggml.add_{word}_token" for word in ("bos", "eos", "sep")}

TOKENS_KEY = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A target's tokenizer as a draft's GGUF says it.

    `key_values` are all `tokenizer.*` keys in the order of the file. `token_count` rows, `defined` of which have
    a text of their own; `tokens` are their texts (two vocabularies are equal when `tokens.raw` is).
    `specials`: word ("bos", "mask", …) → token id. `pre` is None where llama.cpp takes none.
    """

    key_values: list[tuple[str, MetaValue]]
    model: str
    pre: str | None
    tokens: Array
    token_count: int
    defined: int
    specials: dict[str, int]
    warnings: tuple[str, ...]


def load_tokenizer(folder: Path, *, vocab_size: int, mask_token_id: int, pre: str | None = None) -> Tokenizer:
    """The tokenizer in the target's directory `folder`, laid out over the draft's `vocab_size` rows.

    `pre` overrides the name that the structure of the files gives. Raises UsageError for a directory that is not
    there or a name llama.cpp does not know, ModelError for a tokenizer of another kind, with an unknown way of
    splitting text, or with more tokens than rows, FormatError for files that are broken.
    """
    require_sizes(vocab_size, mask_token_id)
    target = read_target(folder)
    parts = read_parts(target, vocab_size, pre)
    vocabulary, arrays = parts.vocabulary, _arrays(parts)
    target.tokenizer.pop("model", None)  # given up as soon as it is read: it is the largest thing in memory
    specials = read_specials(target, vocabulary.listed, vocab_size)
    ids = parts.ids | specials.ids
    for word, token_id in special_texts(target, vocabulary.added).items():
        ids.setdefault(word, token_id)
    templates, template_doubts = read_templates(target)
    late = late_ids(target, vocabulary.added, vocab_size)
    keys = {
        **_head_keys(parts),
        **{key: MetaValue(ValueType.ARRAY, array) for key, array in arrays.items()},
        **_id_keys(ids),
        **_flag_keys(parts.flags | specials.flags),
        **_template_keys(templates),
        **_id_keys(late),
        **{f"tokenizer.ggml.{name}": MetaValue(ValueType.BOOL, flag) for name, flag in parts.late_flags.items()},
        **_id_keys({"mask": mask_token_id}),
    }
    ids |= late
    doubts = [*parts.warnings, *vocabulary.warnings, *specials.warnings, *template_doubts]
    return Tokenizer(
        key_values=list(keys.items()),
        model=parts.model,
        pre=parts.pre,
        tokens=arrays[TOKENS_KEY],
        token_count=vocab_size,
        defined=vocabulary.defined,
        specials=ids | {"mask": mask_token_id},
        warnings=(*doubts, *mask_doubts(ids, mask_token_id)),
    )


def load_texts(folder: Path, *, vocab_size: int) -> tuple[str, str | None, list[bytes]]:
    """The part of a target's tokenizer that a draft must share: its model, its pre-tokenizer, its rows' texts.

    The pre-tokenizer is None where llama.cpp takes none, or the files do not tell. Raises what `load_tokenizer` raises.
    """
    return read_texts(read_target_texts(folder), vocab_size)


def require_sizes(vocab_size: int, mask_token_id: int) -> None:
    """Raise ModelError for a vocabulary that no draft has, or a mask id beyond it."""
    if not 0 < vocab_size <= MAX_VOCAB_SIZE:
        raise ModelError(f"vocab_size is {vocab_size}, expected 1 … {MAX_VOCAB_SIZE}", where="draft config")
    if not 0 <= mask_token_id < vocab_size:
        raise ModelError(
            f"mask_token_id is {mask_token_id}, the vocabulary has rows 0 … {vocab_size - 1}",
            where="draft config",
        )


def _arrays(parts: Parts) -> dict[str, Array]:
    """Tokens, scores, types and merges, encoded."""
    vocabulary = parts.vocabulary
    arrays = {TOKENS_KEY: Array.of_strings(vocabulary.texts)}
    if vocabulary.scores is not None:
        arrays["tokenizer.ggml.scores"] = Array.of(ValueType.FLOAT32, vocabulary.scores)
    arrays["tokenizer.ggml.token_type"] = Array.of(ValueType.INT32, vocabulary.types)
    if parts.merges is not None:
        arrays["tokenizer.ggml.merges"] = Array.of_strings(parts.merges)
    return arrays


def _head_keys(parts: Parts) -> dict[str, MetaValue]:
    keys = {"tokenizer.ggml.model": _string(parts.model)}
    if parts.pre is not None:
        keys["tokenizer.ggml.pre"] = _string(parts.pre)
    if parts.space_prefix is None:
        return keys
    return {"tokenizer.ggml.add_space_prefix": MetaValue(ValueType.BOOL, parts.space_prefix), **keys}


def _id_keys(ids: dict[str, int]) -> dict[str, MetaValue]:
    return {ID_KEYS[word]: MetaValue(ValueType.UINT32, token_id) for word, token_id in ids.items() if word in ID_KEYS}


def _flag_keys(flags: dict[str, bool]) -> dict[str, MetaValue]:
    return {FLAG_KEYS[word]: MetaValue(ValueType.BOOL, flag) for word, flag in flags.items() if word in FLAG_KEYS}


def _template_keys(templates: dict[str, str]) -> dict[str, MetaValue]:
    named = {name: text for name, text in templates.items() if name != "default"}
    keys = {f"tokenizer.chat_template.{name}": _string(text) for name, text in named.items()}
    if named:
        names = Array.of(ValueType.STRING, sorted(named))
        keys["tokenizer.chat_templates"] = MetaValue(ValueType.ARRAY, names)
    if "default" in templates:
        keys["tokenizer.chat_template"] = _string(templates["default"])
    return keys


def _string(text: str) -> MetaValue:
    return MetaValue(ValueType.STRING, text)


def mask_doubts(ids: dict[str, int], mask_token_id: int) -> list[str]:
    """What is odd about a mask id."""
    equal = [word for word in ("bos", "eos", "pad") if ids.get(word) == mask_token_id]
    return [f"mask_token_id {mask_token_id} is also the {' and '.join(equal)} token"] if equal else []
