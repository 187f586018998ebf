"""`compare`: two drafts on the same inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_gguf.cli.draft import parse_memory
from dflash_gguf.cli.output import complain, emit_json, safe, say, table
from dflash_gguf.errors import UsageError
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from dflash_gguf.comparison import Comparison
    from dflash_gguf.comparison.replay import Accepted
    from dflash_gguf.model.prompts import Prompt

WORST = 5


def run(
    a: Annotated[str, typer.Argument(help="A draft: GGUF, checkpoint folder (BF16 or MXFP8), or on the Hub.")],
    b: Annotated[str, typer.Argument(help="Another one, compared with the first.")],
    target: Annotated[
        str | None, typer.Option(help="The target: folder, GGUF or org/name. Computed in numpy with --prompts.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prompts (.json, .jsonl, or one text) through the target.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Target features instead: F.npy, F.safetensors, random:N[:SEED]. [random:64]")
    ] = None,
    anchor: Annotated[int | None, typer.Option(help="With features: the token behind them. [random]")] = None,
    n_predict: Annotated[int, typer.Option("-n", "--n-predict", help="Tokens after each prompt.")] = 64,
    n_max: Annotated[int | None, typer.Option(help="Draft at most so many tokens a block. [block_size − 1]")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Plot agreement by slot.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the plot if it exists.")] = False,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder with tokenizer.json, where the target has none.")
    ] = None,
    memory: Annotated[str, typer.Option(help="Stay within: 512M, 4G, …; what does not fit is read again.")] = "4G",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Run two drafts on the same inputs: agreement by slot, accepted lengths, and which tensors differ.

    With --prompts the verdict is the sequence of accepted lengths, not the mean, which hides most faults.
    """
    from dflash_gguf.comparison import Inputs, compare
    from dflash_gguf.storage.atomic import check_output

    if prompts is not None and (features is not None or anchor is not None):
        raise UsageError("--prompts gives its own features and anchors", where="--features", hint="use one of them")
    if plot is not None:
        if plot.suffix != ".svg":
            raise UsageError("only SVG is written", where=f"--plot {plot}", hint="name it .svg")
        check_output(plot, force=force)
    texts = () if prompts is None else read_prompts(prompts)
    found = compare(
        a,
        b,
        target,
        Inputs(texts, features or "random:64", anchor, n_predict, n_max),
        memory=parse_memory(memory),
        tokenizer=tokenizer,
        on_prompt=lambda number: _progress(number, len(texts)),
    )
    if plot is not None:
        _write_plot(plot, found, force=force)
    if as_json:
        emit_json(_document(found))
        return
    for line in _lines(found):
        say(line)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Prompts of a file. Raises UsageError, InputError or FormatError."""
    from dflash_gguf.model.prompts import MAX_BYTES, parse_prompts
    from dflash_gguf.storage.files import LocalFile

    with LocalFile(path) as source:
        return parse_prompts(source.read(0, min(source.size, MAX_BYTES + 1)), source.name)


def _progress(number: int, total: int) -> None:
    import sys

    if sys.stderr.isatty():
        complain(f"prompt {number} of {total}")


def _write_plot(path: Path, found: Comparison, *, force: bool) -> None:
    from dflash_gguf.comparison.plot import svg
    from dflash_gguf.storage.atomic import AtomicFile

    data = svg(found).encode()
    with AtomicFile(path, len(data), force=force) as file:
        file.write(0, data)
        file.commit()


def _lines(found: Comparison) -> list[str]:
    lines = [f"A  {safe(found.a)}", f"B  {safe(found.b)}"]
    lines += [f"{item.field}: {_value(item.a)} → {_value(item.b)}" for item in found.differences]
    rows = [("slot", "path", "top-1", "top-k", "KL", "max KL")]
    for slot in found.slots:
        shares = (f"{share:.1%}" for share in (slot.path, slot.top_1, slot.top_k))
        rows.append((str(slot.slot), *shares, f"{slot.kl:.2e}", f"{slot.kl_max:.2e}"))  # type: ignore[arg-type]
    lines += ["", f"agreement over {counted(found.n_blocks, 'block')}", *table(rows, right=range(6))]
    if found.prompts:
        lines += ["", *_accepted_lines(found)]
    lines += ["", *_damage_lines(found), "", f"verdict: {verdict(found)}"]
    return lines


def _value(value: object) -> str:
    return "absent" if value is None else safe(str(value))


def _accepted_lines(found: Comparison) -> list[str]:
    from dflash_gguf.comparison.api import totals

    rows = [("", "blocks", "drafted", "accepted", "a block")]
    for name, runs in (("A", [p.a for p in found.prompts]), ("B", [p.b for p in found.prompts])):
        blocks, drafted, accepted = totals(runs)
        rows.append((name, str(blocks), str(drafted), str(accepted), f"{accepted / max(1, blocks):.2f}"))
    lines = ["accepted, the bonus token not counted", *table(rows, right=range(1, 5))]
    for number, prompt in enumerate(found.prompts, 1):
        if prompt.same:
            lines.append(f"prompt {number}: {_lengths(prompt.a)}")
        else:
            lines += [
                f"prompt {number}: A {_lengths(prompt.a)}",
                f"{'':{len(f'prompt {number}:')}} B {_lengths(prompt.b)}",
            ]
    return lines


def _lengths(run: Accepted) -> str:
    return " ".join(map(str, run.accepted))


def _damage_lines(found: Comparison) -> list[str]:
    differing = [item for item in found.damage if item.rmse != 0]
    if not differing:
        return [f"weights: {counted(len(found.damage), 'tensor')}, all equal"]
    rows = [("tensor", "types", "relative RMSE", "")]
    for item in differing[:WORST]:
        kinds = " → ".join(dict.fromkeys(item.types))
        rmse = item.problem if item.rmse is None else f"{item.rmse:.3e}"
        rows.append((safe(item.name), kinds, rmse, "" if item.explained else "more than its types explain"))
    told = f"weights: {len(differing)} of {counted(len(found.damage), 'tensor', 'differs', 'differ')}"
    more = f", {len(found.unexplained)} by more than their types explain" if found.unexplained else ""
    return [f"{told}{more}; the worst:", *table(rows, right=(2,))]


def verdict(found: Comparison) -> str:
    """The comparison in one line."""
    suspects = ", ".join(item.name for item in found.unexplained[:WORST])
    tail = f"; look at {safe(suspects)}" if suspects else ""
    if found.differences:
        tail += f"; the geometry differs in {', '.join(item.field for item in found.differences)}"
    if found.prompts:
        same, total = found.n_same_sequences, len(found.prompts)
        return f"the same accepted lengths in every block of {same} of {counted(total, 'prompt')}{tail}"
    same, total = found.n_same_paths, found.n_blocks
    return f"the same path in {same} of {counted(total, 'block')}; what a target accepts was not measured{tail}"


def _document(found: Comparison) -> dict[str, Any]:
    from dflash_gguf.comparison.api import totals

    def side(runs: list[Accepted]) -> dict[str, Any]:
        blocks, drafted, accepted = totals(runs)
        return {
            "blocks": blocks,
            "n_draft": drafted,
            "n_accept": accepted,
            "mean_accepted": accepted / blocks if blocks else None,
            "sequences": [list(run.accepted) for run in runs],
        }

    return {
        "a": found.a,
        "b": found.b,
        "equal": found.equal,
        "verdict": verdict(found),
        "geometry": [{"field": item.field, "a": _plain(item.a), "b": _plain(item.b)} for item in found.differences],
        "blocks": found.n_blocks,
        "same_paths": found.n_same_paths,
        "slots": [
            {"slot": s.slot, "path": s.path, "top_1": s.top_1, "top_k": s.top_k, "kl": s.kl, "kl_max": s.kl_max}
            for s in found.slots
        ],
        "accepted": {
            "same_sequences": found.n_same_sequences,
            "prompts": len(found.prompts),
            "a": side([prompt.a for prompt in found.prompts]),
            "b": side([prompt.b for prompt in found.prompts]),
        }
        if found.prompts
        else None,
        "tensors": [
            {
                "name": item.name,
                "a": item.types[0],
                "b": item.types[1],
                "relative_rmse": item.rmse,
                "explained": item.explained,
                "problem": item.problem or None,
            }
            for item in found.damage
        ],
    }


def _plain(value: Any) -> Any:
    from dataclasses import asdict, is_dataclass

    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
