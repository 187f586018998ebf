"""GGUF to GGUF: the same kernels and recipes as a conversion, metadata kept, tensor order kept."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from dflash_gguf.conversion.plan import OutputPlan, Plan, PlannedTensor
from dflash_gguf.conversion.stream import ConversionListener, run_plan
from dflash_gguf.errors import ModelError, UsageError
from dflash_gguf.formats.gguf.emit import OutTensor, encode_header
from dflash_gguf.formats.gguf.layout import TensorInfo
from dflash_gguf.formats.gguf.scan import Header, scan_header
from dflash_gguf.formats.gguf.types import GGMLType
from dflash_gguf.formats.gguf.values import MetaValue
from dflash_gguf.formats.safetensors import SourceTensor
from dflash_gguf.model.draft_header import require_spec
from dflash_gguf.model.metadata import general_pairs
from dflash_gguf.model.recipe import RECIPES, Override, TypeChoice, choose_types
from dflash_gguf.storage.atomic import check_output, check_room
from dflash_gguf.storage.files import ByteFile, LocalFile

_FLOATS = {GGMLType.F32: "F32", GGMLType.F16: "F16", GGMLType.BF16: "BF16"}
_NOBODY = ConversionListener()


def quantize_file(
    source: Path,
    out: Path,
    recipe: str,
    *,
    overrides: Sequence[Override] = (),
    fallback: bool = True,
    force: bool = False,
    dry_run: bool = False,
    listener: ConversionListener = _NOBODY,
) -> tuple[Plan, float]:
    """Write `source` (F32, F16 or BF16 matrices) as `recipe`; returns the plan and the seconds it took.

    Raises UsageError, FormatError, ModelError (no draft, a quantized source) or OutputError.
    """
    start = time.perf_counter()
    if recipe.lower() not in RECIPES:
        raise UsageError(f"unknown type {recipe!r}, expected one of {', '.join(RECIPES)}", where="--type")
    if os.path.realpath(out) == os.path.realpath(source):
        raise UsageError("is the input", where=str(out), hint="choose another output")
    check_output(out, force=force or dry_run)
    with LocalFile(source) as file:
        header = scan_header(file)
        header.require_sound(file.name)
        plan = _plan(file, header, out, recipe.lower(), overrides, fallback=fallback)
        check_room({out: plan.outputs[0].header.file_size})
        listener.on_plan(plan)
        if not dry_run:
            run_plan(plan, listener, force=force)
    return plan, time.perf_counter() - start


def _plan(
    file: ByteFile, header: Header, out: Path, recipe: str, overrides: Sequence[Override], *, fallback: bool
) -> Plan:
    spec = require_spec(header.metadata, file.name)
    infos = list(header.tensors.values())
    if not infos:
        raise ModelError("holds no tensors", where=file.name)
    named = [(info.name, info.shape) for info in infos]
    choices = choose_types(named, recipe, block_count=spec.block_count, overrides=overrides, fallback=fallback)
    tensors = tuple(_planned(file, info, choice) for info, choice in zip(infos, choices, strict=True))
    encoded = encode_header(_metadata(header, recipe), [tensor.out for tensor in tensors])
    return Plan((OutputPlan(out, recipe, encoded, tensors),), spec.key_length)


def _metadata(header: Header, recipe: str) -> list[tuple[str, MetaValue]]:
    """The source's keys in their order, with the new file's type."""
    ours = dict(general_pairs(recipe.upper()))
    kept = [(key, ours.pop(key, value)) for key, value in header.metadata.items() if key != "general.alignment"]
    return [*kept, *ours.items()]


def _planned(file: ByteFile, info: TensorInfo, choice: TypeChoice) -> PlannedTensor:
    if info.type not in _FLOATS:
        raise ModelError(
            f"is {info.type.name} already", where=f"{file.name}: {info.name}", hint="quantize from the BF16 file"
        )
    if not info.shape:
        raise ModelError("has no dims", where=f"{file.name}: {info.name}", hint="no draft has such a tensor")
    source = SourceTensor(info.name, _FLOATS[info.type], info.shape[::-1], info.offset, info.size, file)
    return PlannedTensor(source, OutTensor(info.name, choice.type, info.shape), choice.reason)
