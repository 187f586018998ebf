"""Sending what was prepared, and proving that it arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_gguf.storage.hub.upload import Committed, commit, create, require_login, verify

if TYPE_CHECKING:
    from dflash_gguf.publishing.prepare import Prepared
    from dflash_gguf.storage.hub import Hub


def send(prepared: Prepared, hub: Hub) -> Committed | None:
    """One commit with all that differs, then a comparison of every file's size and hash with the Hub's.

    Returns None where nothing differed: then what the repository holds has been compared already. Raises HubError.
    """
    ref, listing, options = prepared.ref, prepared.listing, prepared.options
    if not prepared.changed:
        return None
    require_login(ref)
    if listing is None:
        create(ref, private=options.private)
    committed = commit(
        ref,
        list(prepared.changed),
        prepared.message,
        parent=listing.ref.revision if listing else None,
        create_pr=options.create_pr,
    )
    verify(hub, committed, list(prepared.uploads))
    return committed
