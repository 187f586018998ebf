"""Large files into the client's cache, going on from where an interrupted run stopped.

The client throws away what it has of a file when its process ends. Here the bytes go to `<etag>.incomplete` beside
their final place under the client's own lock, are compared with the sha256 that names them, and only then renamed,
so that the client finds the blob as if it had fetched it. Xet storage has chunks of its own and is left to the client.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_gguf.errors import HubError
from dflash_gguf.storage.hub.reference import Reference
from dflash_gguf.storage.hub.transport import session

if TYPE_CHECKING:
    from dflash_gguf.storage.hub.listing import RepoFile

SMALL = 10 << 20  # bytes; the client writes no smaller pieces


def fetch_large(ref: Reference, file: RepoFile, cache: Path, progress: Any) -> None:
    """Have the content of a large file in the repository's `cache` folder.

    Small files and those in Xet storage are left to the client. Raises what the client raises, HubError where the
    content is not what its hash says.
    """
    if file.size is None or file.size <= SMALL or not re.fullmatch(r"[0-9a-f]{64}", file.sha256 or ""):
        return
    blob = cache / "blobs" / str(file.sha256)
    if blob.exists() or _in_xet_storage(ref):
        return
    from huggingface_hub.utils import WeakFileLock

    lock = cache.parent / ".locks" / cache.name / f"{file.sha256}.lock"  # the client's own for this blob
    for folder in (lock.parent, blob.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        if blob.exists():  # another process has been quicker
            return
        partial = blob.with_name(f"{blob.name}.incomplete")
        _go_on(ref, partial, file.size, progress)
        _compare(ref, partial, str(file.sha256))
        partial.replace(blob)


def _go_on(ref: Reference, partial: Path, size: int, progress: Any) -> None:
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    session()
    meta = _metadata(ref)
    own = meta.location.startswith(_endpoint() + "/")
    with partial.open("ab") as target:
        if target.tell() > size:
            target.truncate(0)
        http_get(
            meta.location,
            target,
            resume_size=target.seek(0, os.SEEK_END),
            headers=build_hf_headers() if own else build_hf_headers(token=False),
            expected_size=size,
            tqdm_class=progress,
        )


def _compare(ref: Reference, partial: Path, sha256: str) -> None:
    with partial.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        partial.unlink()
        raise HubError(f"sha256 {found[:12]}, the Hub says {sha256[:12]}", where=str(ref), hint="repeat it")


def _in_xet_storage(ref: Reference) -> bool:
    """Whether the client would fetch the file as Xet chunks."""
    from huggingface_hub.utils._runtime import is_xet_available

    return bool(is_xet_available() and _metadata(ref).xet_file_data is not None)


def _metadata(ref: Reference) -> Any:
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(ref.repo, ref.path, revision=ref.revision)
    return get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT)


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT
