"""Agreement by slot as an SVG, written by hand: three lines from 0 to 100 %."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from dflash_gguf.wording import counted, safe

if TYPE_CHECKING:
    from dflash_gguf.comparison.api import Comparison

WIDTH, HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 50, 80
_LINES = (("path", "#0072b2", ""), ("top_1", "#d55e00", "6 3"), ("top_k", "#009e73", "2 3"))
_LABELS = {"path": "same token on the path", "top_1": "same top-1", "top_k": "shared candidates"}


def svg(comparison: Comparison) -> str:
    """The plot of a comparison."""
    title = f"{_name(comparison.a)} against {_name(comparison.b)}, {counted(comparison.n_blocks, 'block')}"
    size = f'width="{WIDTH}" height="{HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="28" font-size="14">{escape(title)}</text>',
        *_grid(len(comparison.slots)),
    ]
    for number, (field, colour, dashes) in enumerate(_LINES):
        points = [(_x(slot.slot, len(comparison.slots)), _y(getattr(slot, field))) for slot in comparison.slots]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        style = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'
        parts.append(f'<polyline points="{path}" fill="none" {style}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        x, y = _LEFT + 190 * number, HEIGHT - 18
        parts.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 24}" y2="{y - 4}" {style}/>')
        parts.append(f'<text x="{x + 30}" y="{y}">{_LABELS[field]}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _grid(slots: int) -> list[str]:
    parts = []
    for percent in range(0, 101, 20):
        y = _y(percent / 100)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>')
    for slot in range(1, slots + 1):
        x = _x(slot, slots)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 18}" text-anchor="middle">{slot}</text>')
    parts.append(f'<text x="{(_LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - _BOTTOM + 36}" text-anchor="middle">slot</text>')
    return parts


def _x(slot: int, slots: int) -> float:
    return _LEFT + 15 + (slot - 1) * (WIDTH - _LEFT - _RIGHT - 30) / max(1, slots - 1)


def _y(share: float) -> float:
    return _TOP + (1 - share) * (HEIGHT - _TOP - _BOTTOM)


def _name(path: str) -> str:
    return safe(path.rstrip("/").rpartition("/")[2])
