"""A file on the Hub as a ByteSource: bytes by range requests, never the whole file.

The first bytes are kept, since a scanner comes back to them. Every answer is compared with what was asked (range,
size, ETag, length), so that a file that changes, a proxy that ignores ranges or a broken transfer cannot make up a
header of parts that do not belong together.
"""

from __future__ import annotations

import threading
from typing import Any, Self

from dflash_gguf.errors import HubError
from dflash_gguf.storage.hub.failures import status_of, told
from dflash_gguf.storage.hub.reference import Reference
from dflash_gguf.storage.hub.transport import attempt, session
from dflash_gguf.wording import counted

FIRST_READ = 256 << 10  # bytes; what the first range request fetches, however little was asked for
MAX_KEPT = 64 << 20  # bytes from the file's start that are kept; no header is larger
_EXPIRED = (401, 403, 404, 410)


class RemoteFile:
    """Bytes of `ref` as it was when this was made; one HEAD request then, one GET for each range that is not kept."""

    def __init__(self, ref: Reference) -> None:
        self.name = str(ref)
        self._asked = ref
        meta = self._metadata(ref)
        self.ref = Reference(ref.repo, meta.commit_hash, ref.path)
        self.size: int = meta.size
        self.etag: str = meta.etag
        self._url, self._own_host = self._place(ref, meta)
        self._range_etag = ""
        self._kept = bytearray()
        self._lock = threading.Lock()

    def read(self, offset: int, length: int) -> bytes:
        """See ByteSource. Raises HubError."""
        end = offset + length
        if length <= 0:
            return b""
        if end > self.size:
            raise HubError(
                f"{counted(length, 'byte')} at {offset} beyond the end ({counted(self.size, 'byte')})", where=self.name
            )
        with self._lock:
            kept = len(self._kept)
            if end > kept and offset <= kept and end <= MAX_KEPT:
                upto = min(self.size, max(end, FIRST_READ))
                self._kept += self._fetch(kept, upto)
            if end <= len(self._kept):
                return bytes(self._kept[offset:end])
        return self._fetch(offset, end)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """See ByteSource."""
        buffer[:] = self.read(offset, len(buffer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open between two requests."""

    def _metadata(self, ref: Reference) -> Any:
        from huggingface_hub import constants, get_hf_file_metadata

        def ask() -> Any:
            return get_hf_file_metadata(_url(ref), timeout=constants.HF_HUB_ETAG_TIMEOUT)

        with told(ref, lambda path: _near(ref, path)):
            meta = attempt(ref, ask)
        if meta.size is None or not meta.etag or not _is_commit(meta.commit_hash):
            raise HubError("the answer lacks size, ETag or commit", where=str(ref), hint="is HF_ENDPOINT a Hub?")
        return meta

    def _place(self, ref: Reference, meta: Any) -> tuple[str, bool]:
        """Where the bytes are, and whether that is the Hub itself, which alone is sent the token."""
        if meta.location == _url(ref):
            return _url(self.ref), True
        return str(meta.location), _origin(meta.location) == _origin(_url(ref))

    def _fetch(self, start: int, end: int) -> bytes:
        with told(self.ref):
            try:
                return attempt(self.ref, lambda: self._request(start, end))
            except OSError as error:
                if self._own_host or status_of(error) not in _EXPIRED:
                    raise
            self._renew()  # a signed link lives for an hour or less
            return attempt(self.ref, lambda: self._request(start, end))

    def _renew(self) -> None:
        meta = self._metadata(self.ref)
        if (meta.etag, meta.size) != (self.etag, self.size):
            raise self._changed()
        self._url, self._own_host = self._place(self.ref, meta)

    def _request(self, start: int, end: int) -> bytes:
        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

        headers = build_hf_headers() if self._own_host else build_hf_headers(token=False)
        headers |= {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with session().stream("GET", self._url, headers=headers, timeout=timeout, follow_redirects=True) as response:
            if response.status_code == 416:
                raise self._changed()
            hf_raise_for_status(response)
            skip = self._check(response, start, end)
            return self._body(response, skip, end - start)

    def _check(self, response: Any, start: int, end: int) -> int:
        """Bytes of the body to pass over; raises HubError for an answer to another question."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise HubError("the server sends ranges compressed", where=self.name, hint="is there a proxy between?")
        etag = response.headers.get("etag", "")
        if self._range_etag and etag != self._range_etag:
            raise self._changed()
        self._range_etag = etag
        if response.status_code == 206:
            given = response.headers.get("content-range", "")
            if given.replace(" ", "").lower() == f"bytes{start}-{end - 1}/{self.size}":
                return 0
            if given.endswith(f"/{self.size}"):
                raise HubError("the server answers with another range than asked for", where=self.name, hint="a proxy?")
            raise self._changed()
        if response.headers.get("content-length", str(self.size)) != str(self.size):
            raise self._changed()
        if end > MAX_KEPT:
            raise HubError("the server ignores ranges", where=self.name, hint="download the file and name it instead")
        return start  # the whole file comes: it is read up to `end`, then the connection is closed

    def _body(self, response: Any, skip: int, length: int) -> bytes:
        data = bytearray()
        for chunk in response.iter_raw(1 << 16):
            data += chunk[skip:]
            skip = max(0, skip - len(chunk))
            if len(data) >= length:
                return bytes(data[:length])
        raise _short_body(response)

    def _changed(self) -> HubError:
        return HubError("the file changed while it was read", where=self.name, hint="repeat it")


def _short_body(response: Any) -> Exception:
    """A transfer that ended early, as the client's own error, so that it is tried again."""
    from huggingface_hub import errors

    return errors.HTTPError(f"short body from {response.url.host}")


def _url(ref: Reference) -> str:
    from huggingface_hub import hf_hub_url

    return hf_hub_url(ref.repo, ref.path, revision=ref.revision)


def _origin(url: str) -> tuple[str, str]:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _is_commit(text: str | None) -> bool:
    return bool(text) and len(text or "") == 40 and set(text or "") <= set("0123456789abcdef")


def _near(ref: Reference, path: str) -> list[str]:
    """The repository's names most like `path`; one more request, for a better message."""
    from difflib import get_close_matches

    from dflash_gguf.storage.hub.client import Hub

    try:
        names = list(Hub().listing(Reference(ref.repo, ref.revision)).files)
    except HubError:
        return []
    return get_close_matches(path, names, n=3, cutoff=0.5)
