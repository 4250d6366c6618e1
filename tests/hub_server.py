"""A server for tests that speaks the API of the Hugging Face hub: its data sets are folders, with faults on demand."""

import collections
import contextlib
import hashlib
import http.server
import itertools
import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

TOKEN = "hf_of_tests"


@dataclass
class HubDataset:
    """A data set: put files into `folder`, then `commit` them. A private one takes `TOKEN`, a gated one lists only."""

    name: str
    folder: Path
    kept: Path
    is_private: bool = False
    is_gated: bool = False
    refs: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"hf://datasets/{self.name}"

    def commit(self, *refs: str) -> str:
        """Make a commit of what is in the folder, which `refs`, or else `main`, name then. Returns its hash."""
        sha = hashlib.sha1(f"{self.name} {len(list(self.kept.iterdir()))}".encode()).hexdigest()
        shutil.copytree(self.folder, self.kept / sha)
        self.refs |= dict.fromkeys(refs or ("main",), sha)
        return sha

    def at(self, revision: str) -> Path | None:
        """The files of a branch, a tag or a commit."""
        folder = self.kept / self.refs.get(revision, revision)
        return folder if folder.is_dir() else None


class HubServer:
    """Serves data sets. Files of `large_bytes` and more are at a CDN, whose signed addresses are valid until `expire`;
    others are reached by a relative redirect, as on the hub. The next requests meet `faults`, one each: a status to
    answer with; `cut`, `whole`, `hang` or `trickle`, as of `tests.object_store.FaultyProxy`."""

    def __init__(self, folder: Path, *, page: int = 1000, large_bytes: int = 1000) -> None:
        self.folder, self.page, self.large_bytes = folder, page, large_bytes
        self.datasets: dict[str, HubDataset] = {}
        self.faults: collections.deque[int | str] = collections.deque()
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, path and range of each request."""
        self.tokens_at_cdn: set[str | None] = set()
        self.connections: set[object] = set()
        self._signatures, self._signature = itertools.count(1), 0
        hub = self

        class Handler(_Handler):
            server_of = hub

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self.url, self.cdn_url = f"http://127.0.0.1:{self.port}", f"http://localhost:{self.port}/cdn"
        self.expire()
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def add(self, name: str = "us/pets", **settings: Any) -> HubDataset:
        """A new data set, empty and without a commit."""
        folder, kept = self.folder / name / "files", self.folder / name / "commits"
        folder.mkdir(parents=True)
        kept.mkdir()
        self.datasets[name] = HubDataset(name, folder, kept, **settings)
        return self.datasets[name]

    def expire(self) -> None:
        """Let the addresses at the CDN that were given so far be invalid."""
        self._signature = next(self._signatures)

    @property
    def signature(self) -> str:
        """What is in valid addresses at the CDN."""
        return f"signature={self._signature}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def hub_server(folder: Path, **settings: Any) -> Iterator[HubServer]:
    """A server with its data sets below `folder`."""
    server = HubServer(folder, **settings)
    try:
        yield server
    finally:
        server.close()


_API = r"/api/datasets/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.+))?)?"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and content are sent together
    server_of: HubServer
    _fault: int | str | None

    def do_GET(self) -> None:
        hub = self.server_of
        hub.connections.add(self.connection)
        hub.requests.append((self.command, self.path, self.headers["Range"]))
        self._body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self._fault = hub.faults.popleft() if hub.faults else None
        if self._fault == "hang":
            self.connection.recv(1)  # until the client gives up
            self.close_connection = True
        elif isinstance(self._fault, int):
            self._error(self._fault, "", "the server is at fault")
        else:
            self._answer()

    do_HEAD = do_POST = do_GET

    def _answer(self) -> None:
        hub, url = self.server_of, urlsplit(self.path)
        if match := re.fullmatch(r"/cdn/(.+)/([0-9a-f]{40})/(.+)", url.path):
            hub.tokens_at_cdn.add(self.headers["Authorization"])
            if url.query != hub.signature:
                return self._error(403, "", "Request has expired")
            folder = hub.datasets[match[1]].at(match[2])
            assert folder is not None
            return self._content(folder / unquote(match[3]))
        if match := re.fullmatch(_API, url.path):
            name, action, revision, path = match.groups()
        elif match := re.fullmatch(r"(/api/resolve-cache)?/datasets/([^/]+/[^/]+)(?:/resolve)?/([^/]+)/(.+)", url.path):
            name, action, revision, path = match[2], "cached" if match[1] else "resolve", match[3], match[4]
        else:
            return self._error(404, "", "Not Found")
        is_known = self.headers["Authorization"] == f"Bearer {TOKEN}"
        data = hub.datasets.get(name)
        if data is None or (data.is_private and not is_known):
            return self._error(404 if is_known else 401, "RepoNotFound", "Repository not found")
        if data.is_gated and not is_known and action in ("resolve", "cached"):
            return self._error(401, "GatedRepo", f"Access to dataset {name} is restricted. You must have access to it.")
        folder = data.at(unquote(revision or "main"))
        if folder is None:
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {unquote(revision)}")
        path = unquote(path or "")
        if action in (None, "revision"):
            return self._json({"id": name, "sha": folder.name})
        if action == "tree":
            return self._tree(folder, path, parse_qs(url.query), unquote(revision))
        if action == "paths-info":
            wanted = parse_qs(self._body.decode())["paths"]
            return self._json([self._entry(folder, folder / one) for one in wanted if (folder / one).exists()])
        file = folder / path
        if not file.is_file():
            return self._error(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": folder.name, "ETag": f'"{_blob_id(file)}"'}
        if file.stat().st_size >= hub.large_bytes:
            headers |= {"X-Linked-Size": str(file.stat().st_size), "X-Linked-ETag": f'"{_sha256(file)}"'}
            target = f"{hub.cdn_url}/{name}/{folder.name}/{quote(path)}?{hub.signature}"
            return self._send(302, b"", headers | {"Location": target})
        if action == "resolve":
            target = f"/api/resolve-cache/datasets/{name}/{folder.name}/{quote(path, safe='')}"
            return self._send(307, b"", headers | {"Location": target})
        return self._content(file, headers)

    def _tree(self, folder: Path, path: str, query: dict[str, list[str]], revision: str) -> None:
        below = folder / path
        if not below.exists():
            return self._error(404, "EntryNotFound", f"{path} does not exist on {revision}")
        is_deep = query.get("recursive", ["false"])[0].lower() == "true"
        found = [below] if below.is_file() else sorted(below.rglob("*") if is_deep else below.iterdir())
        start = int(query.get("cursor", ["0"])[0])
        end = start + self.server_of.page
        headers = {}
        if end < len(found):
            more = f"{self.server_of.url}{urlsplit(self.path).path}?recursive={is_deep}&cursor={end}"
            headers["Link"] = f'<{more}>; rel="next"'
        return self._json([self._entry(folder, one) for one in found[start:end]], headers)

    def _entry(self, folder: Path, file: Path) -> dict[str, Any]:
        path = str(file.relative_to(folder))
        if file.is_dir():
            return {"type": "directory", "oid": hashlib.sha1(path.encode()).hexdigest(), "size": 0, "path": path}
        size = file.stat().st_size
        entry: dict[str, Any] = {"type": "file", "oid": _blob_id(file), "size": size, "path": path}
        if size >= self.server_of.large_bytes:
            entry["lfs"] = {"oid": _sha256(file), "size": size, "pointerSize": 134}
        return entry

    def _content(self, file: Path, headers: dict[str, str] | None = None) -> None:
        content, status, headers = file.read_bytes(), 200, {"Accept-Ranges": "bytes"} | (headers or {})
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")
        if match and self._fault != "whole":
            start, end, whole = int(match[1]), int(match[2]) + 1, len(content)
            if start >= whole:
                return self._send(416, b"", {"Content-Range": f"bytes */{whole}"})
            content, status = content[start:end], 206
            headers["Content-Range"] = f"bytes {start}-{start + len(content) - 1}/{whole}"
        return self._send(status, content, headers)

    def _json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _error(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message} if code else {"X-Error-Message": message}
        self._send(status, b"", headers)

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        with contextlib.suppress(OSError):  # the client may have given up
            if self._fault == "trickle":
                for byte in content:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    time.sleep(0.1)
            self.wfile.write(content[: len(content) // 2] if self._fault == "cut" else content)
            self.wfile.flush()
        if self._fault in ("cut", "trickle"):
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None: ...


def _blob_id(file: Path) -> str:
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
