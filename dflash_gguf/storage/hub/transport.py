"""Requests through huggingface_hub's own session: timeouts, and retries that are bounded in number and in time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from dflash_gguf.storage.hub.failures import RETRIED_STATUS, retry_after, status_of, throttled
from dflash_gguf.storage.hub.reference import Reference

T = TypeVar("T")

ATTEMPTS = 4
FIRST_PAUSE = 0.5  # seconds; doubled each time
MAX_WAIT = 60.0  # seconds that one request may be put off by a server that asks for it
_FINAL = {"ProxyError", "UnsupportedProtocol", "TooManyRedirects"}

log = logging.getLogger("dflash_gguf.hub")


def session() -> Any:
    """The client's session, with a timeout for the calls that set none and no wait longer than MAX_WAIT."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    _quiet()
    client = get_session()
    if client.timeout.read is None:
        client.timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    hooks = client.event_hooks["response"]
    if _refuse_long_waits not in hooks:
        hooks.append(_refuse_long_waits)
    return client


def attempt(ref: Reference, request: Callable[[], T]) -> T:
    """`request()`, again after a timeout, a broken connection, a 408, a 429 or a 5xx.

    At most ATTEMPTS times; a Retry-After is waited for, MAX_WAIT seconds in all. Then the client's error is raised.
    """
    from huggingface_hub import errors

    waited = 0.0
    for number in range(ATTEMPTS):
        session()
        try:
            return request()
        except errors.HTTPError as error:
            if number + 1 == ATTEMPTS or not _transient(error):
                raise
            asked = retry_after(error.response) if isinstance(error, errors.HfHubHTTPError) else None
            pause = FIRST_PAUSE * 2**number if asked is None else asked
            waited += pause
            if waited > MAX_WAIT:
                raise throttled(ref, pause) from None
            time.sleep(pause)
    raise AssertionError  # pragma: no cover - the last attempt returns or raises


def _transient(error: Exception) -> bool:
    if status := status_of(error):
        return status in RETRIED_STATUS
    names = {kind.__name__ for kind in type(error).__mro__}
    return not names & _FINAL and "resolution" not in str(error) and "not known" not in str(error)


def _refuse_long_waits(response: Any) -> None:
    """The client waits as long as a server asks; here that has an end, and is told."""
    if response.status_code not in (429, 503) or (seconds := retry_after(response)) is None:
        return
    if seconds > MAX_WAIT:
        raise throttled(Reference(_repo_of(response)), seconds)
    if seconds >= 1:
        log.warning("the Hub asks to wait %.0f s", seconds)


def _repo_of(response: Any) -> str:
    """What a request was about, for a message: org/name, without query or signature."""
    parts = str(response.request.url.path).removeprefix("/api/models").strip("/").split("/")
    return "/".join(parts[:2])


def _quiet() -> None:
    """The client's warnings hold signed links and repeat what is told here; HF_DEBUG or HF_HUB_VERBOSITY bring them."""
    import os

    if not os.environ.get("HF_DEBUG") and not os.environ.get("HF_HUB_VERBOSITY"):
        from huggingface_hub.utils import logging as hub_logging

        hub_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
