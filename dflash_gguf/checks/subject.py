"""What rules look at: one file's header, read once, and what is derived from it.

Everything here holds for a file that lies about any of it: values are asked for by type, sizes come back as None
where they make no sense, and nothing raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from dflash_gguf.checks.geometry import conv_tensors, draft_version, geometry, selector_tensors, uniform_dim
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array
from dflash_gguf.model.config import MAX_BLOCKS
from dflash_gguf.model.metadata import ARCHITECTURE, PREFIX
from dflash_gguf.model.metadata_dialects import Move, migration
from dflash_gguf.model.provenance import parse_card
from dflash_gguf.model.sidecars import Sidecar, is_dspark, recognise
from dflash_gguf.model.tensor_dialects import canonical_names
from dflash_gguf.storage.hub.remote_file import RemoteFile

if TYPE_CHECKING:
    from dflash_gguf.checks.place import Place
    from dflash_gguf.checks.source import SourceDraft
    from dflash_gguf.checks.target import Target
    from dflash_gguf.errors import FormatError
    from dflash_gguf.formats.gguf.layout import TensorInfo
    from dflash_gguf.formats.gguf.scan import Header
    from dflash_gguf.formats.gguf.values import Metadata, MetaValue
    from dflash_gguf.model.spec import DraftSpec
    from dflash_gguf.storage.files import ByteFile

#: strings of longer arrays are not looked at; the largest published vocabulary has 262,144 tokens of 6 MB
MAX_STRINGS, MAX_STRING_BYTES = 1 << 20, 16 << 20
#: 512 blocks of a DFlash 2 draft with every optional tensor
MAX_TENSORS = MAX_BLOCKS * 19 + 12
_PAGES = "https://huggingface.co/"
TOKENS_KEY = "tokenizer.ggml.tokens"
MERGES_KEY = "tokenizer.ggml.merges"
TYPES_KEY, SCORES_KEY = "tokenizer.ggml.token_type", "tokenizer.ggml.scores"


def is_absurd(array: Array) -> bool:
    """Whether an array of strings is beyond any vocabulary: looking at all of it would take too long."""
    return array.count > MAX_STRINGS or len(array.raw) > MAX_STRING_BYTES


class Subject:
    """One file under check. `header` is None where it could not be read; `refusal` then says why.

    `on_bytes` is told of tensor data as they are read, from several threads.
    """

    def __init__(
        self,
        place: Place,
        source: ByteFile,
        header: Header | None,
        refusal: FormatError | None = None,
        *,
        target: Target | None = None,
        original: SourceDraft | None = None,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.place, self.source, self.header, self.refusal = place, source, header, refusal
        self.target, self.original, self.on_bytes = target, original, on_bytes
        self.why_no_target = "no --target was given"

    @property
    def file_name(self) -> str:
        """The last part of the file's path."""
        return re.split(r"[/\\]", self.place.name)[-1]

    @property
    def at_hand(self) -> bool:
        """Whether all bytes can be read at no cost; of a file on the Hub only the header is."""
        return not isinstance(self.source, RemoteFile)

    @property
    def target_repo(self) -> str | None:
        """The repository of the target that the file was made for: by its own keys, else by the card beside it."""
        url = self.string("general.base_model.0.repo_url") or ""
        if url.startswith(_PAGES):
            return url.removeprefix(_PAGES)
        text = self.place.card()
        return parse_card(text).base_model if text else None

    @property
    def metadata(self) -> Metadata:
        """All keys; empty without a header."""
        return self.header.metadata if self.header else {}

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """All tensors whose size can be told; empty without a header."""
        return self.header.tensors if self.header else {}

    @cached_property
    def is_draft(self) -> bool:
        """Whether the architecture is `dflash`."""
        return self.string("general.architecture") == ARCHITECTURE

    @cached_property
    def is_part(self) -> bool:
        """Whether it is one part of a split file."""
        count = self.metadata.get("split.count")
        return count is not None and isinstance(count.value, int) and count.value > 1

    @cached_property
    def is_dspark(self) -> bool:
        """Whether it is a DSpark draft: the same architecture with a Markov head or DeepSeek-V4 blocks."""
        return is_dspark(self.metadata, self.tensors)

    @cached_property
    def sidecar(self) -> Sidecar | None:
        """What kind of draft it is, of those that llama.cpp runs."""
        return recognise(self.metadata, self.tensors)

    @cached_property
    def migration(self) -> list[Move]:
        """What has to change in keys of a foreign dialect."""
        return migration(self.metadata)

    @cached_property
    def misplaced(self) -> frozenset[str]:
        """Keys that are there, but where nobody reads them: KV101 tells of them, and no other rule misses them."""
        return frozenset(move.new for move in self.migration if move.new)

    @cached_property
    def unsized(self) -> frozenset[str]:
        """Names of tensors that are there but whose size cannot be told (a container defect says why)."""
        defects = self.header.errors if self.header else ()
        return frozenset(defect.where for defect in defects if defect.rule in ("GF003", "GF005"))

    def string(self, key: str) -> str | None:
        """A string value."""
        value = self.metadata.get(key)
        return value.value if value is not None and isinstance(value.value, str) else None

    def natural(self, key: str) -> int | None:
        """A positive whole number of any integer type."""
        value = self.metadata.get(key)
        if value is None or value.type is ValueType.BOOL or not isinstance(value.value, int):
            return None
        return value.value if value.value > 0 else None

    def integers(self, key: str) -> list[int] | None:
        """An array of whole numbers; None where there is none, or where it is absurdly long."""
        value = self.metadata.get(key)
        if value is None or not isinstance(value.value, Array) or value.value.count > 1 << 12:
            return None
        items = value.value.items()
        return [int(item) for item in items] if all(type(item) is int for item in items) else None

    def strings(self, key: str) -> Array | None:
        """An array of strings, still encoded."""
        value = self.metadata.get(key)
        array = value.value if value is not None else None
        return array if isinstance(array, Array) and array.item_type is ValueType.STRING else None

    def draft_keys(self) -> dict[str, MetaValue]:
        """The keys under `dflash.`, by their names without it."""
        return {key.removeprefix(PREFIX): value for key, value in self.metadata.items() if key.startswith(PREFIX)}

    @cached_property
    def token_count(self) -> int:
        """llama.cpp's n_vocab; 0 without tokens."""
        array = self.strings(TOKENS_KEY)
        return array.count if array else 0

    @cached_property
    def tokens(self) -> list[bytes] | None:
        """Texts of all tokens; None where there are none, or too many to be a vocabulary."""
        array = self.strings(TOKENS_KEY)
        return None if array is None or is_absurd(array) else array.strings()

    @cached_property
    def merges(self) -> list[bytes] | None:
        """All merges; None where there are none, or too many to be a vocabulary's."""
        array = self.strings(MERGES_KEY)
        return None if array is None or is_absurd(array) else array.strings()

    @cached_property
    def version(self) -> int:
        """2 where any tensor or size of DFlash 2 is present, else 1."""
        return draft_version(self.tensors, self.draft_keys())

    @cached_property
    def selector_names(self) -> set[str]:
        """Selector tensors that are present."""
        return selector_tensors(self.tensors)

    @cached_property
    def conv_names(self) -> set[str]:
        """Convolution tensors that are present."""
        return conv_tensors(self.tensors)

    @cached_property
    def codebook_rows(self) -> int | None:
        """Rows of both codebooks where they agree."""
        return uniform_dim(self.tensors, r"selector_(predecessor|successor)\.weight", 1)

    @cached_property
    def has_sane_count(self) -> bool:
        """Whether there are no more tensors than the largest draft that is loaded could have."""
        return len(self.tensors) <= MAX_TENSORS

    @cached_property
    def spec(self) -> DraftSpec | None:
        """The draft's geometry for judging tensors: what the metadata say, and where they are silent the tensors."""
        return geometry(self) if self.has_sane_count else None

    @property
    def why_no_spec(self) -> str:
        """Why tensors cannot be judged by the metadata, or ""."""
        if not self.tensors and not self.unsized:
            return "the file holds no tensors"
        if not self.has_sane_count:
            return "no draft has so many tensors"
        return "" if self.spec is not None else "the metadata do not say what tensors there should be"

    @cached_property
    def canonical(self) -> dict[str, str | None]:
        """The table's name of every tensor, None for one that is none of a draft's; empty without a spec."""
        if self.spec is None:
            return {}
        return canonical_names((*self.tensors, *self.unsized), self.spec)
