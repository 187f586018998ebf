"""References to the Hub: `hf://org/name[@rev][/path]`, bare ids, pasted links. Pure: nothing is requested.

What is a local path stays one: a bare id counts only where no such path exists, and never when it ends like a file.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dflash_gguf.errors import UsageError

SCHEME = "hf://"
#: Hosts whose links are understood; HF_ENDPOINT's host is added to them.
LINK_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")

_NAME = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?(?<!\.git)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SLASHED_REVISION = re.compile(r"refs/(?:pr/\d+|convert/[\w.-]+)(?=/|$)")
_BAD_IN_REVISION = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|^[-/.]|[/.]$|//|\.lock$")
_OTHER_KINDS = ("datasets", "spaces", "buckets", "kernels")
_FILE_SUFFIXES = (".gguf", ".safetensors", ".json", ".bin", ".pt", ".npy", ".txt", ".md")
_CREDENTIALS = re.compile(r"//[^/?#]*@")
_LINK_ROUTES = ("blob", "resolve", "raw", "tree", "blame")


@dataclass(frozen=True, slots=True)
class Reference:
    """A repository `org/name`, a revision (None: the default branch) and a path in it ("": the repository itself)."""

    repo: str
    revision: str | None = None
    path: str = ""
    #: typed without hf://, so that a local path may have been meant
    bare: bool = field(default=False, compare=False)

    @property
    def is_commit(self) -> bool:
        """Whether the revision is a full commit hash, which can never come to mean something else."""
        return bool(self.revision and _COMMIT.fullmatch(self.revision))

    def hint(self, text: str) -> str:
        """A next step for what the Hub did not give: a bare id may be a local path with a typing error in it."""
        return f"there is no local file or folder of that name; {text}" if self.bare else text

    def require_file(self) -> None:
        """Raise UsageError where it names no file."""
        if not self.path:
            raise UsageError("names a repository, not a file", where=str(self), hint=self.hint("add /name.gguf"))

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        path = f"/{self.path}" if self.path else ""
        return f"{SCHEME}{self.repo}{revision}{path}"


def parse_reference(text: str) -> Reference | None:
    """The Hub reference that `text` is, or None for a local path.

    Raises UsageError for an hf:// reference or a link that names no model repository.
    """
    if text.startswith(SCHEME):
        return _from_body(text[len(SCHEME) :], text)
    link, shown = _link_path(text), _CREDENTIALS.sub("//", text)  # a link copied from git may hold a token
    if link is not None:
        return _from_link(link, shown)
    if text.startswith(("http://", "https://")):
        hosts = ", ".join(LINK_HOSTS)
        raise UsageError("is no link to the Hub", where=shown, hint=f"links to {hosts} are read, or hf://org/name")
    return _from_bare(text)


def check_repo_path(path: str, where: str) -> str:
    """`path` if it stays in its repository and can be a file name on any system, else UsageError."""
    parts = path.split("/")
    if any(part in {"", ".", ".."} for part in parts) or "\\" in path or re.match(r"[A-Za-z]:", path):
        raise UsageError(f"the path {path!r} leaves its folder or is empty in part", where=where)
    if not path.isprintable():
        raise UsageError(f"the path {path!r} holds characters that cannot be shown", where=where)
    return path


def _from_bare(text: str) -> Reference | None:
    head, _, tail = text.partition("@")
    parts = head.split("/")
    if len(parts) != 2 or not all(_NAME.fullmatch(part) for part in parts) or text.startswith("~"):
        return None
    if parts[0] in ("models", *_OTHER_KINDS):  # no account has such a name
        return None
    if parts[1].lower().endswith(_FILE_SUFFIXES) or os.path.lexists(text) or Path(head).exists():
        return None
    return replace(_from_body(text, text), bare=True) if tail or "@" not in text else None


def _from_body(body: str, text: str) -> Reference:
    """`org/name[@rev][/path]`; a revision holds no slash, except refs/pr/N, refs/convert/X and %2F."""
    body = body.removeprefix("models/")
    owner, _, rest = body.partition("/")
    if owner in _OTHER_KINDS:
        raise UsageError(f"names one of the {owner}, drafts are in model repositories", where=text)
    match = re.match(r"([^/@]*)(@?)(.*)", rest, re.DOTALL)
    name, at, rest = match.groups() if match else ("", "", "")
    revision: str | None = None
    if at:
        slashed = _SLASHED_REVISION.match(rest)
        revision = slashed[0] if slashed else rest.partition("/")[0]
        rest = rest[len(revision) :]
    return _checked(owner, name, None if revision is None else unquote(revision), rest.strip("/"), text)


def _checked(owner: str, name: str, revision: str | None, path: str, text: str) -> Reference:
    if not name:
        raise UsageError("names no repository", where=text, hint="write hf://org/name")
    for part in (owner, name):
        if not _NAME.fullmatch(part):
            raise UsageError(f"{part!r} cannot be part of a repository's id", where=text, hint="write hf://org/name")
    if revision is not None and (not revision or _BAD_IN_REVISION.search(revision)):
        raise UsageError(
            f"{revision!r} cannot be a revision",
            where=text,
            hint="a branch, a tag, a commit or refs/pr/N goes behind the @",
        )
    return Reference(f"{owner}/{name}", revision, check_repo_path(path, text) if path else "")


def _link_path(text: str) -> str | None:
    """The path of a link to the Hub (a missing scheme is forgiven); None for anything else."""
    with_scheme = text if "://" in text else f"https://{text}"
    if not with_scheme.startswith(("http://", "https://")):
        return None
    try:
        parts, endpoint = urlsplit(with_scheme), urlsplit(os.environ.get("HF_ENDPOINT", ""))
        host, own = (part.netloc.rpartition("@")[2].lower() for part in (parts, endpoint))
    except ValueError:
        return None
    if host not in LINK_HOSTS and not (own and host == own):
        return None
    prefix = endpoint.path.rstrip("/") if host == own else ""
    return parts.path.removeprefix(prefix)


def _from_link(path: str, text: str) -> Reference:
    segments = [unquote(segment) for segment in path.split("/") if segment]
    if segments[:1] == ["models"]:
        segments = segments[1:]
    if segments and segments[0] in _OTHER_KINDS:
        raise UsageError(f"links to one of the {segments[0]}, drafts are in model repositories", where=text)
    if len(segments) < 2:
        raise UsageError("links to no repository", where=text, hint="write hf://org/name")
    owner, name, *rest = segments
    if not rest:
        return _checked(owner, name, None, "", text)
    route, *rest = rest
    if route == "commit" and len(rest) == 1:
        return _checked(owner, name, rest[0], "", text)
    if route not in _LINK_ROUTES or not rest:
        raise UsageError(
            f"links to the page {route!r}, which is no file or folder",
            where=text,
            hint=f"write hf://{owner}/{name}, for a pull request hf://{owner}/{name}@refs/pr/N",
        )
    joined = "/".join(rest)
    slashed = _SLASHED_REVISION.match(joined)
    revision = slashed[0] if slashed else rest[0]
    return _checked(owner, name, revision, joined[len(revision) :].strip("/"), text)
