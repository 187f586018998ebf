"""What the pair rules know of a target: a checkpoint folder's configs and tokenizer, or a GGUF's header."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_gguf.errors import FormatError, InputError, ModelError
from dflash_gguf.model.config import target_architecture, text_config, uses_mrope
from dflash_gguf.model.target import require_target, target_config

if TYPE_CHECKING:
    from dflash_gguf.checks.place import Place
    from dflash_gguf.formats.gguf.scan import Header


class RopeKind(Enum):
    """How a target ropes positions, as far as a draft has to know."""

    PLAIN = "plain"
    MROPE = "M-RoPE"
    XDROPE = "XD-RoPE"


@dataclass(frozen=True, slots=True)
class Words:
    """A target's vocabulary; `problem` says why it could not be read. `pre` is None where it cannot be told."""

    texts: list[bytes] | None = None
    model: str | None = None
    pre: str | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A target's geometry; None where it does not say. `words` reads the vocabulary, for a draft of so many rows."""

    name: str
    architecture: str
    hidden: int | None
    blocks: int | None
    vocab_size: int | None
    embedding_rows: int | None
    rope: RopeKind
    words: Callable[[int], Words]

    @property
    def exposes_blocks(self) -> bool:
        """Whether llama.cpp is known to hand out this architecture's block inputs."""
        return self.exposes_last or bool(_EXPOSING.fullmatch(_plain(self.architecture)))

    @property
    def exposes_last(self) -> bool:
        """Whether it also hands out the last block's output."""
        return bool(_EXPOSING_LAST.fullmatch(_plain(self.architecture)))


#: Architectures (GGUF's name, or HF's without "ForCausalLM" and the like) that set every block's input. Source:
#: llama.cpp's model graphs. The second set hands out the last block's output too.
_EXPOSING = re.compile(
    r"llama|mistral|nanbeige|qwen3(moe|next)?|qwen35(moe)?|qwen4exp|gemma4(unified)?|museglimmer|hunyuanvl|gptoss"
    r"|bailingmoe(3|v3(vl)?)|lfm2(moe)?|minimax(01|text01|m1|m2)"
)
_EXPOSING_LAST = re.compile(r"deepseek(4|v4)|nemotronh(moe|puzzle)?|mimo(2|v2(flash)?)")


def _plain(architecture: str) -> str:
    name = "".join(c for c in architecture.lower() if c.isalnum())
    for tail in ("forconditionalgeneration", "forcausallm", "lmheadmodel", "model"):
        name = name.removesuffix(tail)
    return name


def open_target(place: Place) -> Target:
    """Read a target's configs or header.

    Raises UsageError (no such path), InputError, FormatError (no GGUF, no JSON), ModelError (no config.json; a draft).
    """
    if place.is_folder:
        return _of_folder(place.target_folder())
    from dflash_gguf.formats.gguf.scan import scan_header

    with place.open() as source:
        header = scan_header(source)
        require_target(header, place.name)
        return _of_header(place.name, header)


def _of_folder(folder: Path) -> Target:
    whole = target_config(folder)
    config = text_config(whole)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, Mapping) else None
    mrope = RopeKind.XDROPE if kind in ("dynamic", "xdrope") else RopeKind.MROPE
    return Target(
        name=str(folder),
        architecture=target_architecture(whole),
        hidden=_natural(config, "hidden_size"),
        blocks=_natural(config, "num_hidden_layers"),
        vocab_size=_natural(config, "vocab_size"),
        embedding_rows=_natural(config, "vocab_size"),
        rope=mrope if uses_mrope(whole) or kind == "xdrope" else RopeKind.PLAIN,
        words=cache(lambda rows: _folder_words(folder, _natural(config, "vocab_size") or rows)),
    )


def _natural(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int and value > 0 else None


def _folder_words(folder: Path, rows: int) -> Words:
    from dflash_gguf.model.tokenizer.load import load_texts

    try:
        model, pre, texts = load_texts(folder, vocab_size=rows)
    except (ModelError, FormatError, InputError) as error:
        return Words(problem=str(error))
    return Words(texts, model, pre)


def _of_header(name: str, header: Header) -> Target:
    from dflash_gguf.checks.subject import TOKENS_KEY, is_absurd
    from dflash_gguf.formats.gguf.values import Array

    metadata = header.metadata

    def natural(key: str) -> int | None:
        value = metadata.get(f"{architecture}.{key}")
        return value.value if value is not None and type(value.value) is int and value.value > 0 else None

    def text(key: str) -> str | None:
        value = metadata.get(key)
        return value.value if value is not None and isinstance(value.value, str) else None

    architecture = text("general.architecture") or ""
    tokens = metadata.get(TOKENS_KEY)
    array = tokens.value if tokens is not None and isinstance(tokens.value, Array) else None
    embedding = header.tensors.get("token_embd.weight")
    blocks = natural("block_count")
    sections = metadata.get(f"{architecture}.rope.dimension_sections")
    used = sections.value.items() if sections is not None and isinstance(sections.value, Array) else []
    xd_rope = _plain(architecture) == "hunyuanvl"

    @cache  # several drafts may be checked against one target
    def words(_rows: int) -> Words:
        if array is None or is_absurd(array):
            return Words(problem=f"{name} holds no tokens that can be compared")
        return Words(array.strings(), text("tokenizer.ggml.model"), text("tokenizer.ggml.pre"))

    return Target(
        name=name,
        architecture=architecture,
        hidden=natural("embedding_length"),
        blocks=blocks - (natural("nextn_predict_layers") or 0) if blocks else None,
        vocab_size=array.count if array else None,
        embedding_rows=embedding.shape[1] if embedding and len(embedding.shape) > 1 else None,
        rope=RopeKind.PLAIN if not any(used) else RopeKind.XDROPE if xd_rope else RopeKind.MROPE,
        words=words,
    )
