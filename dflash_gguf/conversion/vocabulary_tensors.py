"""Tensors over the vocabulary: which embedding and head a draft brings, borrows or leaves to its target.

Most drafts use the target's; one with both of its own runs on devices that the target does not use. A mask embedding
of its own replaces one row of the embedding; a reduced head needs the map from its rows to the target's ids.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dflash_gguf.errors import FormatError, ModelError, UsageError
from dflash_gguf.formats.gguf.types import GGMLType, tensor_bytes
from dflash_gguf.formats.safetensors import SourceTensor
from dflash_gguf.formats.torch_zip import SavedTensor, read_saved
from dflash_gguf.model.checkpoint import Checkpoint
from dflash_gguf.model.config import text_config
from dflash_gguf.model.spec import DraftSpec
from dflash_gguf.model.target import EMBEDDING, HEAD, Target
from dflash_gguf.model.tensors import canonical_source_name
from dflash_gguf.storage.files import LocalFile, MemoryFile, PatchedFile

EMBED = ("keep", "drop", "from-target")
MASK_FILE = "mask_embedding.pt"
_MAP, _MEMBERS = "d2t", "t2d"


@dataclass(frozen=True, slots=True)
class VocabularySources:
    """A checkpoint's tensors with embedding, head and map as they will be written, and what is left out and why."""

    tensors: dict[str, SourceTensor]
    dropped: tuple[tuple[str, str], ...]
    has_embed_tokens: bool


def vocabulary_sources(
    checkpoint: Checkpoint, spec: DraftSpec, config: Mapping[str, Any], target: Target, embed: str
) -> VocabularySources:
    """Settle the tensors over the vocabulary; `embed` is one of EMBED.

    Raises UsageError for an unknown `embed`; ModelError where a tensor that is wanted cannot be had, or one that is
    needed would be dropped; FormatError for a mask embedding or a map that is damaged.
    """
    if embed not in EMBED:
        raise UsageError(f"{embed!r}, expected one of {', '.join(EMBED)}", where="--embed")
    work = _VocabularyPlan(checkpoint, spec, target, dict(checkpoint.tensors))
    if embed == "drop":
        work.drop()
    elif embed == "from-target":
        work.borrow()
    own_table = embed == "from-target"
    mask = checkpoint.folder / MASK_FILE
    if mask.exists():
        if embed == "drop":
            raise ModelError(f"--embed drop, but {MASK_FILE} belongs into the embedding", where=str(mask))
        with LocalFile(mask) as source:
            work.lay_mask(read_saved(source), source.name)
        own_table = True
    work.resolve_map()
    return VocabularySources(
        work.tensors, tuple(work.dropped), own_table or config.get("has_embed_tokens", True) is not False
    )


class _VocabularyPlan:
    def __init__(
        self, checkpoint: Checkpoint, spec: DraftSpec, target: Target, tensors: dict[str, SourceTensor]
    ) -> None:
        self.checkpoint, self.spec, self.target, self.tensors = checkpoint, spec, target, tensors
        self.dropped: list[tuple[str, str]] = []

    def _own(self, name: str) -> str | None:
        """The checkpoint's own spelling of a tensor."""
        return next((key for key in self.tensors if canonical_source_name(key) == name), None)

    def _leave_out(self, name: str, reason: str) -> None:
        while (key := self._own(name)) is not None:
            del self.tensors[key]
            self.dropped.append((key, reason))

    def drop(self) -> None:
        """Leave embedding and head to the target, where its own can stand in for them."""
        if self.spec.draft_vocab_size is not None:
            raise ModelError("--embed drop, but a reduced vocabulary needs its own head", where=self._where())
        if self.target.hidden_size != self.spec.embedding_length:
            raise ModelError(
                f"--embed drop, but hidden_size is {self.spec.embedding_length} in the draft and"
                f" {self.target.hidden_size or 'not known'} in the target: its embedding does not fit",
                where=self._where(),
                hint="--embed keep",
            )
        for name in (EMBEDDING, HEAD):
            self._leave_out(name, "--embed drop: the target's is used")

    def borrow(self) -> None:
        """Take embedding and head from the target; of a tied one the embedding serves as both."""
        self._leave_out(EMBEDDING, "--embed from-target: the target's is written")
        self._take(EMBEDDING, EMBEDDING)
        if self.spec.draft_vocab_size is None:
            self._leave_out(HEAD, "--embed from-target: the target's is written")
            if not self._tied():
                self._take(HEAD, HEAD)

    def lay_mask(self, saved: Mapping[str, int | SavedTensor], where: str) -> None:
        """Put a mask embedding into its row; the head keeps the row as the target has it."""
        row, token_id = saved.get("embedding"), saved.get("mask_token_id")
        if (
            not isinstance(row, SavedTensor)
            or not isinstance(token_id, int)
            or set(saved)
            != {
                "embedding",
                "mask_token_id",
            }
        ):
            raise FormatError(f"holds {', '.join(saved) or 'nothing'}, expected embedding, mask_token_id", where=where)
        if token_id != self.spec.mask_token_id:
            raise ModelError(f"mask_token_id {token_id}, the config says {self.spec.mask_token_id}", where=where)
        if row.shape != (self.spec.embedding_length,):
            raise ModelError(f"shape {list(row.shape)}, the draft wants [{self.spec.embedding_length}]", where=where)
        if self._own(EMBEDDING) is None:
            self._take(EMBEDDING, EMBEDDING)
        if self._own(HEAD) is None:
            self._take(HEAD, EMBEDDING if self._tied() else HEAD)
        key = self._own(EMBEDDING)
        table = self.tensors[key] if key is not None else None
        if key is None or table is None or table.dtype not in ("BF16", "F16", "F32") or len(table.shape) != 2:
            raise ModelError(f"{EMBEDDING} cannot take the row of {MASK_FILE}", where=where)
        data = _as_dtype(row, table.dtype)
        offset = table.offset + token_id * table.size // table.shape[0]
        if token_id >= table.shape[0] or len(data) * table.shape[0] != table.size:
            raise ModelError(f"{table.name} is {list(table.shape)}: the row does not fit", where=where)
        self.tensors[key] = replace(table, source=PatchedFile(table.source, offset, data))

    def resolve_map(self) -> None:
        """Turn a reduced vocabulary's offsets into the token ids that llama.cpp reads."""
        table, members = self._own(_MAP), self._own(_MEMBERS)
        if self.spec.draft_vocab_size is None or table is None:
            return
        ids = _token_ids(self.tensors[table], self.spec)
        if members is not None:
            _compare_members(self.tensors[members], ids, self.spec)
        raw = struct.pack(f"<{len(ids)}q", *ids)
        where = self.tensors[table].source.name
        self.tensors[table] = SourceTensor(_MAP, "I64", (len(ids),), 0, len(raw), MemoryFile(raw, where))

    def _tied(self) -> bool:
        """Whether the target's head is its embedding; a vision model says it at the top or in its text_config."""
        config = self.target.config
        tied = text_config(config).get("tie_word_embeddings", config.get("tie_word_embeddings"))
        if tied is None and self.target.header is None:
            return self.target.find_tensor(HEAD, self.checkpoint.files) is None
        return bool(tied)

    def _take(self, name: str, of: str) -> None:
        """Add the target's tensor `of` as the draft's `name`."""
        if self.target.header is not None:
            raise ModelError(
                f"{of} has to be copied, but the target is a GGUF",
                where=str(self.target.path),
                hint="name the target's checkpoint folder: its weights are copied as they are",
            )
        found = self.target.find_tensor(of, self.checkpoint.files)
        if found is None:
            raise ModelError(f"has no {of}", where=str(self.target.path), hint="is this a language model's checkpoint?")
        self.tensors[name] = found

    def _where(self) -> str:
        return str(self.checkpoint.folder)


def _as_dtype(row: SavedTensor, dtype: str) -> bytes:
    """A row rounded to the table's type, as torch does it: to nearest, ties to even."""
    if row.dtype == dtype:
        return row.data
    import numpy as np

    from dflash_gguf.formats.blocks import dequantize, quantize

    values = dequantize(GGMLType[row.dtype], np.frombuffer(row.data, np.uint8))
    out = np.empty(tensor_bytes(GGMLType[dtype], values.size), np.uint8)
    quantize(GGMLType[dtype], values, out)
    return out.tobytes()


def _token_ids(table: SourceTensor, spec: DraftSpec) -> list[int]:
    """Target id of each row: its own number plus its offset. Raises ModelError unless they are distinct token ids."""
    where = f"{table.source.name}: {table.name}"
    if table.dtype not in ("I64", "I32") or table.shape != (spec.draft_vocab_size,):
        raise ModelError(f"is {table.dtype} {list(table.shape)}, expected I64 [{spec.draft_vocab_size}]", where=where)
    raw = table.source.read(table.offset, table.size)
    offsets = struct.unpack(f"<{table.shape[0]}{'q' if table.dtype == 'I64' else 'i'}", raw)
    ids = [row + offset for row, offset in enumerate(offsets)]
    wrong = next((row for row, token_id in enumerate(ids) if not 0 <= token_id < spec.vocab_size), None)
    if wrong is not None:
        raise ModelError(f"row {wrong} is token {ids[wrong]}, vocab_size is {spec.vocab_size}", where=where)
    if len(set(ids)) != len(ids):
        raise ModelError("two rows are the same token", where=where, hint="are these ids, not offsets?")
    return ids


def _compare_members(members: SourceTensor, ids: list[int], spec: DraftSpec) -> None:
    where = f"{members.source.name}: {members.name}"
    if members.dtype != "BOOL" or members.shape != (spec.vocab_size,):
        raise ModelError(f"is {members.dtype} {list(members.shape)}, expected BOOL [{spec.vocab_size}]", where=where)
    raw = members.source.read(members.offset, members.size)
    if {i for i, byte in enumerate(raw) if byte} != set(ids):
        raise ModelError(f"names other tokens than {_MAP}", where=where, hint="the two maps contradict each other")
