"""The checkpoint that a file was converted from, as the source rules need it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_gguf.model.checkpoint import Checkpoint, Identity, read_config
from dflash_gguf.model.config import spec_from_config
from dflash_gguf.model.provenance import Card, read_card, spec_sha256
from dflash_gguf.model.quantization import read_quantization

if TYPE_CHECKING:
    from dflash_gguf.checks.place import Place
    from dflash_gguf.conversion.pairing import Pairing
    from dflash_gguf.model.spec import DraftSpec


@dataclass(frozen=True, slots=True)
class SourceDraft:
    """A draft's checkpoint: what its config says, and what it is called."""

    folder: Path
    config: dict[str, Any]
    spec: DraftSpec
    rope_is_neox: bool
    card: Card
    identity: Identity
    spec_sha256: str

    @property
    def has_mask_row(self) -> bool:
        """Whether a mask embedding of its own replaces a row of the embedding."""
        return (self.folder / "mask_embedding.pt").exists()

    @property
    def has_weights(self) -> bool:
        """Whether any safetensors file is there."""
        return any(self.folder.glob("*.safetensors"))

    @contextmanager
    def pairing(self) -> Iterator[Pairing]:
        """The checkpoint's tensors, paired with the draft's. Raises what reading a checkpoint raises."""
        from dflash_gguf.conversion.pairing import pair_tensors

        with Checkpoint(self.folder) as checkpoint:
            has_embedding = self.config.get("has_embed_tokens", True) is not False
            yield pair_tensors(
                self.spec,
                checkpoint.tensors,
                has_embed_tokens=has_embedding,
                quantization=read_quantization(self.folder, self.config),
                where=str(self.folder),
            )


def open_source(place: Place, *, weights: bool, vocab_size: int | None) -> SourceDraft:
    """Read a checkpoint's config; of one on the Hub, `weights` fetches those too.

    `vocab_size` is the target's, for a config that leaves it to the target.

    Raises UsageError (no such folder), HubError, FormatError or ModelError (no DFlash draft).
    """
    folder = place.draft_folder(weights=weights)
    config = read_config(folder)
    left_to_target = "vocab_size" not in config and "transformer_layer_config" not in config
    target = {"vocab_size": vocab_size} if left_to_target else None
    reading = spec_from_config(config, target, where=str(folder / "config.json"))
    return SourceDraft(
        folder,
        config,
        reading.spec,
        reading.rope_is_neox,
        read_card(folder),
        Identity.of_folder(folder),
        spec_sha256(reading.spec),
    )
