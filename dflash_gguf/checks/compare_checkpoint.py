"""SR502: every tensor against the source's, by converting the source once more and comparing bytes.

Where bytes differ, three things can be the case: float copies are exact, so the file is wrong; most tensors of the
same type are equal, so this one was damaged; or another quantizer wrote the file, and the error decides.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dflash_gguf.checks.finding import Severity
from dflash_gguf.checks.registry import NotChecked, Problem
from dflash_gguf.conversion.plan import PlannedTensor
from dflash_gguf.conversion.tiles import TileReader
from dflash_gguf.conversion.vocabulary_tensors import MASK_FILE
from dflash_gguf.formats.blocks import DEQUANTIZABLE, QUANTIZABLE, dequantize, warm_up
from dflash_gguf.formats.gguf.emit import OutTensor
from dflash_gguf.formats.gguf.types import BLOCK_SIZE, GGMLType, tensor_bytes
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from dflash_gguf.checks.source import SourceDraft
    from dflash_gguf.checks.subject import Subject
    from dflash_gguf.formats.gguf.layout import TensorInfo

TILE = 1 << 20  # weights

#: relative RMSE that a type may have: twice what quantizing normally distributed weights gives (docs/rules.md)
RMSE_BOUND: dict[GGMLType, float] = {
    GGMLType.F16: 0.001,
    GGMLType.BF16: 0.006,
    GGMLType.Q8_0: 0.012,
    GGMLType.Q6_K: 0.04,
    GGMLType.Q5_K: 0.08,
    GGMLType.Q5_0: 0.09,
    GGMLType.Q5_1: 0.09,
    GGMLType.Q4_K: 0.16,
    GGMLType.Q4_0: 0.19,
    GGMLType.Q4_1: 0.18,
    GGMLType.Q3_K: 0.32,
    GGMLType.Q2_K: 0.6,
}
_FLOATS = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
#: what a conversion may have copied from the target
_FROM_TARGET = ("token_embd.weight", "output.weight")
_FEW = 0.01  # of a tensor's blocks: fewer than any other quantizer changes


@dataclass(frozen=True, slots=True)
class _Compared:
    """One tensor: blocks in all, what of them differs, relative RMSE against the source, and what it looks like.

    `first` is the number of the first block that differs.
    """

    tensor: TensorInfo
    blocks: int
    differing: int
    differing_bytes: int
    first: int
    rmse: float
    guess: str = ""

    @property
    def equal(self) -> bool:
        return self.differing == 0


def compare_source(subject: Subject, original: SourceDraft) -> Iterator[Problem | NotChecked]:
    """Problems of all tensors that both have. Raises what reading the checkpoint raises."""
    with original.pairing() as pairing:
        planned = {
            pair.tensor.gguf_name: (pair, pair.tensor.rotary and not original.rope_is_neox) for pair in pairing.pairs
        }
        both, absent, cut = [], 0, 0
        for name, (pair, permuted) in planned.items():
            found = subject.tensors.get(name)
            if found is None:
                absent += name not in _FROM_TARGET  # TN301 tells which
            elif found.offset + found.size > subject.source.size:
                cut += 1
            elif found.shape != pair.tensor.ne:
                yield Problem(f"ne is {list(found.shape)}, the source's {list(pair.tensor.ne)}", name)
            elif name == _FROM_TARGET[0] and original.has_mask_row:
                yield NotChecked(f"{name}: one row is from {MASK_FILE}")
            elif found.type not in DEQUANTIZABLE:
                yield NotChecked(f"weights of type {found.type.name} are not read")
            else:
                plan = PlannedTensor(pair.source, OutTensor(name, found.type, found.shape), "", permuted, pair.scale)
                both.append((found, plan))
        for count, why in ((absent, "not in the file"), (cut, "beyond the end of the file")):
            if count:
                yield NotChecked(f"{counted(count, 'tensor')} {why}")
        if extra := [
            name
            for name in subject.tensors
            if name not in planned and subject.canonical.get(name) == name and name not in _FROM_TARGET
        ]:
            yield Problem(f"{counted(len(extra), 'tensor')} that the source has not: {', '.join(extra[:10])}", extra[0])
        results = _compare_all(subject, both, original.spec.key_length)
    yield from _judge(results)


def _judge(results: list[_Compared]) -> Iterator[Problem]:
    equal: dict[GGMLType, list[bool]] = {}
    for result in results:
        equal.setdefault(result.tensor.type, []).append(result.equal)
    others = []
    for result in results:
        if result.equal:
            continue
        kind, name = result.tensor.type, result.tensor.name
        same = equal[kind]
        damaged = kind in QUANTIZABLE and (2 * sum(same) >= len(same) or result.differing < _FEW * result.blocks)
        if damaged or kind in _FLOATS or not result.rmse <= RMSE_BOUND[kind]:
            yield Problem(f"{kind.name}: {_told(result)}{result.guess}", name)
        else:
            others.append(result)
    if others:
        worst = max(others, key=lambda result: result.rmse / RMSE_BOUND[result.tensor.type])
        count = counted(len(others), "tensor", "comes", "come")
        told = (
            f"{count} from another quantizer, within the error of the type; the worst has relative "
            f"RMSE {worst.rmse:.3g} ({worst.tensor.type.name})"
        )
        yield Problem(told, worst.tensor.name, "nothing has to be mended", Severity.NOTE)


def _told(result: _Compared) -> str:
    """How much differs and where it begins, and what the error says: of one flipped bit it says nothing."""
    tensor, kind = result.tensor, result.tensor.type
    unit = "weight" if kind in _FLOATS else "block"
    size = tensor.size // result.blocks
    told = (
        f"{result.differing:,} of {counted(result.blocks, unit)} {'differs' if result.differing == 1 else 'differ'} "
        f"({counted(result.differing_bytes, 'byte')}), the first is {unit} {result.first:,}, "
        f"at byte {tensor.offset + result.first * size:,} of the file; relative RMSE {result.rmse:.3g}"
    )
    if kind in _FLOATS:
        return f"{told}, float weights are copied exactly"
    if result.rmse <= RMSE_BOUND[kind]:
        return f"{told}, within this type's bound of {RMSE_BOUND[kind]:g}: bytes were changed, no other quantizer's"
    return f"{told}, {RMSE_BOUND[kind]:g} is this type's bound"


def _compare_all(subject: Subject, both: list[tuple[TensorInfo, PlannedTensor]], head: int) -> list[_Compared]:
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    local, plans = threading.local(), {tensor.name: plan for tensor, plan in both}

    def compare(item: tuple[TensorInfo, PlannedTensor]) -> _Compared:
        if not hasattr(local, "comparer"):
            local.comparer = _Comparer(subject, head, plans)
        result: _Compared = local.comparer.compare(*item)
        subject.on_bytes(item[0].size)
        return result

    pairs = {(tensor.type, plan.source.dtype) for tensor, plan in both}
    warm_up(sorted({kind for kind, dtype in pairs if kind.name != dtype and kind in QUANTIZABLE}), lambda: None)
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(compare, both))


class _Comparer:
    """One thread's reader."""

    def __init__(self, subject: Subject, head: int, plans: Mapping[str, PlannedTensor]) -> None:
        self.source, self.head, self.plans = subject.source, head, plans
        self.reader = TileReader(head)

    def compare(self, tensor: TensorInfo, plan: PlannedTensor) -> _Compared:
        row = tensor.shape[0]
        rows, total = max(1, TILE // row), tensor.n_weights // row
        if plan.permuted:
            rows = max(self.head, rows // self.head * self.head)
        unit = BLOCK_SIZE[tensor.type][1]
        differing, differing_bytes, first_block, squares, norm = 0, 0, 0, 0.0, 0.0
        for first in range(0, total, rows):
            count = min(rows, total - first)
            held = self._held(tensor, first, count)
            self.reader.read(plan, first, count)
            blocks, changed_bytes = self._changed(tensor.type, held, unit)
            if len(blocks):
                first_block = first_block if differing else first * row // BLOCK_SIZE[tensor.type][0] + int(blocks[0])
                differing, differing_bytes = differing + len(blocks), differing_bytes + changed_bytes
                # tiles that are equal have the type's own error, which needs no judging
                source = self.reader.floats()
                with np.errstate(all="ignore"):
                    error = dequantize(tensor.type, held) - source
                    norm += float(np.dot(source, source))
                    squares += float(np.dot(error, error))
        rmse = sqrt(squares / norm) if norm > 0 and isfinite(squares) else float("inf") if differing else 0.0
        guess = self._guess(tensor, plan) if differing else ""
        return _Compared(tensor, tensor.size // unit, differing, differing_bytes, first_block, rmse, guess)

    def _held(self, tensor: TensorInfo, first: int, count: int) -> NDArray[np.uint8]:
        row = tensor_bytes(tensor.type, tensor.shape[0])
        held = np.empty(count * row, np.uint8)
        self.source.read_into(tensor.offset + first * row, held.data)
        return held

    def _changed(self, kind: GGMLType, held: NDArray[np.uint8], unit: int) -> tuple[NDArray[np.intp], int]:
        """Numbers of the tile's blocks that differ from converting it, and bytes; all of a type that is not written."""
        if kind not in QUANTIZABLE:
            return np.arange(len(held) // unit), len(held)
        wanted = self.reader.encode(kind)
        if np.array_equal(wanted, held):
            return np.arange(0), 0
        different = wanted.reshape(-1, unit) != held.reshape(-1, unit)
        return np.flatnonzero(different.any(axis=1)), int(different.sum())

    def _guess(self, tensor: TensorInfo, plan: PlannedTensor) -> str:
        """What a tensor that differs seems to hold instead: a norm with 1 added, or another tensor."""
        count = max(1, min(tensor.n_weights // tensor.shape[0], 4 * self.head if plan.permuted else 4))
        held = self._held(tensor, 0, count)
        if tensor.type is GGMLType.F32 and len(tensor.shape) == 1:
            self.reader.read(plan, 0, 1)
            if np.array_equal(self.reader.floats() + np.float32(1), held.view(np.float32)):
                return ": 1 was added to every weight (norms are copied raw)"
        if tensor.type not in QUANTIZABLE:
            return ""
        for name, other in self.plans.items():
            if name != tensor.name and other.out.shape == tensor.shape:
                self.reader.read(other, 0, count)
                if np.array_equal(self.reader.encode(tensor.type), held):
                    return f": it begins like {name} of the source"
        return ""
