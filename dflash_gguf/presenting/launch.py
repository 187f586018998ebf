"""How an engine is started with a draft: ready lines, and what is known of the engines that can.

Only what a public source says is said here, with the source; a line of llama.cpp's is what its own parser accepts.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_gguf.errors import UsageError
from dflash_gguf.model.target import open_target
from dflash_gguf.storage.hub import Reference, parse_reference

if TYPE_CHECKING:
    from dflash_gguf.model.spec import DraftSpec

SPEC_TYPE = "draft-dflash"
ENGINES = ("llama.cpp", "ollama", "vllm", "sglang")
_QUANT = re.compile(r":[\w.-]+$")

#: (engine, version of the draft) → the oldest engine that can run it, as far as public sources tell
OLDEST = {
    ("llama.cpp", 1): "llama.cpp with ggml-org/llama.cpp#22105 (release b9840 has it, by unslothai/unsloth#6747)",
    (
        "llama.cpp",
        2,
    ): "llama.cpp with ggml-org/llama.cpp#27342, merged as #27816 (opened 2026-08-27); older engines refuse"
    " the file for its number of tensors",
    ("vllm", 1): "vLLM with vllm-project/vllm#36847",
    ("vllm", 2): "vLLM with vllm-project/vllm#52816, merged 2026-08-21 (by vllm-project/recipes#837)",
    ("sglang", 1): "SGLang with DFLASH (documented in sgl-project/sglang#23553)",
    ("sglang", 2): "SGLang with sgl-project/sglang#35371, merged after v0.5.18 (by sgl-project/sglang#37392)",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """Lines for a shell, and what to know about them, one line each."""

    lines: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LaunchDraft:
    """A draft as it is launched: the file, its geometry, the repositories of its checkpoint and its target."""

    file: str
    spec: DraftSpec
    source_repo: str | None = None
    target_repo: str | None = None


def launch(draft: LaunchDraft, target: str, engine: str = "llama.cpp", p_min: float | None = None) -> Launch:
    """What starts `engine` with `draft` for `target` (a GGUF, a folder, or org/name).

    Raises UsageError for an engine that is not known here, or a p_min that is no probability or has no place.
    """
    if engine not in ENGINES:
        raise UsageError(f"{engine!r}, expected one of {', '.join(ENGINES)}", where="--engine")
    if p_min is not None and not 0 <= p_min <= 1:
        raise UsageError(f"{p_min} is no probability", where="--p-min")
    if p_min is not None and engine != "llama.cpp":
        raise UsageError(f"{engine} has no p_min that is known here", where="--p-min", hint="leave it out")
    path = Path(target)
    if path.is_file() or (path / "config.json").is_file():
        open_target(path)  # to refuse a draft
    if engine == "ollama":
        return _ollama(draft)
    if engine == "llama.cpp":
        made = _llama_cpp(draft, target, p_min)
    else:
        made = _vllm(draft, target) if engine == "vllm" else _sglang(draft, target)
    ref = _reference(target)[0]
    note = ref.hint(f"{ref.repo} is taken for a repository on the Hub") if ref and ref.bare else ""
    return replace(made, notes=(*made.notes, note)) if note else made


def llama_server(file: str, target: str, spec: DraftSpec, p_min: float | None = None) -> str:
    """The llama-server line; n_max is all that a block can hold."""
    words = ["llama-server", *_llama_target(target), "-md", file, "--spec-type", SPEC_TYPE]
    words += ["--spec-draft-n-max", str(spec.max_draft)]
    if p_min is not None:
        words += ["--spec-draft-p-min", f"{p_min:g}"]
    return shlex.join(words)


def _llama_target(target: str) -> list[str]:
    """A GGUF by its path, or a repository, to which a type may be added: org/name:Q4_K_M."""
    if Path(target).is_dir():
        raise UsageError("is a folder: llama.cpp takes the target as GGUF", where=f"--target {target}")
    ref, quant = _reference(target)
    return ["-m", target] if ref is None else ["-hf", _newest(ref, target) + quant]


def _reference(target: str) -> tuple[Reference | None, str]:
    """The repository that a target is in (None for a local path), and the `:Q4_K_M` behind it."""
    quant = None if Path(target).exists() else _QUANT.search(target)
    return parse_reference(target[: quant.start()] if quant else target), quant[0] if quant else ""


def _newest(ref: Reference, target: str) -> str:
    """A repository's id; engines take its newest commit."""
    if ref.revision:
        raise UsageError("the engine takes no revision", where=f"--target {target}", hint="leave @… out")
    return ref.repo


def _downloaded(file: str) -> tuple[list[str], str]:
    """The line that fetches a file of a repository, if it is one, and the path that it then has."""
    ref = parse_reference(file)
    if ref is None or not ref.path:
        return [], file
    revision = ["--revision", ref.revision] if ref.revision else []
    return [shlex.join(["hf", "download", ref.repo, ref.path, *revision, "--local-dir", "."])], ref.path


def _llama_cpp(draft: LaunchDraft, target: str, p_min: float | None) -> Launch:
    spec = draft.spec
    notes = [
        f"oldest engine: {OLDEST['llama.cpp', spec.version]}",
        f"n_max {spec.max_draft} = block_size − 1: more is clamped; where acceptance is low, less may be faster",
        "do not combine it with draft-mtp: the engine then stops, at an MTP context (ggml-org/llama.cpp#27839)",
    ]
    if p_min is not None:
        needs = "; for a DFlash 1 draft that takes ggml-org/llama.cpp#25246" if spec.version == 1 else ""
        notes.append(f"p_min ends a block before the first slot whose best candidate is less probable{needs}")
    if spec.version == 2:
        notes.append("on several GPUs use -sm layer: -sm tensor was reported to stop (ggml-org/llama.cpp#27342)")
    if spec.rope_dimension_sections is None:
        notes.append(
            "for a vision target the file would need dflash.rope.dimension_sections, which it has not: "
            "`dflash-gguf check --target` tells"
        )
    fetch_target, model = _downloaded(target)
    fetch_draft, file = _downloaded(draft.file)
    lines = [*fetch_target, *fetch_draft, llama_server(file, model, spec, p_min)]
    return Launch(tuple(lines), tuple(notes))


def _ollama(draft: LaunchDraft) -> Launch:
    n_max = draft.spec.max_draft
    notes = (
        "no Ollama release is publicly known to run a DFlash GGUF: there is no line to give",
        "DFlash 2 for its MLX engine is ollama/ollama#17865, which was open on 2026-09-04",
        f"`PARAMETER draft_num_predict` would be {n_max} (4 where it is not set); its reference attaches no draft",
        "--engine llama.cpp runs the file",
    )
    return Launch((), notes)


def _vllm(draft: LaunchDraft, target: str) -> Launch:
    config = {"method": "dflash", "model": _checkpoint(draft), "num_speculative_tokens": draft.spec.max_draft}
    line = shlex.join(["vllm", "serve", _hf_target(draft, target), "--speculative-config", json.dumps(config)])
    return Launch((line,), (f"oldest engine: {OLDEST['vllm', draft.spec.version]}", *_checkpoint_notes(draft)))


def _sglang(draft: LaunchDraft, target: str) -> Launch:
    words = ["python", "-m", "sglang.launch_server", "--model-path", _hf_target(draft, target)]
    words += ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", _checkpoint(draft)]
    notes = (
        f"oldest engine: {OLDEST['sglang', draft.spec.version]}",
        "the block size comes from the checkpoint's own config",
        *_checkpoint_notes(draft),
    )
    return Launch((shlex.join(words),), notes)


def _checkpoint(draft: LaunchDraft) -> str:
    return draft.source_repo or "DRAFT_CHECKPOINT"


def _hf_target(draft: LaunchDraft, target: str) -> str:
    if target.endswith(".gguf"):
        return draft.target_repo or "TARGET_CHECKPOINT"
    ref = parse_reference(target)
    return _newest(ref, target) if ref else target


def _checkpoint_notes(draft: LaunchDraft) -> list[str]:
    notes = ["it reads the draft's checkpoint, BF16 or MXFP8, not the GGUF"]
    if draft.source_repo is None:
        notes.append("the file does not say which repository it comes from: put its path for DRAFT_CHECKPOINT")
    return notes
