"""`inspect`: what a GGUF file is, at a glance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_gguf.cli.output import complain, emit_json, safe, say, say_lines, size_text, table
from dflash_gguf.errors import UsageError
from dflash_gguf.formats.gguf.values import Array
from dflash_gguf.model import draft_header
from dflash_gguf.model.metadata import ARCHITECTURE
from dflash_gguf.model.metadata_dialects import is_foreign
from dflash_gguf.model.sidecars import DFLASH, Sidecar, recognise
from dflash_gguf.presenting import describe
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from dflash_gguf.formats.gguf.scan import Header
    from dflash_gguf.formats.gguf.values import Metadata, MetaValue
    from dflash_gguf.model.spec import DraftSpec
    from dflash_gguf.storage.files import ByteFile

MAX_SHOWN = 256  # characters of a value on the page; --key shows it whole
MAX_DEFECTS = 64


def run(
    file: Annotated[str, typer.Argument(help="Any GGUF file, or hf://org/name/file.gguf.", metavar="FILE")],
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    key: Annotated[str | None, typer.Option("--key", metavar="K", help="One metadata value, whole.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="List every token with its id and type.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Show what a GGUF file is: identity, draft geometry, tokenizer, tensors, size."""
    from dflash_gguf.formats.gguf.scan import scan_header
    from dflash_gguf.model.remote import open_gguf
    from dflash_gguf.storage.files import LocalFile

    with open_gguf(file) as source:
        whole = isinstance(source, LocalFile) or tensors or tokens or as_json
        if not whole and _show_start(source, key):
            return
        header = scan_header(source)
        name = source.name
    if as_json:
        emit_json(_document(header, key, tensors=tensors, tokens=tokens))
    else:
        if key is not None:
            _show_key(header.metadata, key)
        elif tensors or not tokens:
            _show_page(header, name)
        if tensors:
            _show_tensors(header)
        if tokens:
            _show_tokens(header)
    for defect in header.defects[:MAX_DEFECTS]:
        complain(f"{defect.rule}: {defect.where}: {defect.message}")
    if len(header.defects) > MAX_DEFECTS:
        complain(f"and {len(header.defects) - MAX_DEFECTS:,} more: --json lists all")


def _show_start(source: ByteFile, key: str | None) -> bool:
    """Answer from the first bytes of a remote file, where they suffice: its vocabulary is megabytes to fetch."""
    from dflash_gguf.formats.gguf.scan import scan_start

    start = scan_start(source)
    metadata = start.metadata
    if key is not None:
        if key in metadata:
            _show_key(metadata, key)
        return key in metadata
    architecture = draft_header.text(metadata, "general.architecture")
    spec = draft_header.start_spec(metadata)
    if start.complete or not architecture or (spec is None and architecture == ARCHITECTURE):
        return False
    title = f"DFlash {spec.version} draft" if spec else f"arch {_shown(architecture)}"
    say(f"{safe(Path(source.name).name)}: GGUF v{start.version}, {title}")
    for label, value in _identity(metadata) + (_geometry(spec) if spec else []):
        say(f"  {label:<14}{value}")
    say(f"  {'size':<14}{size_text(start.size)}, {counted(start.n_keys, 'key')}, {counted(start.n_tensors, 'tensor')}")
    say(f"  {'not read':<14}vocabulary and tensors; --tensors, --tokens or --json fetch the whole header")
    return True


def _show_page(header: Header, name: str) -> None:
    metadata = header.metadata
    architecture = draft_header.text(metadata, "general.architecture", "no architecture")
    spec = draft_header.draft_spec(metadata)
    weights = sum(t.n_weights for t in header.tensors.values())
    sidecar = recognise(metadata, header.tensors)
    title = f"DFlash {spec.version} draft" if spec else f"arch {_shown(architecture)}"
    if sidecar and sidecar is not DFLASH:
        title = f"{sidecar.name}, arch {_shown(architecture)}"
    say(f"{safe(Path(name).name)}: GGUF v{header.version}, {title}, {weights / 1e6:,.1f} M weights")
    for label, value in [*_identity(metadata), *_runs_with(sidecar, architecture)]:
        say(f"  {label:<14}{value}")
    if spec:
        for label, value in _geometry(spec):
            say(f"  {label:<14}{value}")
    elif reason := draft_header.missing_for_draft(metadata):
        say(f"  {'draft':<14}incomplete: {_shown(reason)}")
    for label, value in _tokenizer(metadata):
        say(f"  {label:<14}{value}")
    rows = [
        (f"{kind}", f"{count}", f"{total:,}", f"{size:,}", f"{8 * size / total:.2f}")
        for kind, count, total, size in describe.type_totals(header)
    ]
    for line in table([("type", "tensors", "weights", "bytes", "bits/weight"), *rows], right=(1, 2, 3, 4)):
        say(f"    {line}")
    say(f"  {'size':<14}{size_text(header.size)}, header {header.data_offset:,} B, {counted(len(metadata), 'key')}")
    if spec and "token_embd.weight" not in header.tensors:
        say(f"  {'standalone':<14}no: it needs its target's hidden states, token embedding and output head")


def _runs_with(sidecar: Sidecar | None, architecture: str) -> list[tuple[str, str]]:
    if is_foreign(architecture):
        return [
            ("dialect", f"{_shown(architecture)}: foreign, not read; `dflash-gguf patch IN OUT --fix all` migrates it")
        ]
    return [("runs with", f"llama-server -m TARGET {sidecar.flag}")] if sidecar else []


def _identity(metadata: dict[str, MetaValue]) -> list[tuple[str, str]]:
    lines = [
        ("name", draft_header.text(metadata, "general.name")),
        ("target", _repo(metadata, "general.base_model.0.")),
        ("source", draft_header.text(metadata, "general.source.repo_url")),
        ("revision", draft_header.text(metadata, "general.source.version")),
        ("license", draft_header.text(metadata, "general.license")),
        ("file type", _file_type(metadata)),
    ]
    return [(label, _shown(value)) for label, value in lines if value]


def _shown(text: str) -> str:
    """A text of the file as far as the page has room for it."""
    return safe(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…")


def _repo(metadata: dict[str, MetaValue], prefix: str) -> str:
    name, owner = (draft_header.text(metadata, prefix + key) for key in ("name", "organization"))
    return f"{owner}/{name}" if owner else name


def _file_type(metadata: dict[str, MetaValue]) -> str:
    from dflash_gguf.model.metadata import file_type_name

    value = metadata.get("general.file_type")
    if value is None or not isinstance(value.value, int):
        return ""
    return file_type_name(value.value) or f"number {value.value}"


def _geometry(spec: DraftSpec) -> list[tuple[str, str]]:
    lines = [
        ("block", f"block_size {spec.block_size}: drafts up to {counted(spec.max_draft, 'token')} a pass"),
        ("target_layers", f"{list(spec.target_layers)} (the target's block inputs; its layer ids are one less)"),
        (
            "layers",
            (
                f"{spec.block_count} × hidden {spec.embedding_length}, ffn {spec.feed_forward_length}, "
                f"{counted(spec.head_count, 'head')} of {spec.key_length}, {counted(spec.head_count_kv, 'kv head')}"
            ),
        ),
    ]
    if spec.v2:
        lines += [
            (
                "convolutions",
                f"kernel {spec.v2.conv_kernel_size}, groups of {counted(spec.v2.conv_group_size, 'channel')}",
            ),
            ("selector", f"rank {spec.v2.selector_rank}, top_k {spec.v2.selector_top_k}"),
        ]
    lines += [("attention", _attention(spec)), ("rope", _rope(spec))]
    scales = [
        f"{label} {value:g}"
        for label, value in (
            ("logit_scale", spec.logit_scale),
            ("softcap", spec.final_logit_softcapping),
            ("embedding_scale", spec.embedding_scale),
            ("value_scale", spec.value_scale),
        )
        if value is not None
    ]
    return [*lines, ("scales", ", ".join(scales))] if scales else lines


def _attention(spec: DraftSpec) -> str:
    causal = {True: "causal", False: "not causal", None: "causal not set (not causal in llama.cpp)"}[spec.causal]
    if not spec.sliding_window:
        return f"full, {causal}"
    sliding = sum(spec.sliding_window_pattern or ())
    return f"window {spec.sliding_window} in {sliding} of {counted(spec.block_count, 'layer')}, {causal}"


def _rope(spec: DraftSpec) -> str:
    parts = [f"base {spec.rope_freq_base:g}", f"{counted(spec.rope_dimension_count or spec.key_length, 'dim')}"]
    if spec.rope_scaling:
        parts.append(f"{_shown(spec.rope_scaling.type)} × {spec.rope_scaling.factor:g}")
    if spec.rope_dimension_sections:
        parts.append(f"sections {list(spec.rope_dimension_sections)}")
    return ", ".join([*parts, f"context {spec.context_length:,}"])


def _tokenizer(metadata: dict[str, MetaValue]) -> list[tuple[str, str]]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None or not isinstance(tokens.value, Array):
        return []
    model, pre = (draft_header.text(metadata, f"tokenizer.ggml.{key}", "?") for key in ("model", "pre"))
    merges = metadata.get("tokenizer.ggml.merges")
    parts = [f"{counted(tokens.value.count, 'token')}, {_shown(model)}, pre {_shown(pre)}"]
    if merges and isinstance(merges.value, Array):
        parts.append(f"{counted(merges.value.count, 'merge')}")
    template = draft_header.text(metadata, "tokenizer.chat_template")
    parts.append(f"chat template of {counted(len(template), 'character')}" if template else "no chat template")
    suffix = "_token_id"
    special = [
        f"{key.removeprefix('tokenizer.ggml.').removesuffix(suffix)} {value.value}"
        for key, value in metadata.items()
        if key.startswith("tokenizer.ggml.") and key.endswith(suffix)
    ]
    lines = [("tokenizer", ", ".join(parts))]
    return [*lines, ("special ids", _shown(", ".join(special)))] if special else lines


def _show_tensors(header: Header) -> None:
    rows = [("tensor", "type", "ne", "offset", "bytes")]
    rows += [
        (safe(t.name), t.type.name, "×".join(map(str, t.shape)), f"{t.offset:,}", f"{t.size:,}")
        for t in header.tensors.values()
    ]
    for line in table(rows, right=(3, 4)):
        say(line)


def _document(header: Header, key: str | None, *, tensors: bool, tokens: bool) -> dict[str, Any]:
    """The whole header, or one key with what was asked for beside it."""
    if key is None:
        document = describe.describe_file(header)
    else:
        value = _value(header.metadata, key)
        items = value.value.items() if isinstance(value.value, Array) else value.value
        document = {"key": key, "type": draft_header.value_type(value), "value": items}
        if tensors:
            document["tensors"] = describe.describe_file(header)["tensors"]
    if tokens:
        document["tokens"] = [{"id": number, "type": kind, "text": text} for number, kind, text in _tokens(header)]
    return document


def _value(metadata: Metadata, key: str) -> MetaValue:
    value = metadata.get(key)
    if value is None:
        from difflib import get_close_matches

        near = get_close_matches(key, metadata, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "--json holds all"
        raise UsageError(f"has no key {key!r}", where="--key", hint=safe(hint))
    return value


def _show_key(metadata: Metadata, key: str) -> None:
    value = _value(metadata, key)
    if isinstance(value.value, Array):
        for item in value.value.items():
            say(safe(str(item)))
    else:
        say_lines(str(value.value))


def _show_tokens(header: Header) -> None:
    for number, kind, text in _tokens(header):
        say(f"{number}\t{'?' if kind is None else kind}\t{safe(text)}")


def _tokens(header: Header) -> Iterator[tuple[int, int | None, str]]:
    """Id, type (None where the file holds none) and text of every token."""
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if tokens is None or not isinstance(tokens.value, Array):
        raise UsageError("holds no vocabulary", where="--tokens")
    kinds = header.metadata.get("tokenizer.ggml.token_type")
    types = kinds.value.items() if kinds and isinstance(kinds.value, Array) else []
    for number, token in enumerate(tokens.value.items()):
        kind = types[number] if number < len(types) else None
        yield number, kind if isinstance(kind, int) else None, str(token)
