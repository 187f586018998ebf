"""Files that draft for a target in llama.cpp: what a GGUF is, and the flag that runs it.

Source: llama.cpp's names of speculative types, and how it tells them from a file's metadata and tensors.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from dflash_gguf.formats.gguf.values import Array, Metadata
from dflash_gguf.model.metadata import ARCHITECTURE, PREFIX
from dflash_gguf.model.metadata_dialects import ARCHITECTURE_KEY, is_dspark_name, is_foreign

MARKOV = "markov_w1.weight"
_HYPER = "hyper_connection.count"
_NEXTN = re.compile(r"blk\.(\d{1,6})\.nextn\.\w+(\.weight)?")
_BLOCK = re.compile(r"blk\.(\d{1,6})\.")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What drafts: `name` for a person, `spec_type` for llama.cpp's --spec-type, `prefix` of file names it looks for.

    `flag` is the whole of what has to be given.
    """

    name: str
    spec_type: str
    prefix: str
    with_target: bool = False  # the heads are inside the target's own file

    @property
    def flag(self) -> str:
        """The options that run it."""
        option = f"--spec-type {self.spec_type}"
        return option if self.with_target else f"-md FILE {option}"


DFLASH = Sidecar("DFlash draft", "draft-dflash", "dflash-")
DSPARK = Sidecar("DSpark draft", "draft-dspark", "dspark-")
EAGLE3 = Sidecar("EAGLE-3 draft", "draft-eagle3", "eagle3-")
MTP = Sidecar("MTP draft", "draft-mtp", "mtp-")
MTP_INSIDE = Sidecar("target with MTP heads", "draft-mtp", "", with_target=True)


def recognise(metadata: Metadata, tensors: Collection[str]) -> Sidecar | None:
    """What kind of draft a header describes; None for a plain model."""
    value = metadata.get(ARCHITECTURE_KEY)
    architecture = value.value if value is not None and isinstance(value.value, str) else ""
    if architecture == ARCHITECTURE or is_foreign(architecture):
        return DSPARK if is_dspark(metadata, tensors) else DFLASH
    if architecture == "eagle3":
        return EAGLE3
    if architecture == "gemma4-assistant":
        return MTP
    heads = {match[1] for name in tensors if (match := _NEXTN.fullmatch(name))}
    if not heads or not _count(metadata, f"{architecture}.nextn_predict_layers"):
        return None
    blocks = {match[1] for name in tensors if (match := _BLOCK.match(name))}
    return MTP if blocks == heads else MTP_INSIDE


def is_dspark(metadata: Metadata, tensors: Collection[str]) -> bool:
    """Whether a file of a DFlash architecture has DSpark's Markov head or DeepSeek-V4 blocks."""
    value = metadata.get(ARCHITECTURE_KEY)
    name = value.value if value is not None and isinstance(value.value, str) else None
    markov = any(tensor.removeprefix("dspark.") == MARKOV for tensor in tensors)
    return markov or is_dspark_name(name) or bool(_count(metadata, PREFIX + _HYPER))


def _count(metadata: Metadata, key: str) -> int:
    value = metadata.get(key)
    found = value.value if value is not None else 0
    return found if not isinstance(found, Array) and type(found) is int and found > 0 else 0
