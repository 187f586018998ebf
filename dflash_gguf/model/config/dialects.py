"""The dialects of a draft's config, seen as z-lab's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_gguf.errors import ModelError
from dflash_gguf.model.config.names import text_config

V2_SIZES = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_U32_MAX = 0xFFFF_FFFF


class View:
    """A config of either dialect, seen as z-lab's: `top` is the backbone, `nested` the draft's own values."""

    def __init__(self, top: Mapping[str, Any], nested: Mapping[str, Any], where: str, *, flat: bool) -> None:
        self.top, self.nested, self.where, self.flat = top, nested, where, flat

    @classmethod
    def of(cls, config: Mapping[str, Any], where: str) -> View:
        backbone = config.get("transformer_layer_config")
        if isinstance(backbone, Mapping):
            return cls(backbone, from_speculators(config, where), where, flat=True)
        nested = config.get("dflash_config", {})
        if not isinstance(nested, Mapping):
            raise ModelError(f"dflash_config is {nested!r}, expected an object", where=where)
        return cls(config, nested, where, flat=False)

    def error(self, message: str, hint: str = "") -> ModelError:
        return ModelError(message, where=self.where, hint=hint)

    def either(self, key: str, *others: str) -> Any:
        """A value that may stand nested or at the top (there also under other names); in conflict is an error."""
        inner = self.nested.get(key)
        outer = next((self.top[name] for name in (key, *others) if self.top.get(name) is not None), None)
        if inner is not None and outer is not None and inner != outer:
            raise self.error(f"{key} is {inner!r} in dflash_config but {outer!r} at the top level")
        return outer if inner is None else inner

    def natural(self, key: str, value: Any, *, least: int = 1) -> int:
        if type(value) is not int or not least <= value <= _U32_MAX:
            found = "missing" if value is None else f"{value!r}, expected a whole number ≥ {least}"
            raise self.error(f"{key} is {found}")
        return value

    def number(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 3.4e38:
            raise self.error(f"{key} is {'missing' if value is None else repr(value)}, expected a number")
        return float(value)

    def positive(self, key: str, value: Any) -> float:
        if not self.number(key, value) > 0:
            raise self.error(f"{key} is {value!r}, expected a number > 0")
        return float(value)

    def optional(self, key: str) -> float | None:
        """A number of `dflash_config` or of the top level; in conflict is an error."""
        value = self.either(key)
        return None if value is None else self.number(key, value)

    def flag(self, key: str, value: Any) -> bool:
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{key} is {value!r}, expected true or false")
        return bool(value)


def from_speculators(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The flat dialect's own values under z-lab's names; aux ids are HF ids + 1, and absent is_causal means false."""
    nested = {key: config[key] for key in ("block_size", "mask_token_id", *V2_SIZES) if key in config}
    nested["causal"] = config.get("is_causal", False)
    absent = False if config.get("speculators_model_type") == "dflash" else None  # DFlashSpeculatorConfig, 0.9.0
    nested["sliding_window_non_causal"] = config.get("sliding_window_non_causal", absent)
    for key in ("block_size", "mask_token_id", "vocab_size"):
        _agree(key, config.get(key), config["transformer_layer_config"].get(key), where)
    aux = config.get("aux_hidden_state_layer_ids")
    if aux is not None:
        if not isinstance(aux, list) or not all(type(item) is int for item in aux):
            raise ModelError(f"aux_hidden_state_layer_ids is {aux!r}, expected a list of ids", where=where)
        nested["target_layer_ids"] = [item - 1 for item in aux]
    nested["draft_vocab_size"] = config.get("draft_vocab_size")
    return nested


def _agree(key: str, outer: Any, inner: Any, where: str) -> None:
    if None not in (outer, inner) and outer != inner:
        raise ModelError(f"{key} is {outer!r} at the top level but {inner!r} in transformer_layer_config", where=where)


def from_assistant(config: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, Any]:
    """The dialect of transformers under z-lab's names: layers slide by layer_types, the vocabulary is the target's."""
    nested = {key: config[key] for key in ("block_size", "mask_token_id", "target_layer_ids") if key in config}
    flat = {key: value for key, value in config.items() if key not in nested}
    vocab = config.get("vocab_size", text_config(target).get("vocab_size"))
    slides = bool(config.get("sliding_window") and config.get("layer_types"))
    return {**flat, "dflash_config": nested, "vocab_size": vocab, "use_sliding_window": slides}
