"""The Hub: the only room that touches it, through huggingface_hub alone (its cache, tokens, endpoint, offline mode).

Owns references, listings, downloads, remote byte ranges, uploads, and one clear error for each way these fail; never
interprets a file. huggingface_hub is imported when the first request is made, not before.
Way in: parse_reference, Hub.
"""

from __future__ import annotations

from dflash_gguf.storage.hub.client import Hub
from dflash_gguf.storage.hub.listing import Listing, RepoFile
from dflash_gguf.storage.hub.reference import Reference, parse_reference

__all__ = ["Hub", "Listing", "Reference", "RepoFile", "parse_reference"]
