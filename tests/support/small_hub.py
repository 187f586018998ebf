"""A small Hub on loopback: what huggingface_hub's real client needs, with every request counted.

Two servers: the Hub itself, and a second host ("CDN") where large files are. Faults are ordered beforehand:
`hub.fault("cdn", "short", times=1)` spoils the next answer of the CDN.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import huggingface_hub

TOKEN = "hf_TokenThatMustNotLeak0123456789"  # noqa: S105 - of the small Hub only
LARGE = (".gguf", ".safetensors")


def git_oid(data: bytes) -> str:
    """What git calls a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class Repo:
    """One repository: its commits (path → bytes) and what its revisions point at."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False

    def commit(self, files: dict[str, bytes], ref: str = "main") -> str:
        """A commit on top of what `ref` holds."""
        base = self.commits.get(self.refs.get(ref, ""), {}) if not ref.startswith("refs/pr/") else {}
        tree = {**base, **files}
        listed = json.dumps({path: git_oid(data) for path, data in tree.items()}, sort_keys=True)
        parent = self.refs.get(ref, "")
        commit = hashlib.sha1((parent + listed).encode(), usedforsecurity=False).hexdigest()
        self.commits[commit] = tree
        self.refs[ref] = commit
        return commit


@dataclass
class Request:
    """One request as it arrived (header names in lower case), and how much went back."""

    host: str
    method: str
    path: str
    headers: dict[str, str]
    status: int = 0
    sent: int = 0


@dataclass
class Fault:
    host: str
    kind: str
    times: int
    match: str
    after: int

    def hits(self, host: str, path: str) -> bool:
        if host != self.host or self.match not in path or self.times == 0:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True


class SmallHub:
    """Both servers, what they hold and what they were asked."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.corrupt_uploads = False
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.idle = threading.Condition(self.lock)
        self.busy = 0
        self._hub = self._server("hub")
        self._cdn = self._server("cdn")
        self.url = f"http://127.0.0.1:{self._hub.server_port}"
        # before 2.0 the client took another port of the same host for the Hub itself
        other = "127.0.0.1" if int(huggingface_hub.__version__.split(".")[0]) >= 2 else "localhost"
        self.cdn_url = f"http://{other}:{self._cdn.server_port}"

    def _server(self, host: str) -> ThreadingHTTPServer:
        handler = type(f"{host}Handler", (_Handler,), {"small": self, "host": host})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)  # what nobody reads is not sent
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return server

    def close(self) -> None:
        self.released.set()
        for server in (self._hub, self._cdn):
            server.shutdown()
            server.server_close()

    def repo(self, name: str, files: dict[str, bytes], *, private: bool = False, gated: bool = False) -> Repo:
        """A repository with one commit on main."""
        repo = self.repos[name] = Repo(private=private, gated=gated)
        repo.commit(files)
        return repo

    def fault(self, host: str, kind: str, *, times: int = -1, match: str = "", after: int = 0) -> None:
        """Spoil the next `times` answers (-1: all) of `host` to paths holding `match`, `after` some good ones."""
        self.faults.append(Fault(host, kind, times, match, after))

    def faulty(self, host: str, path: str) -> str:
        with self.lock:
            return next((fault.kind for fault in self.faults if fault.hits(host, path)), "")

    def asked(self, host: str = "", method: str = "", match: str = "") -> list[Request]:
        """The requests of a host, a method, to paths holding `match`."""
        with self.lock:
            return [r for r in self.requests if host in {"", r.host} and method in {"", r.method} and match in r.path]

    def sent(self) -> int:
        """Body bytes sent in all, once nobody is sending."""
        with self.lock:
            assert self.idle.wait_for(lambda: self.busy == 0, 300)
        return sum(request.sent for request in self.asked())

    def forget(self) -> None:
        """Start counting anew."""
        with self.lock:
            self.requests.clear()
            self.faults.clear()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    small: SmallHub
    host: str

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass

    def handle(self) -> None:
        with suppress(ConnectionError, TimeoutError):  # a client that has what it wanted hangs up
            super().handle()

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - the base class's names

    def _serve(self) -> None:
        self.body = self._read_body()
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.record = Request(self.host, self.command, self.path, headers)
        path = unquote(urlsplit(self.path).path)
        with self.small.lock:
            self.small.busy += 1
            if path != "/api/agent-harnesses":  # the client's own, once a day
                self.small.requests.append(self.record)
        try:
            self._answer(path)
        finally:
            with self.small.lock:
                self.small.busy -= 1
                self.small.idle.notify_all()

    def _answer(self, path: str) -> None:
        fault = self.small.faulty(self.host, path)
        if fault.startswith("status:"):
            self._status_fault(fault)
        elif self.host == "cdn":
            self._cdn(path, fault)
        else:
            self._hub(path, fault)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _status_fault(self, fault: str) -> None:
        """`status:429;Retry-After=1`."""
        status, *headers = fault.removeprefix("status:").split(";")
        self._send(int(status), b"{}", dict(header.split("=", 1) for header in headers))

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, announced: int = -1) -> None:
        self.record.status = status
        self.send_response(status)
        given = {"Content-Type": "application/json", **(headers or {})}
        given["Content-Length"] = str(len(body) if announced < 0 else announced)
        for key, value in given.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self._write(body)

    def _write(self, body: bytes) -> None:
        view = memoryview(body)
        while view:
            count = self.connection.send(view[: 1 << 16])
            self.record.sent += count
            view = view[count:]

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode())

    def _error(self, status: int, code: str, message: str = "") -> None:
        self._send(status, json.dumps({"error": message or code}).encode(), {"X-Error-Code": code})

    # --- the CDN ---

    def _cdn(self, path: str, fault: str) -> None:
        oid = path.rpartition("/")[2]
        if self.command == "PUT":
            self.small.blobs[oid] = self.body[:-1] + b"?" if self.small.corrupt_uploads else self.body
            self._send(200, b"", {"ETag": '"part"'})
            return
        data = self.small.blobs.get(oid)
        if data is None:
            self._send(404, b"")
            return
        self._ranged(data, f'"cdn-{oid[:16]}"', fault)

    def _ranged(self, data: bytes, etag: str, fault: str, extra: dict[str, str] | None = None) -> None:
        headers = {"ETag": etag, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream", **(extra or {})}
        if fault == "etag":
            headers["ETag"] = '"other"'
        wanted = self.headers.get("Range")
        if fault == "grown":
            data += b"more"
        if fault == "corrupt":
            data = data[:-1] + bytes([data[-1] ^ 1])
        if wanted is None or fault == "ignore_range":
            self._body(200, data, headers, fault)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) + 1 if last else len(data), len(data))
        if start >= len(data):
            self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        shift = 1 if fault == "wrong_range" else 0
        headers["Content-Range"] = f"bytes {start + shift}-{end - 1 + shift}/{len(data)}"
        self._body(206, data[start:end], headers, fault)

    def _body(self, status: int, body: bytes, headers: dict[str, str], fault: str) -> None:
        if fault in {"short", "stall"}:
            self._send(status, body[: len(body) // 2], headers, announced=len(body))
            if fault == "stall":
                self.small.released.wait(600)
            self.close_connection = True
        elif fault == "short_honest":
            self._send(status, body[: len(body) // 2], headers)
        elif fault == "gzip":
            self._send(status, body, {**headers, "Content-Encoding": "gzip"})
        else:
            self._send(status, body, headers)

    # --- the Hub ---

    def _hub(self, path: str, fault: str) -> None:
        parts = path.strip("/").split("/")
        if path == "/api/repos/create":
            self._create()
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif path == "/api/whoami-v2":
            self._json({"name": "tester", "type": "user"}) if self._known() else self._error(401, "")
        elif path.startswith("/lfs/verify"):
            self._json({})
        elif parts[:2] == ["api", "models"] and len(parts) >= 4:
            self._api("/".join(parts[2:4]), parts[4:])
        elif path.endswith(".git/info/lfs/objects/batch"):
            self._lfs_batch("/".join(parts[:2]).removesuffix(".git"))
        elif len(parts) >= 5 and parts[2] == "resolve":
            self._resolve("/".join(parts[:2]), parts[3:], fault)
        else:
            self._send(404, b"{}")

    def _known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _allowed(self, name: str, *, write: bool = False, content: bool = False) -> Repo | None:
        """The repository, or None after an error was sent."""
        repo = self.small.repos.get(name)
        if (self.headers.get("Authorization") and not self._known()) or (
            not self._known() and (repo is None or repo.private or write)
        ):
            self._send(401, b'{"error":"Invalid username or password."}')
            return None
        if repo is None:
            self._error(404, "RepoNotFound", "Repository not found")
            return None
        if repo.gated and content:
            self._error(403 if self._known() else 401, "GatedRepo", "Access to this model is restricted")
            return None
        return repo

    def _api(self, name: str, rest: list[str]) -> None:
        if rest[:1] == ["preupload"]:
            self._preupload(name)
        elif rest[:1] == ["commit"]:
            self._commit(name, unquote("/".join(rest[1:])))
        elif (repo := self._allowed(name)) is not None:
            revision = "/".join(rest[1:]) or "main"
            commit = repo.refs.get(revision, revision)
            if commit not in repo.commits:
                self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
                return
            siblings = [self._sibling(path, data) for path, data in repo.commits[commit].items()]
            self._json({"id": name, "modelId": name, "sha": commit, "private": repo.private, "siblings": siblings})

    def _sibling(self, path: str, data: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": git_oid(data)}
        if path.endswith(LARGE):
            entry["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 134}
        return entry

    def _resolve(self, name: str, rest: list[str], fault: str) -> None:
        repo = self._allowed(name, content=True)
        if repo is None:
            return
        length = 3 if rest[0] == "refs" else 1
        revision, path = "/".join(rest[:length]), "/".join(rest[length:])
        commit = repo.refs.get(revision, revision)
        if commit not in repo.commits:
            self._error(404, "RevisionNotFound")
            return
        data = repo.commits[commit].get(path)
        if data is None:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        if not path.endswith(LARGE):
            self._ranged(data, f'"{git_oid(data)}"', fault, {"X-Repo-Commit": commit})
            return
        oid = sha256(data)
        self.small.blobs.setdefault(oid, data)
        headers = {
            "Location": f"{self.small.cdn_url}/blob/{oid}?Signature=SignedLinkThatMustNotBeShown",
            "X-Repo-Commit": commit,
            "X-Linked-Size": str(len(data)),
            "X-Linked-Etag": f'"{oid}"',
        }
        self._send(302, b"", headers)

    # --- writing ---

    def _create(self) -> None:
        if not self._known():
            self._error(401, "")
            return
        asked = json.loads(self.body)
        name = f"{asked.get('organization') or 'tester'}/{asked['name']}"
        if name in self.small.repos:
            self._send(409, json.dumps({"error": "exists", "url": f"{self.small.url}/{name}"}).encode())
            return
        repo = self.small.repo(name, {".gitattributes": b"*.gguf filter=lfs\n"})
        repo.private = bool(asked.get("private")) or asked.get("visibility") == "private"
        self._json({"url": f"{self.small.url}/{name}", "name": name})

    def _preupload(self, name: str) -> None:
        if self._allowed(name, write=True) is None:
            return
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(self.body)["files"]
        ]
        self._json({"files": files})

    def _lfs_batch(self, name: str) -> None:
        if self._allowed(name, write=True) is None:
            return
        objects = []
        for item in json.loads(self.body)["objects"]:
            entry = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in self.small.blobs:
                entry["actions"] = {
                    "upload": {"href": f"{self.small.cdn_url}/upload/{item['oid']}"},
                    "verify": {"href": f"{self.small.url}/lfs/verify"},
                }
            objects.append(entry)
        self._json({"objects": objects, "transfer": "basic"})

    def _commit(self, name: str, revision: str) -> None:
        repo = self._allowed(name, write=True)
        if repo is None:
            return
        files: dict[str, bytes] = {}
        for line in self.body.splitlines():
            item = json.loads(line)
            if item["key"] == "file":
                files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
            elif item["key"] == "lfsFile":
                files[item["value"]["path"]] = self.small.blobs[item["value"]["oid"]]
        answer: dict[str, Any] = {"commitUrl": f"{self.small.url}/{name}/commit/x", "success": True}
        if parse_qs(urlsplit(self.path).query).get("create_pr"):
            number = 1 + sum(ref.startswith("refs/pr/") for ref in repo.refs)
            revision = f"refs/pr/{number}"
            answer["pullRequestUrl"] = f"{self.small.url}/{name}/discussions/{number}"
        answer["commitOid"] = repo.commit(files, revision)
        self._json(answer)


@contextmanager
def small_hub() -> Iterator[SmallHub]:
    """A small Hub for the duration of a test."""
    hub = SmallHub()
    try:
        yield hub
    finally:
        hub.close()
