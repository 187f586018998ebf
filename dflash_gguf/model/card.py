"""The model card of a repository of drafts, made from the files' own headers: nothing in it was typed by hand.

Values come from files that anybody may have written, so YAML is dumped, never pasted, and text is made harmless to
Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_gguf.formats.shown import inline
from dflash_gguf.model.describe import draft_spec, text

if TYPE_CHECKING:
    from dflash_gguf.formats.gguf.scan import Header
    from dflash_gguf.formats.gguf.values import Metadata
    from dflash_gguf.model.spec import DraftSpec

#: in every generated card, so that a later one may replace it; a card without it is somebody's own
MARK = "<!-- generated from the files' headers by dflash-gguf -->"
_PAGES = "https://huggingface.co/"
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


def write_card(files: Sequence[CardFile]) -> str:
    """The card of one draft's files (at least one), in the order given; the first one's header names the draft."""
    first = files[0]
    lines = ["---", *_front_matter(first), "---", "", MARK, "", f"# {inline(_title(first))}", "", *_about(first)]
    lines += ["", "| file | type | bytes | tensors |", "|---|---|--:|--:|"]
    lines += [f"| `{inline(file.name)}` | {file.type} | {file.size:,} | {file.tensors} |" for file in files]
    if first.spec:
        lines += ["", *_geometry(first.spec), "", *_usage(first)]
    return "\n".join(lines) + "\n"


def _title(file: CardFile) -> str:
    return text(file.metadata, "general.name", "DFlash draft") + " GGUF"


def _front_matter(file: CardFile) -> list[str]:
    import yaml

    keys = (("license", "license"), ("license_name", "license.name"), ("license_link", "license.link"))
    front: dict[str, object] = {
        name: value for name, key in keys if (value := text(file.metadata, f"general.{key}").strip())
    }
    if target := file.repo("general.base_model.0."):
        front["base_model"] = target
    front["pipeline_tag"] = "text-generation"
    front["library_name"] = "gguf"
    front["tags"] = ["gguf", "llama.cpp", "dflash", "speculative-decoding"]
    return yaml.safe_dump(front, sort_keys=False, allow_unicode=True).splitlines()


def _about(file: CardFile) -> list[str]:
    kind = f"DFlash {file.spec.version if file.spec else ''}".strip().removesuffix(" 1")
    target = _link(file, "general.base_model.0.") or "its target"
    lines = [f"A {kind} speculative-decoding draft for {target}, as GGUF for llama.cpp."]
    lines.append("It is no standalone model: it needs its target's hidden states, token embedding and output head.")
    if source := _link(file, "general.source."):
        lines.append(f"Converted from {source}.")
    return lines


def _link(file: CardFile, prefix: str) -> str | None:
    """A repository and the commit that was used."""
    repo, commit = file.repo(prefix), text(file.metadata, f"{prefix}version")
    if repo is None:
        name = text(file.metadata, f"{prefix}name")
        return f"`{inline(name)}`" if name else None
    at = f" at `{commit[:12]}`" if re.fullmatch(r"[0-9a-f]{40}", commit) else ""
    return f"[{repo}]({_PAGES}{repo}){at}"


def _geometry(spec: DraftSpec) -> list[str]:
    lines = [
        f"- block_size: {spec.block_size} (drafts up to {spec.max_draft} tokens a pass)",
        f"- layers: {spec.block_count}, hidden size: {spec.embedding_length}, vocabulary: {spec.vocab_size:,}",
        f"- target layers (block inputs): {', '.join(map(str, spec.target_layers))}",
    ]
    if spec.v2:
        lines.append(f"- conv_kernel_size: {spec.v2.conv_kernel_size}, conv_group_size: {spec.v2.conv_group_size}")
        lines.append(f"- selector_rank: {spec.v2.selector_rank}, selector_top_k: {spec.v2.selector_top_k}")
    return lines


def _usage(file: CardFile) -> list[str]:
    limit = file.spec.max_draft if file.spec else 0
    name = file.name if re.fullmatch(r"[\w.+-]+", file.name) else "DRAFT.gguf"
    return [
        "```sh",
        f"llama-server -m TARGET.gguf -md {name} --spec-type draft-dflash --spec-draft-n-max {limit}",
        "```",
    ]
