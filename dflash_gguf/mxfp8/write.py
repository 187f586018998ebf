"""`write_mxfp8(...)`: a BF16 checkpoint as an MXFP8 one, in a folder that appears whole or not at all."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_gguf.errors import InputError, UsageError
from dflash_gguf.model.checkpoint import Checkpoint, read_json
from dflash_gguf.model.quantization import HF_QUANT_CONFIG
from dflash_gguf.model.remote import complete_folder
from dflash_gguf.mxfp8.checkpoint_plan import CONFIG, MANIFEST, WEIGHTS, CheckpointPlan, json_bytes, make_plan
from dflash_gguf.mxfp8.digest import RunningSha256, sha256_of
from dflash_gguf.mxfp8.encode import Statistics, stream_weights
from dflash_gguf.mxfp8.manifest import manifest
from dflash_gguf.storage.atomic import AtomicFile, check_room
from dflash_gguf.storage.folder import AtomicFolder, check_output_folder
from dflash_gguf.storage.hub import Hub


@dataclass(frozen=True, slots=True)
class Mxfp8Listener:
    """Who wants to know: the plan once it stands, that kernels are being compiled, source bytes as they are done.

    `on_bytes` is called from several threads.
    """

    on_plan: Callable[[CheckpointPlan], None] = lambda _: None
    on_compile: Callable[[], None] = lambda: None
    on_bytes: Callable[[int], None] = lambda _: None


_NOBODY = Mxfp8Listener()


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint that was written: its folder, its plan, its manifest, and the seconds it took."""

    folder: Path
    plan: CheckpointPlan
    manifest: dict[str, Any]
    seconds: float


def write_mxfp8(
    draft: str | Path,
    out: str | Path,
    *,
    exclude: tuple[str, ...] = (),
    force: bool = False,
    listener: Mxfp8Listener = _NOBODY,
) -> Written:
    """Write the checkpoint `draft` as MXFP8 into the folder `out`, but for the modules that `exclude` matches.

    `draft`: a folder, or a repository on the Hub.

    With `force` a checkpoint that this function wrote is replaced. Raises the errors of `make_plan`, UsageError for
    an `out` that cannot be, ModelError for a weight that is NaN or infinite, InputError, OutputError.
    """
    start = time.perf_counter()
    draft, out = complete_folder(str(draft), Hub()), Path(out)
    with Checkpoint(draft) as checkpoint:
        plan = make_plan(checkpoint, exclude)
        _check_out(draft, out, force=force)
        check_room({out: plan.output_bytes})
        listener.on_plan(plan)
        before = _states(plan)
        with AtomicFolder(out, force=force) as folder:
            document = _fill(folder.partial, plan, listener)
            if _states(plan) != before:
                raise InputError("changed while it was read", where=str(draft), hint="run it again")
            _check_out(draft, out, force=force)
            folder.commit()
    return Written(out, plan, document, time.perf_counter() - start)


def _states(plan: CheckpointPlan) -> list[tuple[int, int]]:
    states = [path.stat() for _, path in plan.sources]
    return [(state.st_size, state.st_mtime_ns) for state in states]


def _check_out(draft: Path, out: Path, *, force: bool) -> None:
    """Refuse an output that is the input, or that `force` would destroy something else with."""
    target, source = check_output_folder(out, force=force), draft.resolve()
    if target == source or source in target.parents or target in source.parents:
        raise UsageError("is the draft's folder, holds it or is in it", where=str(out), hint="choose another OUT_DIR")
    if not target.is_dir():
        return
    written = read_json(target / MANIFEST).get("output_files_sha256") if (target / MANIFEST).is_file() else None
    ours = {MANIFEST, *(written if isinstance(written, dict) else ())}
    there = [path for path in target.rglob("*") if not path.is_dir() or not any(path.iterdir())]
    foreign = sorted(name for path in there if (name := path.relative_to(target).as_posix()) not in ours)
    if foreign:
        raise UsageError(
            f"holds {foreign[0]}, which was not written by mxfp8", where=str(out), hint="choose another OUT_DIR"
        )


def _fill(folder: Path, plan: CheckpointPlan, listener: Mxfp8Listener) -> dict[str, Any]:
    """Write all files, the config and the manifest last; returns the manifest."""
    sources: dict[str, str] = {}
    outputs: dict[str, str] = {}
    outputs[WEIGHTS], weights, aggregate = _write_weights(folder / WEIGHTS, plan, sources, listener)
    for name, path in plan.copies:
        outputs[name] = sources[name] = _copy(path, folder / name)
    for name, text in ((HF_QUANT_CONFIG, plan.hf_quant_config), (CONFIG, plan.config)):
        _write(folder / name, text)
        outputs[name] = hashlib.sha256(text).hexdigest()
    document = manifest(plan, sources, outputs, weights, aggregate)
    _write(folder / MANIFEST, json_bytes(document))
    return document


def _write_weights(
    path: Path, plan: CheckpointPlan, sources: dict[str, str], listener: Mxfp8Listener
) -> tuple[str, dict[str, Statistics], Statistics]:
    """Write model.safetensors and hash it, and hash the source's own files on the way into `sources`."""
    copied = {name for name, _ in plan.copies}

    def hashing(name: str, source: Path) -> Callable[[], None]:
        return lambda: sources.update({name: sha256_of(source)})

    jobs = [hashing(name, source) for name, source in plan.sources if name not in copied]
    with AtomicFile(path, plan.header.file_size, force=False) as file:
        digest = RunningSha256(file.read)

        def sink(offset: int, data: memoryview) -> None:
            file.write(offset, data)
            digest.written(offset, len(data))

        sink(0, memoryview(plan.header.data))
        weights, aggregate = stream_weights(
            plan, sink, first=jobs, on_bytes=listener.on_bytes, on_compile=listener.on_compile
        )
        file.commit()
        return digest.hexdigest(plan.header.file_size), weights, aggregate


def _copy(source: Path, path: Path) -> str:
    """Copy a file and return its sha256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    position = 0
    with AtomicFile(path, source.stat().st_size, force=False) as file:

        def write(piece: bytes) -> None:
            nonlocal position
            file.write(position, piece)
            position += len(piece)

        digest = sha256_of(source, write)
        file.commit()
    return digest


def _write(path: Path, text: bytes) -> None:
    with AtomicFile(path, len(text), force=False) as file:
        file.write(0, text)
        file.commit()
