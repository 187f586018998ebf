"""The metadata table: one row a key, used to write a file's header, to read it back and to check it.

Source: FORMAT facts of llama.cpp's loader for the arch `dflash`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from dflash_gguf.errors import ModelError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array, Metadata, MetaValue, Scalar
from dflash_gguf.model.spec import DraftSpec, DynamicConv, RopeScaling
from dflash_gguf.wording import counted

ARCHITECTURE = "dflash"
PREFIX = ARCHITECTURE + "."
MASK_KEY = "tokenizer.ggml.mask_token_id"
QUANTIZATION_VERSION = 2
MAX_ITEMS = 4096  # of an array under `dflash.`: one for each layer of a draft or a target


@dataclass(frozen=True, slots=True)
class Key:
    """One key under `dflash.`: its type in the file (`item` for arrays), where it lives in the spec, who needs it.

    `of` is "" for a field of DraftSpec itself, else the nested value ("v2", "rope_scaling").
    """

    name: str
    type: ValueType
    field: str
    of: str = ""
    item: ValueType | None = None
    required: bool = False

    @property
    def full(self) -> str:
        """The key as it stands in the file."""
        return PREFIX + self.name

    def encode(self, spec: DraftSpec) -> MetaValue | None:
        """The value to write, or None when the draft has none."""
        holder: Any = getattr(spec, self.of) if self.of else spec
        value = None if holder is None else getattr(holder, self.field)
        if value is None:
            return None
        return MetaValue(self.type, value if self.item is None else Array.of(self.item, value))

    def fits(self, value: MetaValue) -> bool:
        """Whether a value found in a file has this key's type."""
        if value.type is not self.type:
            return False
        return self.item is None or (isinstance(value.value, Array) and value.value.item_type is self.item)

    @property
    def type_name(self) -> str:
        """The type as it is told to a person."""
        return self.type.name if self.item is None else f"array of {self.item.name}"


_U32, _F32, _ARR = ValueType.UINT32, ValueType.FLOAT32, ValueType.ARRAY

KEYS: tuple[Key, ...] = (
    Key("block_count", _U32, "block_count", required=True),
    Key("context_length", _U32, "context_length", required=True),
    Key("embedding_length", _U32, "embedding_length", required=True),
    Key("feed_forward_length", _U32, "feed_forward_length", required=True),
    Key("attention.head_count", _U32, "head_count", required=True),
    Key("attention.head_count_kv", _U32, "head_count_kv", required=True),
    Key("attention.key_length", _U32, "key_length", required=True),
    Key("attention.value_length", _U32, "key_length", required=True),
    Key("attention.layer_norm_rms_epsilon", _F32, "layer_norm_rms_epsilon", required=True),
    Key("attention.causal", ValueType.BOOL, "causal"),
    Key("attention.sliding_window", _U32, "sliding_window"),
    Key("attention.sliding_window_pattern", _ARR, "sliding_window_pattern", item=ValueType.BOOL),
    Key("attention.value_scale", _F32, "value_scale"),
    Key("rope.freq_base", _F32, "rope_freq_base", required=True),
    Key("rope.dimension_count", _U32, "rope_dimension_count"),
    Key("rope.dimension_sections", _ARR, "rope_dimension_sections", item=ValueType.INT32),
    Key("rope.scaling.type", ValueType.STRING, "type", of="rope_scaling"),
    Key("rope.scaling.factor", _F32, "factor", of="rope_scaling"),
    Key("rope.scaling.original_context_length", _U32, "original_context_length", of="rope_scaling"),
    Key("rope.scaling.yarn_ext_factor", _F32, "yarn_ext_factor", of="rope_scaling"),
    Key("rope.scaling.yarn_attn_factor", _F32, "yarn_attn_factor", of="rope_scaling"),
    Key("rope.scaling.yarn_beta_fast", _F32, "yarn_beta_fast", of="rope_scaling"),
    Key("rope.scaling.yarn_beta_slow", _F32, "yarn_beta_slow", of="rope_scaling"),
    Key("rope.scaling.yarn_log_multiplier", _F32, "yarn_log_multiplier", of="rope_scaling"),
    Key("block_size", _U32, "block_size", required=True),
    Key("conv_kernel_size", _U32, "conv_kernel_size", of="v2"),
    Key("conv_group_size", _U32, "conv_group_size", of="v2"),
    Key("selector_rank", _U32, "selector_rank", of="v2"),
    Key("selector_top_k", _U32, "selector_top_k", of="v2"),
    Key("target_layers", _ARR, "target_layers", item=ValueType.INT32, required=True),
    Key("logit_scale", _F32, "logit_scale"),
    Key("final_logit_softcapping", _F32, "final_logit_softcapping"),
    Key("embedding_scale", _F32, "embedding_scale"),
)
BY_NAME: dict[str, Key] = {key.full: key for key in KEYS}

#: whole numbers that each integer type holds
_RANGES: dict[ValueType, range] = {
    ValueType.UINT8: range(1 << 8),
    ValueType.INT8: range(-(1 << 7), 1 << 7),
    ValueType.UINT16: range(1 << 16),
    ValueType.INT16: range(-(1 << 15), 1 << 15),
    ValueType.UINT32: range(1 << 32),
    ValueType.INT32: range(-(1 << 31), 1 << 31),
    ValueType.UINT64: range(1 << 64),
    ValueType.INT64: range(-(1 << 63), 1 << 63),
}
_MAX_COERCED = 1 << 16

#: general.file_type of a file whose matrices have this type (llama.cpp's ftype numbers)
FILE_TYPES: dict[str, int] = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "BF16": 32,
}


def coerce(key: Key, value: MetaValue) -> MetaValue | None:
    """`value` in the type that llama.cpp reads this key with; None where it would mean something else there."""
    if key.fits(value):
        return value
    if key.item is None:
        item = None if isinstance(value.value, Array) else convert_scalar(value.value, key.type)
        return None if item is None else MetaValue(key.type, item)
    if not isinstance(value.value, Array) or value.value.count > _MAX_COERCED:
        return None
    items = [convert_scalar(item, key.item) for item in value.value.items()]
    kept = [item for item in items if item is not None]
    return MetaValue(key.type, Array.of(key.item, kept)) if len(kept) == len(items) else None


def convert_scalar(value: Scalar, kind: ValueType) -> Scalar | None:
    """The same number or truth as `kind`, or None where it cannot hold it; floats are rounded to F32."""
    if kind is ValueType.STRING:
        return value if isinstance(value, str) else None
    if isinstance(value, str):
        return None
    if kind is ValueType.BOOL:
        return bool(value) if value in (0, 1) else None
    if kind in _RANGES:
        whole = isinstance(value, int) or value.is_integer()
        return int(value) if whole and int(value) in _RANGES[kind] else None
    if isinstance(value, bool):
        return None
    form = "<f" if kind is ValueType.FLOAT32 else "<d"
    try:
        return float(struct.unpack(form, struct.pack(form, float(value)))[0])
    except OverflowError:
        return None


def encode_spec(spec: DraftSpec) -> list[tuple[str, MetaValue]]:
    """The `dflash.*` keys of `spec`, in the table's order."""
    pairs = ((key.full, key.encode(spec)) for key in KEYS)
    return [(name, value) for name, value in pairs if value is not None]


def spec_from_metadata(metadata: Metadata) -> DraftSpec:
    """The draft that a file's header describes; `vocab_size` is the number of tokens.

    Raises ModelError: another architecture, a required key missing, a key of the wrong type.
    """
    architecture = metadata.get("general.architecture")
    if architecture is None or architecture.value != ARCHITECTURE:
        found = "missing" if architecture is None else repr(architecture.value)
        raise ModelError(f"is {found}, expected {ARCHITECTURE!r}", where="general.architecture")
    nested: dict[str, Callable[..., Any]] = {"v2": DynamicConv, "rope_scaling": RopeScaling}
    parts: dict[str, dict[str, Any]] = {"": {}, **{name: {} for name in nested}}
    for key in KEYS:
        value = _read(key, metadata)
        if value is not None:
            parts[key.of][key.field] = value
    plain = parts[""]
    for name, make in nested.items():
        if parts[name] and parts[name].get("type") != "none":
            plain[name] = _make(make, parts[name], name)
    mask = metadata.get(MASK_KEY)
    plain["mask_token_id"] = _natural(mask, MASK_KEY)
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None or not isinstance(tokens.value, Array):
        raise ModelError("is missing", where="tokenizer.ggml.tokens", hint="convert anew with the target's tokenizer")
    return DraftSpec(**plain, vocab_size=tokens.value.count)


def _read(key: Key, metadata: Metadata) -> Scalar | tuple[Any, ...] | None:
    value = metadata.get(key.full)
    if value is None:
        if key.required:
            raise ModelError(f"is missing ({key.type_name})", where=key.full, hint="convert the checkpoint anew")
        return None
    if not key.fits(value):
        raise ModelError(f"has type {value.type.name}, expected {key.type_name}", where=key.full)
    if not isinstance(value.value, Array):
        return value.value
    if value.value.count > MAX_ITEMS:
        raise ModelError(
            f"holds {counted(value.value.count, 'item')}, at most {MAX_ITEMS:,} make sense", where=key.full
        )
    return tuple(value.value.items())


def _make(make: Callable[..., Any], values: dict[str, Any], name: str) -> Any:
    try:
        return make(**values)
    except TypeError:
        needed = [f.name for f in fields(make) if f.name not in values]  # type: ignore[arg-type]
        keys = ", ".join(key.full for key in KEYS if key.of == name and key.field in needed)
        raise ModelError(f"{keys} missing beside {', '.join(values)}", where="metadata") from None


def _natural(value: MetaValue | None, where: str) -> int:
    if value is None:
        raise ModelError("is missing", where=where, hint="set it: the draft fills its block with this token")
    if value.type not in (ValueType.UINT32, ValueType.INT32) or not isinstance(value.value, int) or value.value < 0:
        raise ModelError(f"is {value.value!r} ({value.type.name}), expected UINT32", where=where)
    return value.value


def file_type_name(number: int) -> str | None:
    """The name of a general.file_type number, if it is one that we write."""
    return next((name for name, value in FILE_TYPES.items() if value == number), None)


def general_pairs(file_type: str) -> list[tuple[str, MetaValue]]:
    """The keys that say what the file holds, which every output has."""
    return [
        ("general.file_type", MetaValue(_U32, FILE_TYPES[file_type])),
        ("general.quantization_version", MetaValue(_U32, QUANTIZATION_VERSION)),
    ]
