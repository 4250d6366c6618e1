"""The client of `hf://`: a data set on the Hugging Face hub, by the HTTP session of huggingface_hub.

Reads the URL of a data set, `hf://datasets/OWNER/NAME[@REVISION]`, and keys. Returns what a `Bucket` returns. Raises
`RequestError`; a data set on the hub is only read.

The revision is resolved to a commit once, and everything is read at that commit, so a push to the hub changes nothing
that is in use. Token, endpoint, proxies and offline mode are those of huggingface_hub (`HF_TOKEN`, `HF_ENDPOINT`,
`HF_HUB_OFFLINE`). Large files are at a CDN: the hub is asked for the address of a file once, and again when the address
has expired. Each request ends in bounded time. A store keeps no connection itself: those of huggingface_hub are closed
in a forked child.
"""

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from bridge_data.errors import ConfigError
from bridge_data.plugins.stores.store_requests import (
    FULL_S,
    HUB,
    Denied,
    Missing,
    RequestError,
    first_line,
    full_limit_s,
    is_transient_status,
)
from bridge_data.storage.store import Version

MAX_KNOWN_FILES = 1 << 17

MAX_WHOLE_BYTES = 16 << 20
"""A file up to this size may be answered whole when a range is asked for; files kept in git are smaller."""

READ_ONLY = (
    "data sets on the hub are only read. Write to a folder on a disk, then `hf upload OWNER/NAME FOLDER --repo-type "
    "dataset`"
)

_COMMIT = re.compile("[0-9a-f]{40}")


class _File(NamedTuple):
    info: Version
    url: str
    """Where the content is: at the hub, or at the address that the hub gave last."""


class HfBucket:
    """The data set at the URL `base`.

    Raises:
        ConfigError: in the hub's offline mode.
    """

    def __init__(self, base: str) -> None:
        import huggingface_hub.utils  # imported here: slow, and other stores do not need it

        hub: Any = huggingface_hub
        if hub.is_offline_mode():
            raise ConfigError(
                f"{base}: HF_HUB_OFFLINE is set, so nothing is read from the hub. Unset it, or give the path of a copy "
                "on a disk, as `hf download` makes one."
            )
        self._name, _, revision = base.removeprefix(HUB).partition("@")
        self._revision = unquote(revision) or None
        self._hub = hub
        self._endpoint: str = (os.environ.get("HF_ENDPOINT") or hub.constants.ENDPOINT).rstrip("/")
        self._lock = threading.Lock()
        self._commit = revision if _COMMIT.fullmatch(revision) else None
        self._files: dict[str, _File] = {}

    def pinned(self) -> str:
        """The URL of the data set with the commit that is read."""
        return f"{HUB}{self._name}@{self._at_commit()}"

    def read(self, key: str, start: int, num_bytes: int) -> tuple[bytes, Version]:
        file = self._file(key)
        try:
            return self._range(key, file, start, num_bytes), file.info
        except RequestError as fault:
            if fault.is_transient or self._is_hubs(file.url):
                raise
        # The address at the CDN may have expired.
        return self._range(key, file._replace(url=self._resolve_url(key)), start, num_bytes), file.info

    def read_all(self, key: str, at_most: int) -> bytes | int:
        num_bytes = self.info(key).num_bytes
        if num_bytes > at_most:
            return num_bytes
        return self.read(key, 0, num_bytes)[0] if num_bytes else b""

    def info(self, key: str) -> Version:
        return self._file(key).info

    def list(self, folder: str) -> Iterator[tuple[str, Version]]:
        prefix = f"{folder}/" if folder else ""
        path = f"/{quote(folder, safe='')}" if folder else ""
        url = f"{self._endpoint}/api/datasets/{self._name}/tree/{self._at_commit()}{path}?recursive=true"
        while url:
            answer, entries = self._json(url)
            for entry in entries:
                name = entry["path"]
                if entry["type"] == "file" and name.startswith(prefix):
                    info = Version(entry["size"], (entry.get("lfs") or entry)["oid"])
                    if name not in self._files:
                        self._remember(name, _File(info, self._resolve_url(name)))
                    yield name.removeprefix(prefix), info
            url = answer.links.get("next", {}).get("url")

    def write(self, key: str, content: bytes | Path) -> str | None:
        raise RequestError(READ_ONLY)

    def delete(self, key: str) -> None:
        raise RequestError(READ_ONLY)

    def _at_commit(self) -> str:
        with self._lock:
            if self._commit is None:
                at = "" if self._revision is None else f"/revision/{quote(self._revision, safe='')}"
                _, described = self._json(f"{self._endpoint}/api/datasets/{self._name}{at}?expand=sha")
                self._commit = str(described["sha"])
            return self._commit

    def _file(self, key: str) -> _File:
        file = self._files.get(key)
        if file is None:
            url = self._resolve_url(key)
            with self._request_errors():
                meta = self._hub.get_hf_file_metadata(url, timeout=FULL_S, endpoint=self._endpoint)
            if meta.size is None or meta.etag is None:
                raise RequestError("the hub told no size or no ETag")
            file = self._remember(key, _File(Version(meta.size, meta.etag), meta.location))
        return file

    def _remember(self, key: str, file: _File) -> _File:
        if len(self._files) >= MAX_KNOWN_FILES:
            self._files.clear()
        self._files[key] = file
        return file

    def _resolve_url(self, key: str) -> str:
        return f"{self._endpoint}/datasets/{self._name}/resolve/{self._at_commit()}/{quote(key)}"

    def _is_hubs(self, url: str) -> bool:
        return url.startswith(f"{self._endpoint}/")

    def _range(self, key: str, file: _File, start: int, num_bytes: int) -> bytes:
        """The range of the content at the file's URL; where it was in the end is remembered."""
        answer, content = self._get(file.url, num_bytes, {"Range": f"bytes={start}-{start + num_bytes - 1}"})
        self._remember(key, file._replace(url=str(answer.url)))
        return content if answer.status_code == 206 else content[start : start + num_bytes]

    def _json(self, url: str) -> tuple[Any, Any]:
        """(the answer to a GET, its value)."""
        answer, content = self._get(url)
        with self._request_errors():
            return answer, json.loads(content)

    def _get(self, url: str, num_bytes: int = 0, headers: dict[str, str] | None = None) -> tuple[Any, bytes]:
        """(the answer to a GET for about `num_bytes` bytes, its content), in bounded time."""
        limit_s, most_bytes = full_limit_s(num_bytes), max(num_bytes, MAX_WHOLE_BYTES)
        end_s, have, pieces = time.monotonic() + limit_s, 0, []
        token = None if self._is_hubs(url) else False  # the token is for the hub, not for a CDN
        # What is compressed would not be the range of the file.
        headers = {**self._hub.utils.build_hf_headers(token=token), "Accept-Encoding": "identity", **(headers or {})}
        options = {"headers": headers, "timeout": limit_s, "follow_redirects": True}
        with self._request_errors(), self._hub.get_session().stream("GET", url, **options) as answer:
            self._hub.hf_raise_for_status(answer)
            for piece in answer.iter_bytes():
                pieces.append(piece)
                have += len(piece)
                if have > most_bytes:
                    raise RequestError("the server answers a range with the whole file: samples cannot be read from it")
                if time.monotonic() > end_s:
                    raise RequestError(f"no whole answer within {limit_s:g} s", is_transient=True)
        return answer, b"".join(pieces)

    @contextlib.contextmanager
    def _request_errors(self) -> Iterator[None]:
        """Turn the errors of huggingface_hub and of its HTTP library into a `RequestError`."""
        try:
            yield
        except RequestError:
            raise
        except self._hub.errors.HfHubHTTPError as error:
            raise self._fault(error) from None  # it has the message of the error
        except (ValueError, TypeError, self._hub.errors.OfflineModeIsEnabled) as error:
            raise RequestError(first_line(error)) from error
        except Exception as error:  # each release of huggingface_hub has an HTTP library with errors of its own
            raise RequestError(first_line(error), is_transient=True) from error

    def _fault(self, error: Any) -> RequestError:
        """The fault that an HTTP status tells; the hub answers 401 or 404 if a data set is hidden from the user."""
        answer = error.response
        status, code = answer.status_code, answer.headers.get("X-Error-Code")
        text = f"{status} {error.server_message or code or answer.reason_phrase}"  # the message would have a signed URL
        page = f"{self._endpoint}/datasets/{self._name}"
        if status in (401, 403) or code == "RepoNotFound":
            fix = (
                f"If there is a data set {self._name}, it is private or gated: set HF_TOKEN to a token that may read "
                f"it, and accept its conditions at {page}."
            )
            return Denied(text, fix)
        if code == "RevisionNotFound":
            return RequestError(f"there is no revision {self._revision!r}; see {page}/tree/main ({text})")
        if status == 404:
            return Missing(text)
        return RequestError(text, is_transient=is_transient_status(status))
