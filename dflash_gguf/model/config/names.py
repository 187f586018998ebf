"""Which architectures a config names, and the small questions that are asked of a target's config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ASSISTANT = "MuseGlimmerAssistantModel"
ARCHITECTURES = {
    "DFlashDraftModel": 1,
    "DFlash2DraftModel": 2,
    "DFlashSpeculator": 1,
    ASSISTANT: 1,
}
#: what the names of draft models hold, ours and others'
_DRAFTS = re.compile(r"DFlash|DSpark|DraftModel|Speculator|ForCausalLMEagle", re.IGNORECASE)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a target's config that describes its language model."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def architectures(config: Mapping[str, Any]) -> list[str]:
    """The architectures that a config names."""
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def target_architecture(config: Mapping[str, Any]) -> str:
    """The first architecture a config names, or ""."""
    return next(iter(architectures(config)), "")


def is_draft_architecture(name: str) -> bool:
    """Whether a checkpoint's architecture is a draft's, of this kind or another."""
    return name in ARCHITECTURES or _DRAFTS.search(name) is not None


def uses_mrope(target: Mapping[str, Any]) -> bool:
    """Whether a target ropes its positions in sections (vision models do)."""
    rope = text_config(target).get("rope_parameters") or text_config(target).get("rope_scaling") or {}
    return isinstance(rope, Mapping) and "mrope_section" in rope
