"""A target's tokenizer from its own GGUF: the block is copied as it stands, only the mask token is the draft's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_gguf.errors import FormatError, ModelError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, MetaValue
from dflash_gguf.model.tokenizer.load import ID_KEYS, TOKENS_KEY, Tokenizer, mask_doubts, require_sizes
from dflash_gguf.model.tokenizer.vocabulary import TokenType
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from dflash_gguf.formats.gguf.values import Metadata

_MODEL_KEY, _PRE_KEY, _TYPES_KEY = (f"tokenizer.ggml.{name}" for name in ("model", "pre", "token_type"))


def tokenizer_of_header(metadata: Metadata, *, vocab_size: int, mask_token_id: int, where: str) -> Tokenizer:
    """The `tokenizer.*` keys of a target's header, for a draft of `vocab_size` rows.

    Raises ModelError for a header without a vocabulary (the second part of a split file, say) or with another number
    of tokens, FormatError for one whose arrays have the wrong type or length.
    """
    require_sizes(vocab_size, mask_token_id)
    keys = {name: value for name, value in metadata.items() if name.startswith("tokenizer.")}
    tokens = _array(keys, TOKENS_KEY, ValueType.STRING, where)
    if tokens is None or _MODEL_KEY not in keys:
        raise ModelError(
            "holds no tokenizer", where=where, hint="name the target's first part or its checkpoint folder"
        )
    if tokens.count != vocab_size:
        raise ModelError(
            f"{counted(tokens.count, 'token')}, but the draft has {counted(vocab_size, 'vocabulary row')}",
            where=where,
            hint="this target and this draft do not belong together",
        )
    types = _array(keys, _TYPES_KEY, ValueType.INT32, where)
    for name, array in ((_TYPES_KEY, types), ("tokenizer.ggml.scores", _scores(keys, where))):
        if array is not None and array.count != tokens.count:
            raise FormatError(
                f"{name} has {counted(array.count, 'item')} for {counted(tokens.count, 'token')}", where=where
            )
    specials = {word: token_id for word, key in ID_KEYS.items() if (token_id := _id(keys, key, vocab_size, where)) >= 0}
    specials["mask"] = mask_token_id
    keys[ID_KEYS["mask"]] = MetaValue(ValueType.UINT32, mask_token_id)
    unused = sum(kind == TokenType.UNUSED for kind in types.items()) if types else 0
    return Tokenizer(
        key_values=list(keys.items()),
        model=_text(keys, _MODEL_KEY) or "",
        pre=_text(keys, _PRE_KEY),
        tokens=tokens,
        token_count=tokens.count,
        defined=tokens.count - unused,
        specials=specials,
        warnings=tuple(mask_doubts(specials, mask_token_id)),
    )


def _scores(keys: Metadata, where: str) -> Array | None:
    return _array(keys, "tokenizer.ggml.scores", ValueType.FLOAT32, where)


def _array(keys: Metadata, name: str, item: ValueType, where: str) -> Array | None:
    value = keys.get(name)
    if value is None:
        return None
    if not isinstance(value.value, Array) or value.value.item_type is not item:
        raise FormatError(f"{name} is no array of {item.name}", where=where)
    return value.value


def _text(keys: Metadata, name: str) -> str | None:
    value = keys.get(name)
    return value.value if value is not None and isinstance(value.value, str) else None


def _id(keys: Metadata, name: str, rows: int, where: str) -> int:
    """A special id, −1 where there is none."""
    value = keys.get(name)
    if value is None or name == ID_KEYS["mask"]:
        return -1
    if type(value.value) is not int or not 0 <= value.value < rows:
        raise FormatError(f"{name} is {value.value!r}, the vocabulary has rows 0 … {rows - 1}", where=where)
    return value.value
