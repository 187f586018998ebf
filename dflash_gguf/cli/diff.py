"""`diff`: what differs between two GGUF files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_gguf.cli.output import emit_json, safe, say, table
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from dflash_gguf.checks.diff import Diff, TensorDiff
    from dflash_gguf.formats.gguf.layout import TensorInfo
    from dflash_gguf.formats.gguf.values import MetaValue


def run(
    a: Annotated[str, typer.Argument(help="A GGUF file.", metavar="A")],
    b: Annotated[str, typer.Argument(help="Another one.", metavar="B")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Compare two GGUF files: metadata, and tensors by bytes or by the error between their weights, worst first."""
    from dflash_gguf.checks.diff import diff

    found = diff(a, b)
    if as_json:
        emit_json(_document(found))
        return
    if found.equal:
        say(f"equal: all keys, {counted(found.same, 'tensor')}")
        return
    for key in found.keys:
        say(f"{safe(key.key)}: {_value(key.a)} → {_value(key.b)}")
    if found.tensors:
        rows = [("tensor", "types", "relative RMSE", "max error", "cosine")]
        for line in table([*rows, *map(_row, found.tensors)], right=(2, 3, 4)):
            say(line)
    keys, tensors = counted(len(found.keys), "key"), counted(len(found.tensors), "tensor")
    say(f"{keys} and {tensors} differ, {counted(found.same, 'tensor', 'is', 'are')} equal")


def _row(tensor: TensorDiff) -> tuple[str, ...]:
    kinds = " → ".join(dict.fromkeys(_kind(side) for side in (tensor.a, tensor.b)))
    if tensor.rmse is None:
        return safe(tensor.name), kinds, tensor.problem, "", ""
    return safe(tensor.name), kinds, f"{tensor.rmse:.3e}", f"{tensor.max_error:.3e}", f"{tensor.cosine:.8f}"


def _kind(tensor: TensorInfo | None) -> str:
    return "absent" if tensor is None else tensor.type.name


def _value(value: MetaValue | None) -> str:
    from dflash_gguf.model.draft_header import plain, value_type

    if value is None:
        return "absent"
    shown = plain(value)
    text = f"sha256 {shown['sha256'][:16]}" if isinstance(shown, dict) else safe(str(shown))
    return f"{text if len(text) < 80 else text[:77] + '…'} ({value_type(value)})"


def _document(found: Diff) -> dict[str, Any]:
    from dflash_gguf.model.draft_header import plain, value_type

    def side(value: MetaValue | None) -> Any:
        return None if value is None else {"type": value_type(value), "value": plain(value)}

    def tensor(info: TensorInfo | None) -> Any:
        return None if info is None else {"type": info.type.name, "shape": list(info.shape)}

    return {
        "equal": found.equal,
        "metadata": [{"key": key.key, "a": side(key.a), "b": side(key.b)} for key in found.keys],
        "tensors": [
            {
                "name": item.name,
                "a": tensor(item.a),
                "b": tensor(item.b),
                "relative_rmse": item.rmse,
                "max_error": item.max_error,
                "cosine": item.cosine,
                "problem": item.problem or None,
            }
            for item in found.tensors
        ],
        "same": found.same,
    }
