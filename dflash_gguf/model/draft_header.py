"""What a GGUF's header says of a draft: single values, and the spec they make together."""

from __future__ import annotations

import hashlib
from typing import Any

from dflash_gguf.errors import ModelError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, Metadata, MetaValue
from dflash_gguf.model.metadata import ARCHITECTURE, MASK_KEY, spec_from_metadata
from dflash_gguf.model.metadata_dialects import ARCHITECTURE_KEY, is_foreign
from dflash_gguf.model.spec import DraftSpec

LONG_ARRAY = 64  # items; longer arrays are told by length and hash


def text(metadata: Metadata, key: str, default: str = "") -> str:
    """A string value, or `default` where the key is absent or holds something else."""
    value = metadata.get(key)
    return value.value if value and isinstance(value.value, str) else default


def plain(value: MetaValue) -> Any:
    """A value for JSON; arrays over LONG_ARRAY items as type, length and the sha256 of their encoded bytes."""
    array = value.value
    if not isinstance(array, Array):
        return array
    if array.count <= LONG_ARRAY:
        return array.items()
    digest = hashlib.sha256(array.raw).hexdigest()
    return {"type": array.item_type.name.lower(), "length": array.count, "sha256": digest}


def draft_spec(metadata: Metadata) -> DraftSpec | None:
    """The draft a header describes; None for another architecture, or where a key it needs is missing."""
    try:
        return spec_from_metadata(metadata)
    except ModelError:
        return None


def require_spec(metadata: Metadata, file: str) -> DraftSpec:
    """The draft that a file's header describes. Raises ModelError, with the file's name and the next step."""
    try:
        return spec_from_metadata(metadata)
    except ModelError as error:
        hint = error.hint
        if is_foreign(text(metadata, ARCHITECTURE_KEY)):
            hint = "a fork's dialect: dflash-gguf patch IN OUT --fix all"
        elif not hint:
            hint = f"dflash-gguf {'check' if text(metadata, ARCHITECTURE_KEY) == ARCHITECTURE else 'inspect'} FILE"
        raise ModelError(error.message, where=f"{file}: {error.where}", hint=hint) from None


def start_spec(metadata: Metadata) -> DraftSpec | None:
    """As `draft_spec`, where the vocabulary and what follows it were not read: vocab_size and mask_token_id are 0."""
    unread = {
        MASK_KEY: MetaValue(ValueType.UINT32, 0),
        "tokenizer.ggml.tokens": MetaValue(ValueType.ARRAY, Array(ValueType.STRING, 0, b"")),
    }
    return draft_spec({**unread, **metadata})


def missing_for_draft(metadata: Metadata) -> str:
    """Why a file of arch `dflash` does not describe a draft, in one line; "" where it does, or is no draft."""
    if text(metadata, "general.architecture") != ARCHITECTURE:
        return ""
    try:
        spec_from_metadata(metadata)
    except ModelError as error:
        return str(error)
    return ""


def value_type(value: MetaValue) -> str:
    """A value's type as it is shown: `uint32`, `int32[5]`."""
    if isinstance(value.value, Array):
        return f"{value.value.item_type.name.lower()}[{value.value.count}]"
    return ValueType(value.type).name.lower()
