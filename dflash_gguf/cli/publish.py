"""`publish`: drafts to a repository on the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_gguf.cli.output import complain, emit_json, safe, say, size_text

if TYPE_CHECKING:
    from dflash_gguf.publishing import Prepared
    from dflash_gguf.storage.hub.upload import Committed


def run(
    files: Annotated[list[str], typer.Argument(help="GGUF files.", metavar="FILE…")],
    repo: Annotated[str, typer.Option(metavar="ORG/NAME", help="The repository; made where there is none.")],
    card: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A model card of your own. [made from the files' headers]")
    ] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Open a pull request.")] = False,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository a private one.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say exactly what would be sent; send nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Check drafts, write their card, upload all in one commit, and verify what the Hub then holds."""
    from dflash_gguf.publishing import PublishOptions, prepare, send
    from dflash_gguf.publishing.prepare import repository
    from dflash_gguf.storage.hub import Hub
    from dflash_gguf.storage.hub.upload import require_login

    hub = Hub()
    if not dry_run:
        require_login(repository(repo))
    prepared = prepare(files, repo, PublishOptions(card, create_pr, private), hub)
    for warning in prepared.warnings:
        complain(f"warning: {warning}")
    if prepared.kept_card:
        complain("note: the repository's own README.md stays; --card replaces it")
    committed = None if dry_run else send(prepared, hub)
    if as_json:
        emit_json(_document(prepared, committed, dry_run=dry_run))
    elif dry_run:
        _show(prepared)
    else:
        _tell(prepared, committed)


def _show(prepared: Prepared) -> None:
    where = "a pull request in" if prepared.options.create_pr else "one commit to"
    kind = "" if prepared.listing else f", which is made {'private' if prepared.options.private else 'public'} first"
    say(f"{where} {prepared.ref.repo}{kind}")
    held = prepared.listing.files if prepared.listing else {}
    for upload in prepared.uploads:
        state = "unchanged, not sent" if upload not in prepared.changed else ""
        state = state or ("replaces the present one" if upload.path in held else "new")
        say(f"  {safe(upload.path)}: {size_text(upload.size)}, sha256 {upload.sha256}, {state}")
    if prepared.changed:
        say(f"  message: {safe(prepared.message)}")
    if prepared.card is not None:
        say("  README.md:")
        for line in prepared.card.splitlines():
            say(f"    {safe(line)}".rstrip())


def _tell(prepared: Prepared, committed: Committed | None) -> None:
    if committed is None:
        say(f"{prepared.ref.repo} holds these files already: nothing was sent")
        return
    for upload in prepared.uploads:
        say(f"{safe(upload.path)}: the Hub holds {size_text(upload.size)}, sha256 {upload.sha256}")
    say(committed.pull_request or f"https://huggingface.co/{committed.ref.repo}/commit/{committed.ref.revision}")


def _document(prepared: Prepared, committed: Committed | None, *, dry_run: bool) -> dict[str, Any]:
    return {
        "repo": prepared.ref.repo,
        "dry_run": dry_run,
        "new_repo": prepared.listing is None,
        "commit": committed.ref.revision if committed else None,
        "pull_request": committed.pull_request if committed else None,
        "files": [
            {
                "path": upload.path,
                "bytes": upload.size,
                "sha256": upload.sha256,
                "changed": upload in prepared.changed,
                "verified": committed is not None or upload not in prepared.changed,
            }
            for upload in prepared.uploads
        ],
        "warnings": list(prepared.warnings),
    }
