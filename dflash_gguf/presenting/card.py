"""The model card of a repository of drafts, made from the files' own headers: nothing in it was typed by hand.

Values come from files that anybody may have written, so YAML is dumped, never pasted, and text is made harmless to
Markdown.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_gguf.errors import ModelError
from dflash_gguf.model.draft_header import draft_spec, missing_for_draft, plain, text
from dflash_gguf.model.metadata import MASK_KEY, PREFIX
from dflash_gguf.presenting.launch import OLDEST, llama_server
from dflash_gguf.wording import code, counted, inline

if TYPE_CHECKING:
    from dflash_gguf.formats.gguf.scan import Header
    from dflash_gguf.formats.gguf.values import Metadata
    from dflash_gguf.model.spec import DraftSpec

#: in every generated card, so that a later one may replace it; a card without it is somebody's own
MARK = "<!-- generated from the files' headers by dflash-gguf -->"
_PAGES = "https://huggingface.co/"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPO = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class CardFile:
    """What a card says of one file."""

    name: str
    size: int
    tensors: int
    metadata: Metadata
    spec: DraftSpec | None

    @classmethod
    def of(cls, name: str, header: Header) -> CardFile:
        """From a file's header."""
        return cls(name, header.size, len(header.tensors), header.metadata, draft_spec(header.metadata))

    @property
    def type(self) -> str:
        """The file's type, or "?"."""
        from dflash_gguf.model.metadata import file_type_name

        value = self.metadata.get("general.file_type")
        return (file_type_name(value.value) if value and isinstance(value.value, int) else None) or "?"

    def repo(self, prefix: str) -> str | None:
        """org/name of `general.source.` or `general.base_model.0.`."""
        url = text(self.metadata, f"{prefix}repo_url").removeprefix(_PAGES).strip("/")
        return url if _REPO.fullmatch(url) else None


def write_card(files: Sequence[CardFile], bench: Sequence[str] = ()) -> str:
    """The card of one draft's files (at least one), in the order given; the first one's header names the draft.

    `bench`: lines of a measured table, see model.bench_table.
    """
    first = files[0]
    lines = ["---", *_front_matter(first), "---", "", MARK, "", f"# {inline(_title(first))}", "", *_about(first)]
    lines += ["", "| file | type | bytes | tensors |", "|---|---|--:|--:|"]
    lines += [f"| `{inline(file.name)}` | {file.type} | {file.size:,} | {file.tensors} |" for file in files]
    if first.spec:
        lines += ["", *geometry_lines(first.spec)]
        lines += ["", "## Run", "", *_usage(first, first.spec)]
    if bench:
        lines += ["", "## Measured", "", *bench]
    if first.spec:
        lines += ["", "## Metadata", "", "| key | value |", "|---|---|", *metadata_rows(first.metadata)]
        lines += ["", "## Made with", "", *_convert_command(files)]
    lines += ["", "## Attribution", "", *_attribution(first)]
    return "\n".join(lines) + "\n"


def require_one_draft(files: Sequence[CardFile]) -> None:
    """Raise ModelError for a file that holds no draft, or another one than the first does."""
    for file in files:
        if file.spec is None:
            reason = missing_for_draft(file.metadata) or "is no DFlash draft"
            raise ModelError(reason, where=file.name, hint=f"dflash-gguf check {file.name}")
        if file.spec != files[0].spec:
            raise ModelError(f"is another draft than {files[0].name}", where=file.name, hint="a card is of one draft")


def _title(file: CardFile) -> str:
    return text(file.metadata, "general.name", "DFlash draft") + " GGUF"


def _front_matter(file: CardFile) -> list[str]:
    import yaml

    keys = (("license", "license"), ("license_name", "license.name"), ("license_link", "license.link"))
    front: dict[str, object] = {
        name: value for name, key in keys if (value := text(file.metadata, f"general.{key}").strip())
    }
    if "license" not in front and "license_name" in front:
        front["license"] = "other"
    if source := file.repo("general.source."):
        front["base_model"] = source
        front["base_model_relation"] = "quantized"  # the Hub's word for a conversion, BF16 or not
    elif target := file.repo("general.base_model.0."):
        front["base_model"] = target
    front["pipeline_tag"] = "text-generation"
    front["library_name"] = "gguf"
    front["tags"] = ["gguf", "llama.cpp", "dflash", "speculative-decoding"]
    return yaml.safe_dump(front, sort_keys=False, allow_unicode=True).splitlines()


def _about(file: CardFile) -> list[str]:
    target = _link(file, "general.base_model.0.") or "its target"
    lines = [f"{kind_words(file.spec)} for {target}, as GGUF for llama.cpp."]
    lines.append("It is no standalone model: it needs its target's hidden states, token embedding and output head.")
    if source := _link(file, "general.source."):
        lines.append(f"Converted from {source}.")
    return lines


def kind_words(spec: DraftSpec | None) -> str:
    """What the draft is, as a card begins to say it."""
    kind = f"DFlash {spec.version if spec else ''}".strip().removesuffix(" 1")
    return f"A {kind} speculative-decoding draft"


def _link(file: CardFile, prefix: str) -> str | None:
    """A repository and the commit that was used."""
    repo, commit = file.repo(prefix), text(file.metadata, f"{prefix}version")
    if repo is None:
        name = text(file.metadata, f"{prefix}name")
        return f"`{inline(name)}`" if name else None
    at = f" at `{commit[:12]}`" if _COMMIT.fullmatch(commit) else ""
    return f"[{repo}]({_PAGES}{repo}){at}"


def geometry_lines(spec: DraftSpec) -> list[str]:
    """The draft's sizes, a line each; `check` compares a card's lines with them."""
    lines = [
        f"- block_size: {spec.block_size} (drafts up to {counted(spec.max_draft, 'token')} a pass)",
        f"- layers: {spec.block_count}, hidden size: {spec.embedding_length}, vocabulary: {spec.vocab_size:,}",
        f"- target layers (block inputs): {', '.join(map(str, spec.target_layers))}",
    ]
    if spec.v2:
        lines.append(f"- conv_kernel_size: {spec.v2.conv_kernel_size}, conv_group_size: {spec.v2.conv_group_size}")
        lines.append(f"- selector_rank: {spec.v2.selector_rank}, selector_top_k: {spec.v2.selector_top_k}")
    return lines


def _usage(file: CardFile, spec: DraftSpec) -> list[str]:
    name = file.name if re.fullmatch(r"[\w.+-]+", file.name) else "DRAFT.gguf"
    notes = (
        f"n_max is block_size − 1. It takes {OLDEST['llama.cpp', spec.version]}.",
        "Do not combine it with `draft-mtp`.",
    )
    return ["```sh", llama_server(name, "TARGET.gguf", spec), "```", "", *notes]


def metadata_rows(metadata: Metadata) -> list[str]:
    """The draft's keys, a table's row each; `check` compares a card's rows with them."""
    keys = [key for key in metadata if key.startswith(PREFIX)]
    keys += [key for key in ("tokenizer.ggml.model", "tokenizer.ggml.pre", MASK_KEY) if key in metadata]
    return [f"| {code(key)} | {code(_shown(plain(metadata[key])))} |" for key in keys]


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _convert_command(files: Sequence[CardFile]) -> list[str]:
    """The command that made the files, both repositories at their commits."""
    first, words = files[0], ["dflash-gguf", "convert"]
    words += [_at(first, "general.source.") or "DRAFT", "--target", _at(first, "general.base_model.0.") or "TARGET"]
    for kind in dict.fromkeys(file.type.lower() for file in files if file.type != "?"):
        words += ["--type", kind]
    return ["```sh", shlex.join(words), "```"]


def _at(file: CardFile, prefix: str) -> str | None:
    repo, commit = file.repo(prefix), text(file.metadata, f"{prefix}version")
    return f"{repo}@{commit}" if repo and _COMMIT.fullmatch(commit) else repo


def _attribution(file: CardFile) -> list[str]:
    held = text(file.metadata, "general.license.name") or text(file.metadata, "general.license")
    terms = f"under its license ({inline(held)})" if held else "under the license of their source"
    source, target = _link(file, "general.source.") or "its source", _link(file, "general.base_model.0.")
    lines = [f"- The weights are those of {source}, {terms}."]
    if target:
        lines.append(f"- The tokenizer is that of {target}.")
    lines.append("- DFlash is by z-lab (https://github.com/z-lab/dflash); GGUF and its types are llama.cpp's.")
    return lines
