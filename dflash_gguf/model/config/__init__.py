"""What a config.json says: a draft's, in any dialect, as a DraftSpec.

Owns every key of a draft's config; never opens a file, never reads a tensor. Way in: reader.spec_from_config;
keys.py says what each key does at each place, dialects.py brings
the dialects to one view, names.py knows architectures.
"""

from __future__ import annotations

from dflash_gguf.model.config.dialects import V2_SIZES
from dflash_gguf.model.config.names import (
    architectures,
    is_draft_architecture,
    target_architecture,
    text_config,
    uses_mrope,
)
from dflash_gguf.model.config.reader import MAX_BLOCKS, ConfigReading, spec_from_config, unknown_told

__all__ = [
    "MAX_BLOCKS",
    "V2_SIZES",
    "ConfigReading",
    "architectures",
    "is_draft_architecture",
    "spec_from_config",
    "target_architecture",
    "text_config",
    "unknown_told",
    "uses_mrope",
]
