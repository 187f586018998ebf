"""The damage map: how far each tensor of one draft is from the other's, and whether its type explains that."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod, sqrt
from typing import TYPE_CHECKING

import numpy as np

from dflash_gguf.checks.compare_checkpoint import RMSE_BOUND

if TYPE_CHECKING:
    from dflash_gguf.comparison.open_drafts import ComparedDraft

TILE = 1 << 20  # weights
#: relative RMSE that each type may have against what it was made of; twice MXFP8's 0.027 for normal weights
_BOUNDS = {ggml_type.name: bound for ggml_type, bound in RMSE_BOUND.items()} | {"MXFP8": 0.06}
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class TensorDamage:
    """One tensor: the type in each draft, and the RMSE of b against a over a's RMS.

    `explained` says whether quantizing to these types can do so much; `problem` stands where there is no RMSE.
    """

    name: str
    types: tuple[str, str]
    rmse: float | None
    explained: bool
    problem: str = ""


def damage_map(a: ComparedDraft, b: ComparedDraft) -> list[TensorDamage]:
    """Every tensor of either draft: unexplained ones first, then by RMSE."""
    names = dict.fromkeys((*a.weights.source.shapes, *b.weights.source.shapes))
    found = [_compare(name, a, b) for name in names]
    return sorted(found, key=lambda item: (item.explained, -_finite(item.rmse), item.name))


def _finite(rmse: float | None) -> float:
    return inf if rmse is None else rmse


def _compare(name: str, a: ComparedDraft, b: ComparedDraft) -> TensorDamage:
    shapes = [draft.weights.source.shapes.get(name) for draft in (a, b)]
    types = (a.types.get(name, "absent"), b.types.get(name, "absent"))
    if shapes[0] != shapes[1]:
        told = "absent from one of them" if None in shapes else f"shapes {shapes[0]} and {shapes[1]}"
        return TensorDamage(name, types, None, explained=False, problem=told)
    rmse = _relative_rmse(name, a, b)
    return TensorDamage(name, types, rmse, explained=rmse <= _bound(types))


def _bound(types: tuple[str, str]) -> float:
    """Exact copies differ by nothing; of float types only a narrower one loses anything."""
    if types[0] == types[1] and types[0] in _FLOATS:
        return 0.0
    if set(types) == {"F32", "BF16"}:
        return _BOUNDS["BF16"]
    return sum(_BOUNDS.get(kind, 0.0) for kind in types)


def _relative_rmse(name: str, a: ComparedDraft, b: ComparedDraft) -> float:
    """`sqrt(Σ(b − a)² / Σa²)`, summed in float64 a tile at a time."""
    shape = a.weights.source.shapes[name]
    rows, step = prod(shape[:-1]), max(1, TILE // shape[-1])
    error = size = 0.0
    for first in range(0, rows, step):
        last = min(rows, first + step)
        x = a.weights.source.read_rows(name, first, last).astype(np.float64)
        y = b.weights.source.read_rows(name, first, last).astype(np.float64)
        error += float(np.square(y - x).sum())
        size += float(np.square(x).sum())
    if error == 0:
        return 0.0
    return sqrt(error / size) if size else inf
