"""The table of a bench report, from its JSON document: what `bench` prints and a card holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_gguf.errors import FormatError
from dflash_gguf.wording import code, inline, safe

_HEAD = (
    "| prompts | draft | n_max | context | tokens/s | accepted / drafted | mean accepted per block | speed-up |",
    "|---|---|--:|--:|--:|--:|--:|--:|",
)


def bench_lines(document: Mapping[str, Any], where: str) -> list[str]:
    """A Markdown table, the settings, and what not to conclude. Raises FormatError for another kind of document."""
    rows, settings, notes = (document.get(key) for key in ("rows", "settings", "notes"))
    if not isinstance(rows, list) or not isinstance(settings, Mapping) or not isinstance(notes, list):
        raise FormatError("is no report of `dflash-gguf bench --json`", where=where)
    lines = [*_HEAD, *(_row(row, where) for row in rows), ""]
    told = (f"{inline(str(key).replace('_', ' '))} {_setting(value)}" for key, value in settings.items())
    lines.append(f"Settings: {', '.join(told)}. The speed-up is against no draft.")
    lines += ["", *(f"- {safe(str(note))}" for note in notes)] if notes else []
    return lines


def _row(row: Any, where: str) -> str:
    if not isinstance(row, Mapping) or not isinstance(row.get("prompts"), str):
        raise FormatError("a row is not one of `dflash-gguf bench --json`", where=where)
    draft = inline(str(row.get("draft") or "none"))
    n_max = str(row["n_max"]) if isinstance(row.get("n_max"), int) else ""
    start = f"| {inline(row['prompts'])} | {draft} | {n_max} |"
    if row.get("error"):
        return f"{start} {_whole(row.get('context'))} | failed: {code(str(row['error']))} | | | |"
    if not isinstance(row.get("tokens_per_second"), int | float):
        raise FormatError("a row has no tokens_per_second", where=where)
    cells = [_whole(row.get("context")), f"{row['tokens_per_second']:.1f}"]
    if row.get("draft"):
        cells += [f"{_whole(row.get('accepted'))} / {_whole(row.get('drafted'))}", _decimal(row.get("mean_accepted"))]
    else:
        cells += ["", ""]
    cells.append(f"{_decimal(row.get('speedup'))}×" if row.get("speedup") else "")
    return f"{start} {' | '.join(cells)} |"


def _setting(value: Any) -> str:
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else inline(str(value))


def _whole(value: Any) -> str:
    return str(value) if isinstance(value, int) else ""


def _decimal(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else ""
