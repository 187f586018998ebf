"""`generate`: a whole speculative decode with the numpy target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_gguf.cli.draft import parse_memory, tell_clamp
from dflash_gguf.cli.output import complain, emit_json, safe, say
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from dflash_gguf.executor.decode import Generation


def run(
    file: Annotated[str, typer.Argument(help="The draft's GGUF.", metavar="FILE")],
    target: Annotated[str, typer.Option(help="The target, folder or GGUF: dense, Qwen3- or Llama-like.")],
    prompt: Annotated[str, typer.Option(help="Text to continue; no chat template is applied.")],
    n_predict: Annotated[int, typer.Option("-n", "--n-predict", help="Tokens to generate.")] = 64,
    n_max: Annotated[int | None, typer.Option(help="Draft at most so many tokens a block. [block_size − 1]")] = None,
    p_min: Annotated[
        float, typer.Option(help="End a block before a slot whose best candidate is less probable.")
    ] = 0.0,
    temperature: Annotated[float, typer.Option(help="The target's; 0 is greedy.")] = 0.0,
    draft_temperature: Annotated[float | None, typer.Option(help="The draft's. [--temperature]")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    memory: Annotated[str, typer.Option(help="Stay within: 512M, 4G, …; what does not fit is read again.")] = "4G",
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder with tokenizer.json, where the target has none.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end of the text.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write every intermediate to this .npz (names: executor/trace.py).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Generate with the draft and its target, both in numpy; prints the text and the acceptance.

    Greedy, the text is the target's own, whatever the draft; sampled, it is distributed as the target's own.
    """
    from dflash_gguf.executor.api import Limits, Sampling, generate

    result = generate(
        file,
        target,
        prompt,
        n_predict,
        limits=Limits(n_max, p_min),
        sampling=Sampling(temperature, draft_temperature, seed),
        memory=parse_memory(memory),
        tokenizer=tokenizer,
        ignore_eos=ignore_eos,
        trace=trace,
    )
    tell_clamp(n_max, result.max_draft)
    done = result.generation
    if as_json:
        emit_json(
            {
                "text": result.text,
                "tokens": list(done.tokens),
                "blocks": [{"proposed": block.proposed, "accepted": block.accepted} for block in done.blocks],
                "n_draft": done.n_draft,
                "n_accept": done.n_accept,
                "accept_rate": done.accept_rate,
                "mean_accepted": done.mean_accepted,
                "mean_emitted": done.mean_emitted,
            }
        )
        return
    for line in result.text.splitlines():
        say(safe(line))
    say()
    for line in acceptance_lines(done):
        say(line)
    if done.n_draft and not done.n_accept:
        complain("note: nothing was accepted: `dflash-gguf check FILE --target TARGET` tells whether the two fit")


def acceptance_lines(done: Generation) -> list[str]:
    """The decode in two lines for a person; a block that was cut short counts for what it drafted."""
    n_tokens, n_blocks = counted(len(done.tokens), "token"), counted(len(done.blocks), "block")
    whole = (
        f"{n_tokens} in {n_blocks}: accepted {done.n_accept} of {done.n_draft} drafted ({done.accept_rate:.0%}), "
        f"{done.mean_accepted:.2f} of at most {done.most_drafted} a block "
        f"({done.mean_emitted:.2f} with the target's own token)"
    )
    shares = []
    for slot in range(done.most_drafted):
        drafted, accepted = (sum(getattr(block, of) > slot for block in done.blocks) for of in ("proposed", "accepted"))
        shares.append(f"{slot + 1}: {accepted} of {drafted} ({accepted / drafted:.0%})")
    return [whole, "accepted by slot: " + "  ".join(shares)] if shares else [whole]
