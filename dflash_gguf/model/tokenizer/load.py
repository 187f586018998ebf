"""From a target's directory to the `tokenizer.*` keys of a draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_gguf.errors import ModelError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.model.tokenizer.families import late_end_of_turn, space_prefix, special_texts
from dflash_gguf.model.tokenizer.files import as_object, brief, read_target, read_target_texts
from dflash_gguf.model.tokenizer.merges import read_merges
from dflash_gguf.model.tokenizer.pre import find_pre, require_pre
from dflash_gguf.model.tokenizer.pre_names import require_known_pre, same_pre
from dflash_gguf.model.tokenizer.specials import read_specials
from dflash_gguf.model.tokenizer.templates import read_templates
from dflash_gguf.model.tokenizer.vocabulary import read_vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from dflash_gguf.model.tokenizer.files import Target
    from dflash_gguf.model.tokenizer.vocabulary import Vocabulary

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

_TOKENS_KEY = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A target's tokenizer as a draft's GGUF says it.

    `key_values` are all `tokenizer.*` keys in the order of the file. `token_count` rows, `defined` of which have
    a text of their own; `tokens` are their texts (two vocabularies are equal when `tokens.raw` is).
    `specials`: word ("bos", "mask", …) → token id.
    """

    key_values: list[tuple[str, MetaValue]]
    model: str
    pre: str
    tokens: Array
    token_count: int
    defined: int
    specials: dict[str, int]
    warnings: tuple[str, ...]


def load_tokenizer(folder: Path, *, vocab_size: int, mask_token_id: int, pre: str | None = None) -> Tokenizer:
    """The tokenizer in the target's directory `folder`, laid out over the draft's `vocab_size` rows.

    `pre` overrides the name that the structure of tokenizer.json gives. Raises UsageError for a directory that is
    not there or a name llama.cpp does not know, ModelError for a tokenizer of another kind, with an unknown way of
    splitting text, or with more tokens than rows, FormatError for files that are broken.
    """
    if pre is not None:
        require_known_pre(pre)
    _require_sizes(vocab_size, mask_token_id)
    target = read_target(folder)
    _require_byte_level(target)
    name, doubts = (require_pre(target), []) if pre is None else (pre, _doubts(target, pre))
    arrays, vocabulary = _arrays(target, vocab_size)
    specials = read_specials(target, vocabulary.listed, vocab_size)
    ids = dict(specials.ids)
    for word, token_id in special_texts(target, vocabulary.added).items():
        ids.setdefault(word, token_id)
    templates, template_doubts = read_templates(target)
    late = {} if (eot := late_end_of_turn(target, vocabulary.added)) is None else {"eot": eot}
    keys = {
        **_head_keys(target, name),
        **{key: MetaValue(ValueType.ARRAY, array) for key, array in arrays.items()},
        **_id_keys(ids),
        **_flag_keys(specials.flags),
        **_template_keys(templates),
        **_id_keys(late),
        **_id_keys({"mask": mask_token_id}),
    }
    ids |= late
    doubts += [*vocabulary.warnings, *specials.warnings, *template_doubts, *_mask_doubts(ids, mask_token_id)]
    return Tokenizer(
        key_values=list(keys.items()),
        model="gpt2",
        pre=name,
        tokens=arrays[_TOKENS_KEY],
        token_count=vocab_size,
        defined=vocabulary.defined,
        specials=ids | {"mask": mask_token_id},
        warnings=tuple(doubts),
    )


def load_texts(folder: Path, *, vocab_size: int) -> tuple[str | None, list[bytes]]:
    """The part of a target's tokenizer that a draft must share: its pre-tokenizer and the texts of its rows.

    The name is None where the structure of tokenizer.json does not tell. Merges and templates are not read.
    Raises what `load_tokenizer` raises.
    """
    target = read_target_texts(folder)
    _require_byte_level(target)
    return find_pre(target), read_vocabulary(target, vocab_size).texts


def _require_sizes(vocab_size: int, mask_token_id: int) -> None:
    if not 0 < vocab_size <= MAX_VOCAB_SIZE:
        raise ModelError(f"vocab_size is {vocab_size}, expected 1 … {MAX_VOCAB_SIZE}", where="draft config")
    if not 0 <= mask_token_id < vocab_size:
        raise ModelError(
            f"mask_token_id is {mask_token_id}, the vocabulary has rows 0 … {vocab_size - 1}",
            where="draft config",
        )


def _require_byte_level(target: Target) -> None:
    model = as_object(target.tokenizer.get("model"), f"{target.tokenizer_path}: model")
    kind = model.get("type", "BPE")
    if kind == "BPE" and model.get("byte_fallback") is not True:
        return
    found = "a SentencePiece-like BPE (byte_fallback)" if kind == "BPE" else f"a {brief(kind)} model"
    raise ModelError(f"{found} is not supported, byte-level BPE is", where=target.tokenizer_path)


def _doubts(target: Target, pre: str) -> list[str]:
    found = find_pre(target)
    if found is None or same_pre(found, pre):
        return []
    return [f"tokenizer.json splits text like {found}, --tokenizer-pre says {pre}"]


def _arrays(target: Target, vocab_size: int) -> tuple[dict[str, Array], Vocabulary]:
    """Tokens, types and merges, encoded; the JSON they come from is given up as soon as it is read."""
    vocabulary = read_vocabulary(target, vocab_size)
    model = target.tokenizer["model"]
    merges = read_merges(model, model["vocab"], target.tokenizer_path)
    model.clear()
    arrays = {
        _TOKENS_KEY: Array.of_strings(vocabulary.texts),
        "tokenizer.ggml.token_type": Array.of(ValueType.INT32, vocabulary.types),
        "tokenizer.ggml.merges": Array.of_strings(merges),
    }
    return arrays, vocabulary


def _head_keys(target: Target, pre: str) -> dict[str, MetaValue]:
    keys = {"tokenizer.ggml.model": _string("gpt2"), "tokenizer.ggml.pre": _string(pre)}
    prefix = space_prefix(target)
    if prefix is None:
        return keys
    return {"tokenizer.ggml.add_space_prefix": MetaValue(ValueType.BOOL, prefix), **keys}


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


def _mask_doubts(ids: dict[str, int], mask_token_id: int) -> list[str]:
    equal = [word for word in ("bos", "eos", "pad") if ids.get(word) == mask_token_id]
    return [f"mask_token_id {mask_token_id} is also the {' and '.join(equal)} token"] if equal else []
