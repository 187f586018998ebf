"""What a DFlash draft is: one value that every dialect of config and every GGUF header is normalised to.

Field names are the GGUF keys' last words (llama.cpp's terms); `model/metadata.py` is the table that writes and
reads them, `model/config/` makes them from a checkpoint's config.json.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """A real rope scaling (`rope_type: default` is none). Fields are None where the source does not set them."""

    type: str
    factor: float
    original_context_length: int | None = None
    yarn_beta_fast: float | None = None
    yarn_beta_slow: float | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_log_multiplier: float | None = None


@dataclass(frozen=True, slots=True)
class DynamicConv:
    """Sizes that make a draft a DFlash 2 draft: the grouped dynamic convolutions and the candidate selector."""

    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """Geometry and constants of one draft, as GGUF says them (`target_layers` are already shifted by one).

    Optional fields are None where the key is absent; `v2` is None for a DFlash 1 draft.
    """

    block_count: int
    context_length: int
    embedding_length: int
    feed_forward_length: int
    head_count: int
    head_count_kv: int
    key_length: int
    layer_norm_rms_epsilon: float
    rope_freq_base: float
    block_size: int
    target_layers: tuple[int, ...]
    mask_token_id: int
    vocab_size: int
    draft_vocab_size: int | None = None  # tokens that a reduced head can propose; the header does not say it
    v2: DynamicConv | None = None
    rope_dimension_count: int | None = None
    rope_scaling: RopeScaling | None = None
    rope_dimension_sections: tuple[int, int, int, int] | None = None
    causal: bool | None = None
    sliding_window: int | None = None
    sliding_window_pattern: tuple[bool, ...] | None = None
    value_scale: float | None = None
    logit_scale: float | None = None
    final_logit_softcapping: float | None = None
    embedding_scale: float | None = None

    @property
    def version(self) -> int:
        """1 for DFlash, 2 for DFlash 2 (the file with convolutions and selector)."""
        return 1 if self.v2 is None else 2

    @property
    def max_draft(self) -> int:
        """Tokens one pass can propose: the block without its anchor."""
        return self.block_size - 1

    def is_sliding(self, layer: int) -> bool:
        """Whether `layer` attends within the sliding window only."""
        return bool(self.sliding_window_pattern and self.sliding_window_pattern[layer])
