"""`bench(target, drafts, …)`: the library twin of the command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from dflash_gguf.engine.process import Completion, Failure, require_engine, run_engine
from dflash_gguf.engine.prompt_sets import UNIQUE, sets_of
from dflash_gguf.errors import FormatError, UsageError
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.model.draft_header import draft_spec
from dflash_gguf.model.target import require_target
from dflash_gguf.storage.files import LocalFile
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from dflash_gguf.model.prompts import Prompt

DEFAULT_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """How to measure. Greedy always: only then does the text not depend on the draft.

    `n_max`: tokens a block, a row for each (empty: block_size − 1). `contexts`: a row for each, prompts filled up to
    it (empty: DEFAULT_CONTEXT, nothing filled). `time_limit` in seconds for each process, `memory` in bytes of its
    address space (None: no bound). `threads` −1 is the engine's own choice.
    """

    n_predict: int = 128
    n_max: tuple[int, ...] = ()
    p_min: float = 0.0
    contexts: tuple[int, ...] = ()
    repeats: int = 3
    threads: int = -1
    gpu_layers: int = 0
    time_limit: float = 600.0
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One draft (None: the control), n_max, context and set of prompts.

    Counts are of one repeat; blocks are the target's passes after the first token. `same_texts` of `n_prompts` texts
    are the control's. `error` is why there is nothing else.
    """

    prompts: str
    draft: str | None
    n_max: int | None
    context: int
    n_prompts: int
    prompt_tokens: int = 0
    tokens_per_second: float = 0.0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0
    speedup: float | None = None
    same_texts: int | None = None
    error: str = ""
    texts: tuple[str, ...] = field(default=(), repr=False)

    @property
    def blocks(self) -> int:
        """Passes of the target: each gave the accepted tokens and one of its own."""
        return self.generated - self.n_prompts - self.accepted

    @property
    def mean_accepted(self) -> float | None:
        """Accepted tokens a block, the target's own not counted."""
        return self.accepted / self.blocks if self.draft and self.blocks else None


@dataclass(frozen=True, slots=True)
class BenchReport:
    """All rows, the engine's version, and what not to conclude from them."""

    engine: str
    target: str
    settings: BenchSettings
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """As `bench --json` holds it."""
        settings = self.settings
        return {
            "engine": {"name": "llama.cpp", "binding": "xllamacpp", "version": self.engine},
            "target": self.target,
            "settings": {
                "engine": f"xllamacpp {self.engine}",
                "temperature": 0,
                "n_predict": settings.n_predict,
                "p_min": settings.p_min,
                "repeats": settings.repeats,
                "warm_up": 1,
                "statistic": "median",
                "threads": settings.threads if settings.threads > 0 else "engine default",
                "gpu_layers": settings.gpu_layers,
                "time_limit": settings.time_limit,
                "memory": settings.memory,
            },
            "rows": [_document(row) for row in self.rows],
            "notes": list(self.notes),
        }


def bench(
    target: str | Path,
    drafts: str | Path | Sequence[str | Path],
    prompts: tuple[Prompt, ...],
    settings: BenchSettings,
    on_row: Callable[[str], None] = lambda _: None,
) -> BenchReport:
    """Measure the control and each draft with the engine; what it cannot run becomes a row with its reason.

    Raises UsageError where the engine is not installed, a file is missing or a value is out of range.
    """
    engine = require_engine()
    _require_ranges(settings)
    target, paths = Path(target), [Path(draft) for draft in ([drafts] if isinstance(drafts, str | Path) else drafts)]
    for path in (target, *paths):
        if not path.is_file():
            raise UsageError("no such file", where=str(path), hint="bench runs local GGUF files")
    _refuse_draft(target)
    sets = sets_of(prompts)
    limits = {path: _max_draft(path) for path in paths}
    notes = list(_notes(limits, sets, settings))
    rows: list[Row] = []
    for context in settings.contexts or (DEFAULT_CONTEXT,):
        control: Mapping[str, Row] = {}
        for draft, n_max in _configurations(limits, settings.n_max):
            on_row(f"{draft.name if draft else 'no draft'}, context {context}")
            measured = _measure(target, draft, n_max, context, sets, settings)
            control = control or measured
            rows += [_against(row, control[name]) for name, row in measured.items()]
    rows.sort(key=lambda row: list(sets).index(row.prompts))
    return BenchReport(engine, target.name, settings, tuple(rows), (*notes, *_row_notes(rows)))


def _configurations(
    limits: Mapping[Path, int | None], wanted: Sequence[int]
) -> Iterator[tuple[Path | None, int | None]]:
    """The control, then each draft with each n_max that it can have."""
    yield None, None
    for draft, limit in limits.items():
        most = limit or max(wanted, default=7)
        for n_max in dict.fromkeys(min(n, most) for n in wanted or (most,)):
            yield draft, n_max


def _max_draft(path: Path) -> int | None:
    """block_size − 1; None for a file that does not say, which the engine will refuse in its own words."""
    with LocalFile(path) as source:
        try:
            spec = draft_spec(scan_header(source).metadata)
        except FormatError:
            return None
    return spec.max_draft if spec else None


def _refuse_draft(target: Path) -> None:
    with LocalFile(target) as source:
        try:
            header = scan_header(source)
        except FormatError:
            return  # the engine refuses it in its own words
        require_target(header, source.name)


def _measure(
    target: Path,
    draft: Path | None,
    n_max: int | None,
    context: int,
    sets: Mapping[str, Sequence[Prompt]],
    settings: BenchSettings,
) -> dict[str, Row]:
    texts = [prompt.text for held in sets.values() for prompt in held]
    job = {
        "target": str(target),
        "draft": None if draft is None else str(draft),
        "n_max": n_max,
        "p_min": settings.p_min,
        "n_ctx": context,
        "fill": bool(settings.contexts),
        "filler": "".join(prompt.text + "\n" for prompt in (*sets["unique"], *UNIQUE)),
        "prompts": texts,
        "n_predict": settings.n_predict,
        "repeats": settings.repeats,
        "threads": settings.threads,
        "gpu_layers": settings.gpu_layers,
        "memory": settings.memory,
    }
    done = run_engine(job, settings.time_limit)
    rows, first = {}, 0
    for name, held in sets.items():
        row = Row(name, draft.name if draft else None, n_max, context, len(held))
        last = first + len(held)
        rows[name] = (
            replace(row, error=done.reason)
            if isinstance(done, Failure)
            else _counted(row, [run[first:last] for run in done])
        )
        first = last
    return rows


def _counted(row: Row, runs: Sequence[Sequence[Completion]]) -> Row:
    speeds = [1000 * sum(c.predicted_n for c in run) / max(1e-9, sum(c.predicted_ms for c in run)) for run in runs]
    counts = runs[0]
    return replace(
        row,
        prompt_tokens=round(median(c.prompt_n for c in counts)),
        tokens_per_second=median(speeds),
        generated=sum(c.predicted_n for c in counts),
        drafted=sum(c.draft_n for c in counts),
        accepted=sum(c.draft_n_accepted for c in counts),
        texts=tuple(c.text for c in counts),
    )


def _against(row: Row, control: Row) -> Row:
    if row.error or control.error or row.draft is None:
        return row
    same = sum(a == b for a, b in zip(row.texts, control.texts, strict=True))
    return replace(row, speedup=row.tokens_per_second / control.tokens_per_second, same_texts=same)


def _notes(
    limits: Mapping[Path, int | None], sets: Mapping[str, Sequence[Prompt]], settings: BenchSettings
) -> Iterator[str]:
    used = {n_max for draft, n_max in _configurations(limits, settings.n_max) if draft}
    if len(used) > 1:
        told = ", ".join(map(str, sorted(n for n in used if n is not None)))
        yield (
            f"accepted / drafted is not comparable between rows of n_max {told}: the more is drafted, the lower it is;"
            " compare the mean accepted per block"
        )
    for path, limit in limits.items():
        if limit is not None and any(n > limit for n in settings.n_max):
            yield f"{path.name}: n_max is clamped to {limit} (block_size − 1)"
    if settings.p_min > 0:
        yield (
            f"p_min {settings.p_min:g} ends blocks early: accepted / drafted is not comparable with figures at another"
            " p_min"
        )
    if "repetitive" in sets:
        yield "the repetitive prompts flatter every draft: they say nothing of other text, so never quote them alone"
    if settings.contexts:
        yield "contexts are filled with the unique prompts and the built-in ones, again and again"


def _row_notes(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row.same_texts is not None and row.same_texts < row.n_prompts:
            differ = row.n_prompts - row.same_texts
            where = f"{row.draft}, n_max {row.n_max}, {row.prompts}"
            yield f"{where}: {differ} of {counted(row.n_prompts, 'text')} not the control's"


def _document(row: Row) -> dict[str, Any]:
    counted = not row.error
    return {
        "prompts": row.prompts,
        "n_prompts": row.n_prompts,
        "draft": row.draft,
        "n_max": row.n_max,
        "context": row.context,
        "prompt_tokens": row.prompt_tokens if counted else None,
        "tokens_per_second": row.tokens_per_second if counted else None,
        "generated": row.generated if counted else None,
        "drafted": row.drafted if counted else None,
        "accepted": row.accepted if counted else None,
        "accept_rate": row.accepted / row.drafted if row.drafted else None,
        "blocks": row.blocks if counted else None,
        "mean_accepted": row.mean_accepted if counted else None,
        "speedup": row.speedup,
        "same_texts": row.same_texts,
        "error": row.error or None,
    }


def physical_memory() -> int | None:
    """Bytes of memory that the machine has, where it says so."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _require_ranges(settings: BenchSettings) -> None:
    checks = (
        (settings.n_predict >= 2, "-n", f"{counted(settings.n_predict, 'token', 'holds', 'hold')} no block"),
        (all(n >= 1 for n in settings.n_max), "--n-max", "a draft has at least one token"),
        (0 <= settings.p_min <= 1, "--p-min", f"{settings.p_min} is no probability"),
        (all(n > settings.n_predict for n in settings.contexts), "--context", "no room for a prompt and its answer"),
        (settings.repeats >= 1, "--repeats", f"{settings.repeats} is nothing to measure"),
        (settings.time_limit > 0, "--time-limit", f"{settings.time_limit} s is no time"),
    )
    for holds, where, message in checks:
        if not holds:
            raise UsageError(message, where=where)
