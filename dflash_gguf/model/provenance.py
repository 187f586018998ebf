"""Where a file comes from: name, license, source and target, as `general.*` keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash_gguf.formats.gguf.emit import encode_header
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import MetaValue
from dflash_gguf.model.checkpoint import Identity
from dflash_gguf.model.metadata import encode_spec
from dflash_gguf.model.spec import DraftSpec
from dflash_gguf.storage.files import LocalFile

MAX_CARD = 1 << 20
#: folder names that say nothing about what is in them
MEANINGLESS = re.compile(
    r"(source|model|models|draft|target|snapshot|snapshots|tmp|temp|main|output|out|[0-9a-f]{7,64})"
)


@dataclass(frozen=True, slots=True)
class Card:
    """What a model card's YAML front matter says; None where it says nothing."""

    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    base_model: str | None = None


def read_card(folder: Path) -> Card:
    """Read README.md's front matter; no card, or one that cannot be read, says nothing."""
    path = folder / "README.md"
    if not path.is_file():
        return Card()
    with LocalFile(path) as source:
        text = source.read(0, min(source.size, MAX_CARD)).decode("utf-8", "replace")
    return parse_card(text)


def parse_card(text: str) -> Card:
    """Parse a model card's front matter; see `read_card`."""
    match = re.match(r"\ufeff?---\r?\n(.*?)\r?\n---\s*(\r?\n|$)", text, re.DOTALL)
    if not match:
        return Card()
    import yaml

    try:
        # only texts: the other loader's dates, numbers and tags fail in their own ways
        front = yaml.load(match[1], yaml.BaseLoader)  # noqa: S506 - constructs str, list and dict alone
    except (yaml.YAMLError, RecursionError):
        return Card()
    if not isinstance(front, Mapping):
        return Card()
    return Card(*(_text(front.get(key)) for key in ("license", "license_name", "license_link", "base_model")))


def _text(value: Any) -> str | None:
    """A string, or the only or first one of a list."""
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, str) and value.strip().lower() not in ("", "~", "null") else None


def target_identity(folder: Path, card: Card) -> Identity:
    """What the target is called: its repository, its folder, or (where that says nothing) the card's base_model."""
    identity = Identity.of_folder(folder)
    if identity.organization or not MEANINGLESS.fullmatch(identity.name.lower()) or not card.base_model:
        return identity
    organization, _, name = card.base_model.rpartition("/")
    return Identity(name, organization or None)


def sidecar_file_name(prefix: str, target: str, kind: str) -> str:
    """The file name by which llama.cpp finds a draft of `target`; `kind` is its type's name."""
    safe = re.sub(r"[^A-Za-z0-9._+-]+", "-", target).strip("-.") or "target"
    return f"{prefix}{safe}-{kind}.gguf"


def draft_name(identity: Identity, spec: DraftSpec, target: Identity) -> str:
    """general.name: the draft's repository or folder, or a description where its folder's name says nothing."""
    if identity.organization or not MEANINGLESS.fullmatch(identity.name.lower()):
        return identity.name
    version = "DFlash 2" if spec.version == 2 else "DFlash"
    about = "" if MEANINGLESS.fullmatch(target.name.lower()) else f" for {target.name}"
    return f"{version} draft{about}"


def size_label(parameters: int) -> str:
    """A parameter count as files are labelled: 22M, 1.2B."""
    for unit, label in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= unit:
            scaled = parameters / unit
            return f"{scaled:.1f}{label}" if scaled < 10 and unit == 10**9 else f"{scaled:.0f}{label}"
    return str(parameters)


def spec_sha256(spec: DraftSpec) -> str:
    """Hash of what a draft's config says, in hex: one for all dialects, and for whatever its other keys hold.

    The sections for a vision target are left out: they come from the target.
    """
    import hashlib

    said = [*encode_spec(replace(spec, rope_dimension_sections=None)), *_vocabulary_pairs(spec)]
    return hashlib.sha256(encode_header(said, []).data).hexdigest()


def _vocabulary_pairs(spec: DraftSpec) -> list[tuple[str, MetaValue]]:
    rows = {"mask": spec.mask_token_id, "vocab": spec.vocab_size, "draft_vocab": spec.draft_vocab_size or 0}
    return [(name, MetaValue(ValueType.UINT32, value)) for name, value in rows.items()]


def provenance_pairs(draft: Identity, target: Identity, card: Card, spec: DraftSpec) -> list[tuple[str, MetaValue]]:
    """License, source and base model; nothing that depends on this machine or the time."""
    revision = [("general.source.version", draft.revision), ("general.source.spec_sha256", spec_sha256(spec))]
    source = dict([*source_pairs(draft), *_strings(revision)])
    order = [f"general.source.{key}" for key in ("name", "version", "repo_url", "spec_sha256")]
    return [*license_pairs(card), *((key, source[key]) for key in order if key in source), *base_model_pairs(target)]


def license_pairs(card: Card) -> list[tuple[str, MetaValue]]:
    """The license as the draft's card has it."""
    found = {"": card.license, ".name": card.license_name, ".link": card.license_link}
    return _strings((f"general.license{tail}", value) for tail, value in found.items())


def source_pairs(draft: Identity) -> list[tuple[str, MetaValue]]:
    """The checkpoint's repository or folder."""
    return _strings([("general.source.name", _repo_name(draft)), ("general.source.repo_url", draft.repo_url)])


def base_model_pairs(target: Identity) -> list[tuple[str, MetaValue]]:
    """The target, as the one base model."""
    base = "general.base_model."
    described = (
        ("name", target.name),
        ("organization", target.organization),
        ("version", target.revision),
        ("repo_url", target.repo_url),
    )
    count = (base + "count", MetaValue(ValueType.UINT32, 1))
    return [count, *_strings((f"{base}0.{key}", value) for key, value in described)]


def _strings(pairs: Iterable[tuple[str, str | None]]) -> list[tuple[str, MetaValue]]:
    return [(key, MetaValue(ValueType.STRING, value)) for key, value in pairs if value]


def _repo_name(identity: Identity) -> str | None:
    if identity.organization:
        return f"{identity.organization}/{identity.name}"
    return None if MEANINGLESS.fullmatch(identity.name.lower()) else identity.name
