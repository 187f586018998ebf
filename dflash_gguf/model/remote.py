"""Checkpoints on the Hub: which files of a repository a draft or a target needs, and nothing else is fetched."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dflash_gguf.errors import HubError, ModelError, UsageError
from dflash_gguf.formats.safetensors import SourceTensor, read_header
from dflash_gguf.model.checkpoint import INDEX, MAX_CONFIG, MAX_INDEX, read_json, shards
from dflash_gguf.model.quantization import HF_QUANT_CONFIG
from dflash_gguf.model.target import EMBEDDING, HEAD, Target, open_target, target_config, target_of_gguf
from dflash_gguf.storage.files import LocalFile
from dflash_gguf.storage.hub import Hub, Listing, parse_reference
from dflash_gguf.storage.hub.remote_file import RemoteFile
from dflash_gguf.wording import counted

CARD = "README.md"
#: what a target's tokenizer is made of; never its weights
TARGET_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",  # wins over a tokenizer.json with byte fallback
    "chat_template.jinja",
    "chat_template.json",
)
#: fetched only for a target without a tokenizer.json: to be read, or to say what kind it is
_OTHER_TOKENIZERS = ("tiktoken.model", "qwen.tiktoken", "tekken.json", "vocab.json", "vocab.txt")
_VOCABULARY = (EMBEDDING, HEAD)
_TEMPLATES = "additional_chat_templates/"
MAX_TOKENIZER = 256 << 20


def draft_folder(draft: str, hub: Hub) -> Path:
    """The folder of a draft: a local path as it is, a repository's config, weights and card from the cache.

    Raises UsageError (a malformed reference), HubError, OutputError, FormatError, or ModelError where the repository
    holds no draft's checkpoint.
    """
    ref = parse_reference(draft)
    return Path(draft) if ref is None else _fetch_draft(hub, hub.listing(ref), ref.path)


def draft_config_folder(draft: str, hub: Hub) -> Path:
    """As `draft_folder`, without the weights: enough to say what a conversion of it would have to hold."""
    ref = parse_reference(draft)
    if ref is None:
        return Path(draft)
    listing = hub.listing(ref)
    names = _names(listing, ref.path)
    return _fetch(hub, listing, ref.path, [name for name in ("config.json", HF_QUANT_CONFIG, CARD) if name in names])


def target_folder(target: str, hub: Hub) -> Path:
    """The folder of a target; of a repository only its config, tokenizer and generation files. Raises as above."""
    ref = parse_reference(target)
    return Path(target) if ref is None else _fetch_target(hub, hub.listing(ref), ref.path)


def open_gguf(file: str, hub: Hub | None = None) -> LocalFile | RemoteFile:
    """A GGUF to be read in place: a local path, a file of a repository, or a repository that holds just one.

    Raises UsageError (no such file, several to choose from), InputError or HubError.
    """
    ref = parse_reference(file)
    if ref is None:
        return LocalFile(Path(file))
    hub = hub or Hub()
    if ref.path:
        return hub.open(ref)
    listing = hub.listing(ref)
    names = gguf_files(listing)
    if len(names) != 1:
        told = f"{counted(len(names), 'GGUF file')}: {', '.join(names[:4])}" if names else "no GGUF file"
        raise UsageError(f"the repository holds {told}", where=str(ref), hint="name one: hf://org/name/file.gguf")
    return hub.open(listing.at(names[0]))


def gguf_files(listing: Listing) -> list[str]:
    """Paths of the GGUF files of a repository."""
    return sorted(path for path in listing.files if path.lower().endswith(".gguf"))


def whole_target_folder(target: str, hub: Hub) -> Path:
    """As `target_folder`, with its weights: what computing the target itself takes."""
    ref = parse_reference(target)
    if ref is None:
        return Path(target)
    listing = hub.listing(ref)
    folder = _fetch_target(hub, listing, ref.path)
    _fetch(hub, listing, ref.path, _weights(hub, listing, ref.path, _names(listing, ref.path)))
    return folder


def whole_target(target: str, hub: Hub) -> Path:
    """A target to be computed: its GGUF, or as `whole_target_folder`."""
    return gguf_path(target, hub) if target.endswith(".gguf") else whole_target_folder(target, hub)


def gguf_or_folder(draft: str, hub: Hub) -> Path:
    """A draft to be computed: its GGUF, or as `draft_folder`."""
    return gguf_path(draft, hub) if draft.endswith(".gguf") else draft_folder(draft, hub)


def complete_folder(draft: str, hub: Hub) -> Path:
    """As `draft_folder`, with every file that is not hidden: what copying a checkpoint takes."""
    ref = parse_reference(draft)
    if ref is None:
        return Path(draft)
    listing = hub.listing(ref)
    _fetch_draft(hub, listing, ref.path)
    prefix = f"{ref.path}/" if ref.path else ""
    names = [path for path in listing.files if path.startswith(prefix)]
    shown = [path for path in names if not any(part.startswith(".") for part in path.split("/"))]
    return hub.fetch(listing, shown) / ref.path


def gguf_path(file: str, hub: Hub) -> Path:
    """A GGUF whose weights will be read: a local path as it is, a file of a repository from the cache."""
    ref = parse_reference(file)
    if ref is None:
        return Path(file)
    ref.require_file()
    return hub.fetch(hub.listing(ref), [ref.path]) / ref.path


def vocabulary_tensors(target: str, hub: Hub) -> dict[str, SourceTensor]:
    """A target's embedding and head (where it has one of its own), to be read row by row where they are.

    Of a repository's weights only the headers of the files that hold them are read here: name → tensor, as in the
    checkpoint. Raises UsageError for a local path, HubError, FormatError, or ModelError without an embedding.
    """
    ref = parse_reference(target)
    if ref is None:
        raise UsageError("is no repository on the Hub", where=target, hint="open the folder itself")
    listing = hub.listing(ref)
    names = listing.inside(ref.path)
    prefix = f"{ref.path}/" if ref.path else ""
    if INDEX in names:
        index = _fetch(hub, listing, ref.path, [INDEX]) / INDEX
        held = shards(read_json(index, limit=MAX_INDEX), str(listing.at(prefix + INDEX)))
        files = [shard for shard, tensors in held.items() if any(name.endswith(_VOCABULARY) for name in tensors)]
    else:
        files = [name for name in names if name.endswith(".safetensors")]
    found: dict[str, SourceTensor] = {}
    for name in files:
        tensors = read_header(hub.open(listing.at(prefix + name)))
        found |= {key: tensor for key, tensor in tensors.items() if key.endswith(_VOCABULARY)}
    if not any(name.endswith(_VOCABULARY[0]) for name in found):
        raise ModelError(f"no tensor ends in {_VOCABULARY[0]}", where=str(listing.at(ref.path)))
    return found


def open_pair(draft: str, target: str, hub: Hub) -> tuple[Path, Target]:
    """A draft's folder and its target (a folder, a repository or a GGUF of either).

    Both are resolved to a commit before any file is fetched, the large ones last; of a GGUF on the Hub the header is
    read where it is.
    """
    for argument in (draft, target):
        if ref := parse_reference(argument):
            hub.listing(ref)
    opened = open_target_at(target, hub)
    return draft_folder(draft, hub), opened


def open_target_at(target: str, hub: Hub) -> Target:
    """A target wherever it is: a folder, a repository or a GGUF of either. Raises as `open_pair` does."""
    ref = parse_reference(target)
    if ref is None:
        return open_target(Path(target))
    if ref.path.endswith(".gguf"):
        return target_of_gguf(hub.open(ref))
    folder = target_folder(target, hub)
    return Target(folder, target_config(folder, target), weights=lambda: vocabulary_tensors(target, hub))


def _fetch_draft(hub: Hub, listing: Listing, folder: str) -> Path:
    names = _names(listing, folder)
    small = [name for name in ("config.json", HF_QUANT_CONFIG, CARD, "mask_embedding.pt") if name in names]
    local = _fetch(hub, listing, folder, small)
    return _fetch(hub, listing, folder, _weights(hub, listing, folder, names)) or local


def _weights(hub: Hub, listing: Listing, folder: str, names: list[str]) -> list[str]:
    if INDEX in names:
        path = _fetch(hub, listing, folder, [INDEX]) / INDEX
        named = list(shards(read_json(path, limit=MAX_INDEX), str(listing.ref)))
        missing = [name for name in named if name not in names]
        if missing and not listing.offline:
            raise ModelError(f"the shard {missing[0]} is missing", where=str(listing.at(INDEX)))
        return named
    found = [name for name in names if name.endswith(".safetensors")]
    if not found:
        what = "not in the cache, and offline mode is on" if listing.offline else "holds no safetensors file"
        hint = "unset HF_HUB_OFFLINE" if listing.offline else _hint_without_weights(names)
        kind = HubError if listing.offline else ModelError
        raise kind(f"weights: {what}" if listing.offline else what, where=str(listing.at(folder)), hint=hint)
    if len(found) > 1:
        told = ", ".join(found[:4])
        raise ModelError(f"{len(found)} safetensors files ({told}) but no {INDEX}", where=str(listing.at(folder)))
    return found


def _hint_without_weights(names: list[str]) -> str:
    gguf = [name for name in names if name.endswith(".gguf")]
    if gguf:
        return f"{gguf[0]} is converted already: inspect or check it"
    others = [name for name in names if name.endswith((".bin", ".pt", ".pth"))]
    return f"only safetensors are read, found {others[0]}" if others else "is it the draft's repository?"


def _fetch_target(hub: Hub, listing: Listing, folder: str) -> Path:
    names = _names(listing, folder)
    wanted = [name for name in TARGET_FILES if name in names]
    if "tokenizer.json" not in names:
        wanted += [name for name in _OTHER_TOKENIZERS if name in names]
    prefix = f"{folder}/{_TEMPLATES}" if folder else _TEMPLATES
    templates = [path for path in listing.files if path.startswith(prefix) and path.endswith(".jinja")]
    wanted += [_TEMPLATES + path.removeprefix(prefix) for path in sorted(templates)]
    return _fetch(hub, listing, folder, wanted)


def _names(listing: Listing, folder: str) -> list[str]:
    """Names in a repository's folder that holds a config.json."""
    names = listing.inside(folder)
    if "config.json" not in names:
        where = str(listing.at(folder))
        if listing.offline:
            raise HubError("config.json is not in the cache, and offline mode is on", where=where, hint=_UNSET)
        folders = sorted({path.rpartition("/")[0] for path in listing.files if path.endswith("/config.json")})
        hint = f"folders that do: {', '.join(folders[:3])}" if folders else "is it a checkpoint's repository?"
        raise ModelError("has no config.json", where=where, hint=hint)
    return names


_UNSET = "unset HF_HUB_OFFLINE"


def _fetch(hub: Hub, listing: Listing, folder: str, names: Iterable[str]) -> Path:
    prefix = f"{folder}/" if folder else ""
    paths = [prefix + name for name in names]
    for path in paths:
        _check_size(listing, path)
    return hub.fetch(listing, paths) / folder


def _check_size(listing: Listing, path: str) -> None:
    """Refuse what is too large to be what its name says before it is fetched."""
    if path.endswith(".safetensors"):
        return
    limit = MAX_CONFIG if path.rpartition("/")[2] == "config.json" else MAX_TOKENIZER
    file = listing.files.get(path)
    if file is not None and file.size is not None and file.size > limit:
        raise HubError(f"{counted(file.size, 'byte')}, expected at most {limit:,}", where=str(listing.at(path)))
