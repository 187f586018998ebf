"""What went wrong at the Hub, as one HubError with the next step; never a response's text, a signed link or a token.

The client's own messages hold URLs (with signatures) and whatever a server wrote, so none of them is passed on.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

from dflash_gguf.errors import DflashError, HubError, OutputError
from dflash_gguf.storage.hub.reference import Reference

RETRIED_STATUS = (408, 429, 500, 502, 503, 504)
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


class NoSuchRepoError(HubError):
    """There is no such repository, or none that this account may know of."""


@contextmanager
def told(ref: Reference, near: Callable[[str], list[str]] | None = None) -> Iterator[None]:
    """Turn whatever the client raises about `ref` into a HubError (OutputError where the cache cannot be written).

    `near` gives the repository's file names most like a missing one.
    """
    from huggingface_hub import errors

    try:
        yield
    except DflashError:
        raise
    except errors.EntryNotFoundError as error:
        raise _not_there(error, ref, near) from None
    except (errors.HTTPError, errors.OfflineModeIsEnabled, errors.FileMetadataError) as error:
        raise translate(error, ref) from None
    except OSError as error:
        raise _local(error, ref) from None
    except (ValueError, KeyError, TypeError, RuntimeError) as error:  # an answer that is not what the Hub gives
        if isinstance(cause := error.__cause__, errors.HTTPError):
            raise translate(cause, ref) from None
        raise HubError(
            f"the Hub's answer cannot be used ({type(error).__name__})", where=str(ref), hint=_endpoint_hint()
        ) from None


def translate(error: Exception, ref: Reference) -> HubError:
    """The HubError for one of huggingface_hub's errors (or of the HTTP client below it)."""
    from huggingface_hub import errors

    where = str(ref)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return HubError("is not in the cache, and offline mode is on", where=where, hint="unset HF_HUB_OFFLINE")
    if isinstance(error, errors.GatedRepoError):
        return HubError("the repository is gated", where=where, hint=_gated_hint(ref))
    if isinstance(error, errors.RevisionNotFoundError):
        return HubError(
            f"no such revision: {ref.revision or 'main'}",
            where=where,
            hint=f"branches and tags: {page(ref)}/tree/main; a pull request is refs/pr/N",
        )
    if isinstance(error, errors.RepositoryNotFoundError) and status_of(error) != 401:
        return NoSuchRepoError("no such repository", where=where, hint=_not_found_hint())
    if isinstance(error, errors.DisabledRepoError):
        return HubError("the Hub has disabled this repository", where=where, hint=f"see {page(ref)}")
    if isinstance(error, errors.FileMetadataError):
        return HubError("the answer lacks what the Hub's answers hold", where=where, hint=_endpoint_hint())
    if isinstance(error, errors.HfHubHTTPError):
        return _of_status(error, ref)
    return _of_transport(error, ref)


def page(ref: Reference) -> str:
    """The repository's page."""
    return f"https://huggingface.co/{ref.repo}"


def status_of(error: BaseException) -> int:
    """The HTTP status of an error, 0 where it has none."""
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def retry_after(response: Any) -> float | None:
    """Seconds that a response asks to wait: its RateLimit (where exhausted) or Retry-After header, else None."""
    headers = response.headers
    limit = str(headers.get("ratelimit", ""))
    fields = dict(part.strip().split("=", 1) for part in limit.split(";") if "=" in part)
    if fields.get("r") == "0" and fields.get("t", "").isdigit():
        return float(fields["t"])
    value = str(headers.get("retry-after", "")).strip()
    return float(value) if value.isdigit() else None


def throttled(ref: Reference, seconds: float | None) -> HubError:
    """The Hub refuses more requests for longer than is waited here."""
    told_to = "" if seconds is None else f" and asks to wait {seconds:,.0f} s"
    return HubError(
        f"the Hub throttles these requests{told_to}",
        where=str(ref),
        hint="repeat it then" if logged_in() else "repeat it then; its limits are higher after `hf auth login`",
    )


def logged_in() -> bool:
    """Whether the client has a token to send."""
    from huggingface_hub import get_token

    return bool(get_token())


def _of_status(error: Exception, ref: Reference) -> HubError:
    status, where = status_of(error), str(ref)
    if status == 401:
        if logged_in():
            return HubError("the Hub refuses the token (HTTP 401)", where=where, hint="`hf auth login` for a new one")
        # the Hub does not tell those who are not logged in which of the two it is
        return HubError("no such repository, or it is private: not logged in", where=where, hint=_not_found_hint())
    if status == 403:
        return HubError("the token may not do this (HTTP 403)", where=where, hint="it needs write access here")
    if status == 404:
        return HubError("not found (HTTP 404)", where=where, hint=_not_found_hint())
    if status == 429:
        return throttled(ref, retry_after(getattr(error, "response", None)))
    if status == 412:
        return HubError("somebody else committed meanwhile (HTTP 412)", where=where, hint="run it again")
    if status >= 500:
        return HubError(f"the Hub failed (HTTP {status})", where=where, hint="repeat it later")
    return HubError(f"the Hub refuses this request (HTTP {status})", where=where, hint=f"see {page(ref)}")


def _of_transport(error: Exception, ref: Reference) -> HubError:
    """No answer: told by the class's name, which is the same in every HTTP client below huggingface_hub."""
    where, kinds = str(ref), {kind.__name__ for kind in type(error).__mro__}
    if any(isinstance(cause, socket.gaierror) for cause in _causes(error)) or "name resolution" in str(error):
        return HubError(f"the name of {_host()} cannot be resolved", where=where, hint="is the network up? proxy?")
    if "ProxyError" in kinds:
        return HubError("the proxy does not let this through", where=where, hint="check HTTPS_PROXY and NO_PROXY")
    if "TimeoutException" in kinds:
        return HubError(
            "the server stopped answering", where=where, hint="repeat it; HF_HUB_DOWNLOAD_TIMEOUT waits longer"
        )
    if "ConnectError" in kinds:
        return HubError(f"no connection to {_host()}", where=where, hint="is the network up? HF_ENDPOINT right?")
    return HubError(f"the connection broke ({type(error).__name__})", where=where, hint="repeat it")


def _not_there(error: Exception, ref: Reference, near: Callable[[str], list[str]] | None) -> HubError:
    """A missing file, or one that is not in the cache because nothing could be requested."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.LocalEntryNotFoundError):
        if constants.HF_HUB_OFFLINE:
            return HubError("is not in the cache, and offline mode is on", where=str(ref), hint="unset HF_HUB_OFFLINE")
        cause = error.__cause__
        return translate(cause if isinstance(cause, Exception) else error, ref)
    names = near(ref.path) if near else []
    hint = f"nearest: {', '.join(names)}" if names else f"see {page(ref)}/tree/{quote(ref.revision or 'main', safe='')}"
    return HubError("no such file", where=str(ref), hint=hint)


def _local(error: OSError, ref: Reference) -> DflashError:
    if error.errno is None:  # the client's own check of a download's size
        return HubError("the download is shorter than announced", where=str(ref), hint="repeat it")
    if isinstance(error, ConnectionError | TimeoutError):
        return HubError(f"the connection broke ({error.strerror})", where=str(ref), hint="repeat it")
    return OutputError(f"the cache cannot be written: {error.strerror}", where=str(error.filename), hint="see HF_HOME")


def _gated_hint(ref: Reference) -> str:
    return f"ask for access at {page(ref)}" + ("" if logged_in() else f", then {LOG_IN}")


def _not_found_hint() -> str:
    return "check its spelling" if logged_in() else f"check its spelling; if it is private, {LOG_IN}"


def _host() -> str:
    from huggingface_hub import constants

    return urlsplit(constants.ENDPOINT).netloc.rpartition("@")[2]


def _endpoint_hint() -> str:
    return "is HF_ENDPOINT a Hub?" if os.environ.get("HF_ENDPOINT") else "repeat it"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen = 0
    while error is not None and seen < 20:
        yield error
        error, seen = error.__cause__ or error.__context__, seen + 1
