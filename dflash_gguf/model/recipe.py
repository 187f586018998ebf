"""Which type every tensor gets: the recipes of llama.cpp's quantizer, as far as they concern a draft.

1-D tensors and the conv bases are F32 in every output; every other tensor takes the recipe's type, with more bits
for the value and down projections of some layers, and for the output head. Source: FORMAT facts §4, checked
against the reference quantizer's own files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash_gguf.errors import ModelError, UsageError
from dflash_gguf.formats.gguf.types import BLOCK_SIZE, GGMLType

#: what `--type` takes → the type of most matrices
RECIPES: dict[str, GGMLType] = {
    "bf16": GGMLType.BF16,
    "f16": GGMLType.F16,
    "f32": GGMLType.F32,
    "q8_0": GGMLType.Q8_0,
    "q4_k_m": GGMLType.Q4_K,
    "q4_k_s": GGMLType.Q4_K,
    "q5_k_m": GGMLType.Q5_K,
    "q6_k": GGMLType.Q6_K,
    "q4_0": GGMLType.Q4_0,
    "q5_0": GGMLType.Q5_0,
}
#: a type whose block does not divide the row gives way to this one, and that one to F16
FALLBACK: dict[GGMLType, GGMLType] = {
    GGMLType.Q4_K: GGMLType.Q5_0,
    GGMLType.Q5_K: GGMLType.Q5_1,
    GGMLType.Q6_K: GGMLType.Q8_0,
}
_LAYER = re.compile(r"blk\.(\d+)\.(attn_v|ffn_down)\.weight")


@dataclass(frozen=True, slots=True)
class TypeChoice:
    """A tensor's type and why it has it."""

    type: GGMLType
    reason: str


@dataclass(frozen=True, slots=True)
class Override:
    """`--tensor-type REGEX=TYPE`: tensors whose name the pattern is found in take this type."""

    pattern: re.Pattern[str]
    type: GGMLType


def parse_override(text: str) -> Override:
    """Parse `REGEX=TYPE`. Raises UsageError."""
    pattern, _, name = text.rpartition("=")
    kinds = {kind.name.lower(): kind for kind in (*RECIPES.values(), GGMLType.Q5_1)}
    if not pattern or name.lower() not in kinds:
        raise UsageError(f"{text!r}: expected REGEX=TYPE with TYPE one of {', '.join(kinds)}", where="--tensor-type")
    try:
        return Override(re.compile(pattern), kinds[name.lower()])
    except re.error as error:
        raise UsageError(f"{pattern!r} is no regular expression: {error}", where="--tensor-type") from None


def is_matrix(name: str, ne: Sequence[int]) -> bool:
    """Whether a tensor takes the recipe's type at all: norms, conv bases, sinks and other vectors stay F32."""
    return len(ne) > 1 and name.endswith(".weight") and not name.endswith("_norm.weight")


def choose_types(
    tensors: Iterable[tuple[str, tuple[int, ...]]],
    recipe: str,
    *,
    block_count: int,
    overrides: Sequence[Override] = (),
    fallback: bool = True,
) -> list[TypeChoice]:
    """Choose a type for each (GGUF name, ne).

    Raises ModelError when a row does not fit its type and `fallback` is off, UsageError for an override that
    matches no matrix.
    """
    named = list(tensors)
    tied = all(name != "output.weight" for name, _ in named)
    choices, used = [], set[int]()
    for name, ne in named:
        if name == "d2t":
            choices.append(TypeChoice(GGMLType.I64, "token ids"))
            continue
        if not is_matrix(name, ne):
            choices.append(TypeChoice(GGMLType.F32, "vectors and conv bases stay F32"))
            continue
        number = next((i for i, over in enumerate(overrides) if over.pattern.search(name)), None)
        if number is None:
            choice = _by_recipe(name, ne[0], recipe, block_count, tied=tied)
        else:
            used.add(number)
            choice = TypeChoice(overrides[number].type, "--tensor-type")
        choices.append(_fit(name, ne[0], choice, fallback=fallback))
    for number, over in enumerate(overrides):
        if number not in used:
            raise UsageError(f"{over.pattern.pattern!r} matches no matrix of the draft", where="--tensor-type")
    return choices


def _by_recipe(name: str, row: int, recipe: str, block_count: int, *, tied: bool) -> TypeChoice:
    base = RECIPES[recipe]
    if base in (GGMLType.F32, GGMLType.F16, GGMLType.BF16):
        return TypeChoice(base, recipe)
    if name == "output.weight" or (tied and name == "token_embd.weight"):
        return _output_type(row, base)
    if match := _LAYER.fullmatch(name):
        more = _more_bits(match[2], int(match[1]), block_count, recipe)
        if more:
            return TypeChoice(more, f"{recipe}: more bits for {match[2]} of this layer")
    return TypeChoice(base, recipe)


def _output_type(row: int, base: GGMLType) -> TypeChoice:
    if base is GGMLType.Q8_0 or row % BLOCK_SIZE[base][0]:
        return TypeChoice(GGMLType.Q8_0, "output head")
    return TypeChoice(GGMLType.Q6_K, "output head")


def _more_bits(kind: str, layer: int, block_count: int, recipe: str) -> GGMLType | None:
    eighth = block_count // 8
    if recipe in ("q4_k_m", "q5_k_m"):
        more = layer < eighth or layer >= 7 * block_count // 8 or (layer - eighth) % 3 == 2
        return GGMLType.Q6_K if more else None
    if recipe == "q4_k_s":
        return GGMLType.Q5_K if layer < (4 if kind == "attn_v" else eighth) else None
    return None


def _fit(name: str, row: int, choice: TypeChoice, *, fallback: bool) -> TypeChoice:
    """`choice`, or what it gives way to when its block does not divide the row."""
    block = BLOCK_SIZE[choice.type][0]
    if row % block == 0:
        return choice
    if not fallback:
        raise ModelError(
            f"a row of {row} is not a multiple of {choice.type.name}'s block of {block}",
            where=name,
            hint="--tensor-type gives it another type",
        )
    other = FALLBACK.get(choice.type, choice.type)
    if row % BLOCK_SIZE[other][0]:
        other = GGMLType.F16
    return TypeChoice(other, f"fallback: a row of {row} is not a multiple of {block} ({choice.type.name})")
