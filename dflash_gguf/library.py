"""The commands as functions, for Python: paths and Hub ids as on the command line, values instead of text.

Those that need no more than their own room are handed on from there: check, diff, draft, generate, …
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash_gguf.conversion import Converted, ConvertOptions, quantize_file
from dflash_gguf.conversion import convert as convert_folder
from dflash_gguf.conversion.plan import Plan
from dflash_gguf.errors import UsageError
from dflash_gguf.model.recipe import parse_override


def convert(
    draft: str | Path,
    target: str | Path,
    *,
    types: Sequence[str] = ("bf16",),
    out: str | Path | None = None,
    tensor_types: Sequence[str] = (),
    fallback: bool = True,
    name: str | None = None,
    tokenizer_pre: str | None = None,
    target_layers: Sequence[int] | None = None,
    embed: str = "keep",
    force: bool = False,
    strict: bool = False,
) -> Converted:
    """Convert a draft (folder or Hub id) with its target's tokenizer to one GGUF per type.

    `out`: a file, a folder or a name with `{type}`; `tensor_types`: `REGEX=TYPE`; `target_layers`: the target's layer
    ids as a config has them; `strict`: keys of the config that nothing reads are an error. The files are in
    `.plan.outputs`. Raises DflashError, of the kind that fits.
    """
    from dflash_gguf.model.remote import open_pair
    from dflash_gguf.storage.hub import Hub

    options = ConvertOptions(
        types=tuple(types),
        out=None if out is None else str(out),
        overrides=tuple(parse_override(text) for text in tensor_types),
        fallback=fallback,
        name=name,
        tokenizer_pre=tokenizer_pre,
        target_layers=None if target_layers is None else shifted(target_layers),
        embed=embed,
        force=force,
        strict=strict,
    )
    folder, opened = open_pair(str(draft), str(target), Hub())
    return convert_folder(folder, opened, options)


def shifted(ids: Sequence[int]) -> tuple[int, ...]:
    """A target's layer ids, as a config has them, as GGUF's target_layers. Raises UsageError unless they increase."""
    ordered = list(ids)
    if not ordered or ordered != sorted(set(ordered)) or ordered[0] < 0:
        raise UsageError(f"{ordered} is no increasing list of layer ids", where="--target-layers")
    return tuple(item + 1 for item in ordered)


def quantize(
    source: str | Path,
    out: str | Path,
    kind: str,
    *,
    tensor_types: Sequence[str] = (),
    fallback: bool = True,
    force: bool = False,
) -> Plan:
    """Quantize a draft that is GGUF already; see the command."""
    overrides = tuple(parse_override(text) for text in tensor_types)
    return quantize_file(Path(source), Path(out), kind, overrides=overrides, fallback=fallback, force=force)[0]


def inspect(file: str | Path) -> dict[str, Any]:
    """What `inspect --json` prints, as a dict; any GGUF, local or on the Hub."""
    from dflash_gguf.formats.gguf.scan import scan_header
    from dflash_gguf.model.remote import open_gguf
    from dflash_gguf.presenting.describe import describe_file

    with open_gguf(str(file)) as source:
        return describe_file(scan_header(source))
