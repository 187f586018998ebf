"""The app: commands are imported when they are asked for."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

#: command → what the list of commands says of it; module `dflash_gguf.cli.<command>` holds a function `run`
COMMANDS: dict[str, str] = {
    "convert": "Convert a DFlash checkpoint and its target's tokenizer to GGUF.",
    "quantize": "Quantize a draft that is GGUF already.",
    "inspect": "Show what a GGUF file is.",
    "check": "Find every way a draft file is silently bad.",
    "explain": "Explain a rule of check.",
    "diff": "Compare two GGUF files.",
    "patch": "Mend a file's header; tensor data stay as they are.",
    "draft": "Draft one block with the numpy executor.",
    "generate": "Generate with a draft and its target, both in numpy.",
    "compare": "Compare two drafts: what does a quantization cost?",
    "bench": "Measure drafts in the real llama.cpp engine.",
    "card": "Write the model card of a repository of drafts.",
    "launch": "Print the lines that start an engine with a draft.",
    "demo": "The whole story on a tiny trained pair, in seconds.",
    "publish": "Upload drafts to the Hub, checked and verified.",
    "mxfp8": "Write a DFlash checkpoint as MXFP8 for vLLM, or verify one.",
}


class _LazyGroup(TyperGroup):
    """A group that imports a command's module only when that command runs or shows its own help."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is the base class's
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in sys.argv:  # the list of commands: their first lines are all it shows
            return TyperCommand(name=cmd_name, help=COMMANDS[cmd_name])
        return _load(cmd_name)


def _load(name: str) -> Any:
    module = importlib.import_module(f"dflash_gguf.cli.{name}")
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name=name)(module.run)
    return typer.main.get_command(single)


app = typer.Typer(
    cls=_LazyGroup, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=True
)


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(version("dflash-gguf"))
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Convert, inspect, check and run DFlash speculative-decoding drafts as GGUF."""
