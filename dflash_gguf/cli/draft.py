"""`draft`: the numpy executor drafts one block."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_gguf.cli.output import complain, emit_json, say, table
from dflash_gguf.errors import UsageError

if TYPE_CHECKING:
    from dflash_gguf.executor.sampling import Proposal


def run(
    file: Annotated[str, typer.Argument(help="The draft's GGUF.", metavar="FILE")],
    features: Annotated[
        str, typer.Option(help="Target features [positions, taps·H]: F.npy, F.safetensors or random:N[:SEED].")
    ],
    anchor: Annotated[int, typer.Option(help="Id of the last known token; it stands behind the features.")],
    target: Annotated[
        str | None, typer.Option(help="The target, folder, GGUF or org/name: its embedding and head are shared.")
    ] = None,
    n_max: Annotated[int | None, typer.Option(help="Draft at most so many tokens. [block_size − 1]")] = None,
    p_min: Annotated[float, typer.Option(help="Stop before a slot whose best candidate is less probable.")] = 0.0,
    temperature: Annotated[float, typer.Option(help="Sample the walk at this temperature; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    memory: Annotated[str, typer.Option(help="Stay within: 512M, 4G, …; what does not fit is read again.")] = "4G",
    trace: Annotated[
        Path | None, typer.Option(help="Write every intermediate to this .npz (names: executor/trace.py).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Draft one block with the numpy executor: the reference for DFlash and DFlash 2 inference."""
    from dflash_gguf.executor.api import Limits, Sampling, draft

    drafted = draft(
        file,
        target,
        features,
        anchor,
        limits=Limits(n_max, p_min),
        sampling=Sampling(temperature, seed=seed),
        memory=parse_memory(memory),
        trace=trace,
    )
    tell_clamp(n_max, drafted.max_draft)
    proposal = drafted.proposal
    if as_json:
        emit_json(
            {
                "tokens": list(proposal.tokens),
                "candidates": proposal.candidates.tolist(),
                "probabilities": list(proposal.probabilities),
                "argmax": list(proposal.argmax),
                "stopped_by_p_min": proposal.stopped_by_p_min,
            }
        )
        return
    for line in _lines(proposal):
        say(line)


def _lines(proposal: Proposal) -> list[str]:
    rows = [("slot", "token", "probability", "arg-max", "candidates")]
    for slot, (token, probability) in enumerate(zip(proposal.tokens, proposal.probabilities, strict=True)):
        others = " ".join(map(str, proposal.candidates[slot][:6])) + " …"
        rows.append((str(slot + 1), str(token), f"{probability:.4f}", str(proposal.argmax[slot]), others))
    end = ["stopped: the next slot's best candidate is below --p-min"] if proposal.stopped_by_p_min else []
    return table(rows, right=(0, 1, 2, 3)) + end


def tell_clamp(n_max: int | None, max_draft: int) -> None:
    """Say so when more was asked for than a block has."""
    if n_max is not None and n_max > max_draft:
        complain(f"note: --n-max {n_max} is clamped to {max_draft} (block_size − 1)")


def parse_memory(text: str) -> int:
    """Bytes of `512M`, `4G`, `1.5G` or a plain number. Raises UsageError."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number = text.upper().removesuffix("B").removesuffix("I")
    unit = units.get(number[-1:], 1)
    try:
        value = float(number[:-1] if unit > 1 else number) * unit
        return int(value)
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is no size", where="--memory", hint="as in 512M or 4G") from None
