"""What types a file should have by its own label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dflash_gguf.formats.gguf.types import GGMLType
from dflash_gguf.model.metadata import FILE_TYPES
from dflash_gguf.model.recipe import RECIPES, TypeChoice, choose_types, is_matrix

if TYPE_CHECKING:
    from dflash_gguf.checks.subject import Subject
    from dflash_gguf.formats.gguf.layout import TensorInfo


def expected_types(subject: Subject, file_type: str | None) -> dict[str, TypeChoice]:
    """What the recipe of that name gives each matrix of the draft; empty for a type that we have no recipe of."""
    recipe = (file_type or "").lower()
    if recipe not in RECIPES or subject.spec is None:
        return {}
    named = [
        (name, tensor.shape)
        for name, tensor in subject.tensors.items()
        if subject.canonical[name] == name and is_matrix(name, tensor.shape)
    ]
    choices = choose_types(named, recipe, block_count=subject.spec.block_count)
    return {name: choice for (name, _), choice in zip(named, choices, strict=True)}


def main_type(tensors: Mapping[str, TensorInfo], instead: Mapping[str, TypeChoice] | None = None) -> GGMLType | None:
    """The type that most weights of matrices have, or (given `instead`) would have; None without matrices."""
    weights: Counter[GGMLType] = Counter()
    for name, tensor in tensors.items():
        if not is_matrix(name, tensor.shape):
            continue
        if instead is None:
            weights[tensor.type] += tensor.n_weights
        elif name in instead:
            weights[instead[name].type] += tensor.n_weights
    return max(weights, key=lambda kind: weights[kind]) if weights else None


def fitting_label(subject: Subject) -> str | None:
    """The name of the file type that the tensors bear out: whose recipe gives all their types, else the main type's."""
    for name in FILE_TYPES:
        choices = expected_types(subject, name)
        if choices and all(subject.tensors[tensor].type is choice.type for tensor, choice in choices.items()):
            return name
    found = main_type(subject.tensors)
    return found.name if found else None
