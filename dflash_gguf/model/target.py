"""A draft's target as a conversion sees it: a checkpoint folder, or a GGUF whose header says the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_gguf.errors import ModelError
from dflash_gguf.formats.gguf.scan import Header, scan_header
from dflash_gguf.formats.gguf.values import Array
from dflash_gguf.formats.safetensors import SourceTensor, read_header
from dflash_gguf.model.checkpoint import INDEX, MAX_INDEX, Identity, existing_folder, read_config, read_json, shards
from dflash_gguf.model.config import architectures, is_draft_architecture, text_config
from dflash_gguf.model.provenance import MEANINGLESS, Card, target_identity
from dflash_gguf.model.sidecars import recognise
from dflash_gguf.model.tokenizer import Tokenizer, load_tokenizer, tokenizer_of_header
from dflash_gguf.storage.files import ByteFile, LocalFile

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
#: what stands before these names in the language model of a checkpoint, alone or inside a vision model's
_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "language_model.", "")
_REPOSITORY = re.compile(r"https://huggingface\.co/(?P<org>[^/?#\s]+)/(?P<name>[^/?#\s]+)/?")
#: what a file's name says about its type, not about its model
_TYPE_SUFFIX = re.compile(r"[-._](?:UD-)?(?:IQ\d|Q\d|BF16|F16|F32|MXFP4)[A-Z0-9_]*$|-\d{5}-of-\d{5}$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Target:
    """`config` says what a config.json says; `header` is that of a target given as a GGUF.

    `weights` gives the tensors over the vocabulary where the folder does not hold them (on the Hub), by name.
    """

    path: Path
    config: Mapping[str, Any]
    header: Header | None = None
    weights: Callable[[], Mapping[str, SourceTensor]] | None = None

    @property
    def hidden_size(self) -> int | None:
        """Width of its hidden states, where it is known."""
        value = text_config(self.config).get("hidden_size")
        return value if type(value) is int else None

    def identity(self, card: Card) -> Identity:
        """What it is called; `card` is the draft's."""
        if self.header is None:
            return target_identity(self.path, card)
        return _gguf_identity(self.path, self.header)

    def tokenizer(self, *, vocab_size: int, mask_token_id: int, pre: str | None) -> Tokenizer:
        """Its tokenizer over the draft's rows; raises as `load_tokenizer` and `tokenizer_of_header` do."""
        if self.header is None:
            return load_tokenizer(self.path, vocab_size=vocab_size, mask_token_id=mask_token_id, pre=pre)
        if pre is not None:
            raise ModelError(
                "--tokenizer-pre for a target GGUF, whose tokenizer is copied as it stands",
                where=str(self.path),
                hint="leave it out, or name the target's checkpoint folder",
            )
        metadata, where = self.header.metadata, str(self.path)
        return tokenizer_of_header(metadata, vocab_size=vocab_size, mask_token_id=mask_token_id, where=where)

    def find_tensor(self, name: str, files: list[LocalFile]) -> SourceTensor | None:
        """The language model's tensor of this name, None where it has none.

        Only an index and one shard's header are read. A local shard is opened and added to `files`, to be closed by
        the caller. Raises ModelError for a folder without safetensors, FormatError for damaged ones.
        """
        if self.weights is not None:
            held = self.weights()
            return next((held[prefix + name] for prefix in _PREFIXES if prefix + name in held), None)
        return _find_tensor(self.path, name, files)


def open_target(path: Path) -> Target:
    """A target's folder or GGUF. Raises UsageError, InputError, FormatError or ModelError when it is neither."""
    if not path.is_file():
        return Target(path, target_config(path))
    with LocalFile(path) as source:
        return target_of_gguf(source)


def target_of_gguf(source: ByteFile) -> Target:
    """The target that a GGUF holds, wherever it is. Raises FormatError for a file that llama.cpp would not read."""
    header = scan_header(source)
    header.require_sound(source.name)
    require_target(header, source.name)
    return Target(Path(source.name), _config_of(header), header)


def target_config(folder: Path, name: str | None = None) -> dict[str, Any]:
    """config.json of a target's folder, which messages call `name`.

    Raises ModelError for a draft's, and what reading it raises.
    """
    config = read_config(folder)
    told = [name for name in architectures(config) if is_draft_architecture(name)]
    if told:
        raise _not_a_target(f"architectures is {told[0]}", "", name or str(folder))
    return config


def require_target(header: Header, where: str) -> None:
    """Raise ModelError for a draft's file: whoever names one as the target means another."""
    kind = recognise(header.metadata, header.tensors)
    if kind is not None and not kind.with_target:
        base = "/".join(
            filter(None, (_text(header, f"general.base_model.0.{key}") for key in ("organization", "name")))
        )
        raise _not_a_target(kind.name, base, where)


def _not_a_target(told: str, base: str, where: str) -> ModelError:
    hint = f"its own keys say it drafts for {base}" if base else "name the model that it drafts for"
    return ModelError(f"is a draft, not a target: {told}", where=where, hint=hint)


def _config_of(header: Header) -> dict[str, Any]:
    """What a config.json would say, as far as a draft has to fit it."""
    architecture = _text(header, "general.architecture")

    def natural(key: str) -> int | None:
        value = header.metadata.get(f"{architecture}.{key}")
        return value.value if value is not None and type(value.value) is int else None

    blocks, tokens = natural("block_count"), header.metadata.get("tokenizer.ggml.tokens")
    sections = header.metadata.get(f"{architecture}.rope.dimension_sections")
    used = sections.value.items() if sections is not None and isinstance(sections.value, Array) else []
    config = {
        "architectures": [architecture],
        "hidden_size": natural("embedding_length"),
        # the blocks of a multi-token predictor stand behind the model's own
        "num_hidden_layers": None if blocks is None else blocks - (natural("nextn_predict_layers") or 0),
        "vocab_size": tokens.value.count if tokens is not None and isinstance(tokens.value, Array) else None,
        # Hunyuan's sections (XD-RoPE) are no M-RoPE
        "rope_parameters": {"mrope_section": used} if any(used) and architecture != "hunyuan_vl" else None,
    }
    return {key: value for key, value in config.items() if value is not None}


def _gguf_identity(path: Path, header: Header) -> Identity:
    for key in ("general.source.repo_url", "general.repo_url"):
        if match := _REPOSITORY.fullmatch(_text(header, key)):
            return Identity(match["name"], match["org"])
    name = _text(header, "general.name")
    if name and not MEANINGLESS.fullmatch(name.lower()):
        return Identity(name)
    stem = path.name.removesuffix(".gguf")
    while (shorter := _TYPE_SUFFIX.sub("", stem)) != stem:
        stem = shorter
    return Identity(stem)


def _text(header: Header, key: str) -> str:
    value = header.metadata.get(key)
    return value.value if value is not None and isinstance(value.value, str) else ""


def _find_tensor(folder: Path, name: str, files: list[LocalFile]) -> SourceTensor | None:
    index = existing_folder(folder) / INDEX
    if index.is_file():
        held = {
            tensor: shard
            for shard, names in shards(read_json(index, MAX_INDEX), str(index)).items()
            for tensor in names
        }
        wanted = next((prefix + name for prefix in _PREFIXES if prefix + name in held), None)
        return None if wanted is None else _open(folder / held[wanted], files).get(wanted)
    paths = sorted(folder.glob("*.safetensors"))
    if len(paths) != 1:
        found = f"{len(paths)} safetensors files but no {INDEX}" if paths else "no safetensors file"
        raise ModelError(f"holds {found}", where=str(folder), hint="the target's own weights are needed here")
    tensors = _open(paths[0], files)
    return next((tensors[prefix + name] for prefix in _PREFIXES if prefix + name in tensors), None)


def _open(path: Path, files: list[LocalFile]) -> dict[str, SourceTensor]:
    if not path.is_file():
        raise ModelError(f"the shard {path.name} is missing", where=str(path.parent), hint="was the download finished?")
    file = LocalFile(path)
    files.append(file)
    return read_header(file)
