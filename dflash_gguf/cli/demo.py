"""`demo`: the whole story on the packaged pair, in seconds: convert, inspect, check, generate."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dflash_gguf.cli.generate import acceptance_lines
from dflash_gguf.cli.output import safe, say, size_text, table
from dflash_gguf.errors import ModelError, UsageError
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash_gguf.executor.decode import Generation

NEW_TOKENS = 64
EVERY = 6  # of the prompts, one: all of them would take half a minute
TYPES = ("bf16", "q8_0", "q4_k_m")


def run() -> None:
    """Convert, inspect, check and run the packaged draft: a tiny trained pair, offline, in seconds."""
    pair = fixture()
    with TemporaryDirectory(prefix="dflash-demo-") as folder:
        files = _convert(pair, Path(folder))
        _inspect(files[0])
        _check(files[0], pair)
        _generate(files, pair)


def fixture() -> Path:
    """The folder of the trained pair, in the wheel or beside the package in its repository."""
    package = Path(__file__).parents[1]
    for folder in (package / "fixtures", package.parent / "fixtures"):
        if (folder / "target" / "config.json").is_file():
            return folder
    raise UsageError("this installation came without its trained pair", where="demo", hint="install the wheel anew")


def _convert(pair: Path, out: Path) -> list[Path]:
    """Both drafts as GGUF; DFlash 2 in three types."""
    from dflash_gguf.conversion import ConvertOptions, convert

    say("1. convert: a DFlash 2 draft, and a DFlash 1 draft of the same target\n")
    target, paths = pair / "target", []
    for draft, types in (("draft", TYPES), ("draft-v1", TYPES[:1])):
        done = convert(
            pair / draft, target, ConvertOptions(types=types, out=str(out / f"dflash-fixture-{draft}-{{type}}.gguf"))
        )
        for output in done.plan.outputs:
            size = size_text(output.header.file_size)
            say(f"   {output.path.name}: {counted(len(output.tensors), 'tensor')}, {size}")
            paths.append(output.path)
    return paths


def _inspect(file: Path) -> None:
    from dflash_gguf.cli import inspect

    say("\n2. inspect\n")
    inspect.run(str(file))


def _check(file: Path, pair: Path) -> None:
    from dflash_gguf.checks import check
    from dflash_gguf.checks.render import renderer

    say("\n3. check: the file, its pair and its source\n")
    report = check([file], target=pair / "target", source=pair / "draft", data=True)
    for line in renderer("text")(report).splitlines():
        say("   " + line.replace(f"{file.parent}/", ""))


def _generate(files: Sequence[Path], pair: Path) -> None:
    """One text in full, then a row for each draft over several."""
    from dflash_gguf.executor.api import generate

    prompts = _some_prompts(pair)
    say("\n4. generate: greedy, the draft proposes and the numpy target decides\n")
    shown = generate(files[0], pair / "target", prompts[0], NEW_TOKENS)
    for line in (prompts[0] + "▸" + shown.text).splitlines():
        say("   │ " + safe(line))
    say()
    for line in acceptance_lines(shown.generation):
        say("   " + line)
    rows: list[tuple[str, ...]] = [
        ("draft", "bytes", "accepted a block", "with the bonus token", "drafted", "accepted")
    ]
    texts = set()
    for file in files:
        done = [generate(file, pair / "target", prompt, NEW_TOKENS).generation for prompt in prompts]
        texts.add(tuple(each.tokens for each in done))
        rows.append(_row(file, done))
    if len(texts) > 1:
        raise ModelError("the drafts led to different texts", where="demo", hint="this is a fault: report it")
    over = f"{counted(len(prompts), 'prompt')} of at most {NEW_TOKENS} tokens"
    say(f"\n   acceptance over {over}; every draft gave the same texts\n")
    for line in table(rows, right=(1, 2, 3, 4, 5)):
        say("   " + line)


def _some_prompts(pair: Path) -> list[str]:
    rows = json.loads((pair / "prompts.json").read_text(encoding="utf-8"))["prompts"]
    return [str(row["text"]) for row in rows[::EVERY]]


def _row(file: Path, done: Sequence[Generation]) -> tuple[str, ...]:
    blocks = [block for each in done for block in each.blocks]
    drafted, accepted = (sum(getattr(block, of) for block in blocks) for of in ("proposed", "accepted"))
    emitted = sum(block.emitted for block in blocks)
    return (
        file.name,
        f"{file.stat().st_size:,}",
        f"{accepted / len(blocks):.2f} of at most {max(each.most_drafted for each in done)}",
        f"{emitted / len(blocks):.2f}",
        str(drafted),
        str(accepted),
    )
