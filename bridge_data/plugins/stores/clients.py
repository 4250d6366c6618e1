"""The object-store clients of this process: `s3://`, `gs://` and `az://` by obstore, `msc://` by multi-storage-client,
`hf://` by huggingface_hub.

Reads a URL. Returns a `Bucket` and the key in it. A client is made when a process first needs it, and is shared by its
threads; none is used in a forked child, where it would hang. Each request ends in bounded time; listings and writes
take as many requests as needed. The libraries read credentials and endpoints from the environment. Raises `ConfigError`
if a client cannot be made.

Retries of obstore itself (`RetryConfig`) are off: they take a fixed time limit, which a request without an answer
always waits for; the limits here follow the usual time of a request (see `TimeLimits`).
"""

import contextlib
import dataclasses
import functools
import importlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from bridge_data.errors import ConfigError
from bridge_data.extensions import needed_package
from bridge_data.plugins.stores.hf_bucket import HfBucket
from bridge_data.plugins.stores.store_requests import (
    FULL_S,
    HUB,
    LONGEST_S,
    MAX_OPEN,
    STATUS,
    Bucket,
    Denied,
    Missing,
    RequestError,
    TimeLimits,
    first_line,
    full_limit_s,
    is_transient_status,
    split_url,
)
from bridge_data.storage.store import Version

T = TypeVar("T")
_ANSWER = re.compile(r"<\?xml.*?<Code>(?P<code>\w+)</Code>.*", re.DOTALL)

_LATE_AT_FIRST = 8
"""A client that answered none of its first requests in time is no longer used after this many."""

_INSTANCE_METADATA = "169.254.169.254"
"""The metadata service of cloud machines, asked for credentials if the environment has none."""


class _Clients:
    """The buckets that this process has opened, by their URLs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.buckets: dict[str, Bucket] = {}
        self.of_the_parent: list[dict[str, Bucket]] = []
        """Kept, as freeing them would need threads of the parent."""

    def after_fork(self) -> None:
        """In a forked child: start with no clients, and a lock that no thread of the parent can hold."""
        if self.buckets:
            self.of_the_parent.append(self.buckets)
        self.lock, self.buckets = threading.Lock(), {}


_clients = _Clients()
os.register_at_fork(after_in_child=_clients.after_fork)


def open_bucket(url: str) -> tuple[Bucket, str]:
    """(the bucket of `url`, the key of `url` in it).

    Raises:
        ConfigError: for a package that is not installed, or settings that do not fit.
    """
    base, key = split_url(url)
    bucket = _clients.buckets.get(base)
    if bucket is None:
        with _clients.lock:
            bucket = _clients.buckets.get(base) or _opened(base)
            _clients.buckets[base] = bucket
    return bucket, key


def has_clients() -> bool:
    """Whether this process has clients, which a forked child cannot use."""
    return bool(_clients.buckets)


def _opened(base: str) -> Bucket:
    if base.startswith("msc://"):
        return MscBucket(base, _needed("multistorageclient", base))
    if base.startswith(HUB):
        return HfBucket(base)
    if _clients.of_the_parent:
        raise ConfigError(
            f"{base}: this process was forked from one that had read from an object store, and the client does not "
            'survive a fork. Start workers by start_method="server", the default, or "spawn".'
        )
    return ObstoreBucket(base, _needed("obstore", base))


def _needed(module: str, base: str) -> Any:
    return needed_package(module, f"{base}: reading it")


_NO_RETRIES = {"max_retries": 0}

_PART_BYTES, _MAX_PARTS = 16 << 20, 9_000
"""Files are written in parts of this size, or larger ones to stay within the maximum number of parts."""

_PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}

_CLIENT_OPTIONS = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "default_content_type",
    "http1_only",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_url",
    "proxy_ca_certificate",
    "proxy_excludes",
    "user_agent",
)
"""Client options that the environment may set, after the prefix of the kind of store."""


@dataclasses.dataclass(slots=True)
class _Client:
    """A client that abandons requests after a time limit."""

    bucket: Any
    has_answered: bool = False
    num_late: int = 0

    @property
    def is_useless(self) -> bool:
        """Whether no request was ever in time: getting credentials may take longer than the limit."""
        return not self.has_answered and self.num_late >= _LATE_AT_FIRST


def _info(meta: Any) -> Version:
    """The version is the ETag; in stores without ETags, version and modification time."""
    etag = (meta["e_tag"] or "").strip('"')
    return Version(meta["size"], etag or f"{meta['version']} {meta['last_modified']}")


class ObstoreBucket:
    """The bucket of S3, Google Cloud Storage or Azure at the URL `base`; `obstore` is the module.

    Its own retries are off: those of `store_requests` are bounded and logged. A late request is cancelled and repeated
    (see `TimeLimits`), unless the environment sets another time (AWS_TIMEOUT). It refuses a server that answers a range
    with the whole object.

    Raises:
        ConfigError: if the environment lacks something that a client cannot be made without.
    """

    def __init__(self, base: str, obstore: Any) -> None:
        self._base, self._obstore = base, obstore
        try:
            # No client options: they would replace those of the environment, such as AWS_ALLOW_HTTP.
            self._open: Callable[..., Any] = importlib.import_module("obstore.store").from_url
            self._bucket = self._open(base, retry_config=_NO_RETRIES)
        except Exception as error:
            raise ConfigError(f"{base}: cannot be opened: {first_line(error)}") from error
        self._has_answered = False
        self._limits = TimeLimits()
        self._clients: dict[float, _Client] = {}

    def read(self, key: str, start: int, num_bytes: int) -> tuple[memoryview, Version]:

        def request(bucket: Any) -> tuple[memoryview, Version]:
            answer = self._obstore.get(bucket, key, options={"range": (start, start + num_bytes)})
            return memoryview(answer.bytes()), _info(answer.meta)

        return self._asked(request, num_bytes)

    def read_all(self, key: str, at_most: int) -> bytes | int:

        def request(bucket: Any) -> bytes | int:
            answer = self._obstore.get(bucket, key)  # only the head; the content comes on demand
            size: int = answer.meta["size"]
            return answer.bytes().to_bytes() if size <= at_most else size

        return self._asked(request, at_most)

    def info(self, key: str) -> Version:
        return _info(self._asked(lambda bucket: self._obstore.head(bucket, key), 0))

    def list(self, folder: str) -> Iterator[tuple[str, Version]]:
        prefix = f"{folder}/" if folder else ""
        try:
            for batch in self._obstore.list(self._client(FULL_S).bucket, prefix):  # the limit applies to each page
                for meta in batch:
                    yield meta["path"].removeprefix(prefix), _info(meta)
        except Exception as error:
            raise self._fault(error) from None  # it has the message of the error

    def write(self, key: str, content: bytes | Path) -> str | None:
        parts: dict[str, Any] = {"use_multipart": False}
        if isinstance(content, Path):
            num_bytes = content.stat().st_size
            part_bytes = max(_PART_BYTES, -(-num_bytes // _MAX_PARTS))
            parts = {"use_multipart": num_bytes > _PART_BYTES, "chunk_size": part_bytes}
        try:
            answer = self._obstore.put(self._client(LONGEST_S).bucket, key, content, **parts)
        except Exception as error:
            raise self._fault(error) from None  # it has the message of the error
        return (answer["e_tag"] or "").strip('"') or None

    def delete(self, key: str) -> None:
        try:
            self._obstore.delete(self._client(FULL_S).bucket, key)
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._fault(error) from None  # it has the message of the error

    def _asked(self, request: Callable[[Any], T], num_bytes: int) -> T:
        """The bucket's answer to a request for about `num_bytes` bytes, which is repeated if it takes too long."""
        limits = self._limits.of(num_bytes)
        for limit_s in limits:
            is_last = limit_s == limits[-1]
            client = self._client(limit_s)
            if client.is_useless and not is_last:
                continue
            start = time.monotonic()
            try:
                answer = request(client.bucket)
            except Exception as error:
                took_s = time.monotonic() - start
                if took_s < 0.9 * limit_s:
                    raise self._fault(error) from None  # it has the message of the error
                client.num_late += 1
                if is_last:
                    text = f"no whole answer within {took_s:.0f} s: {first_line(error)}"
                    raise RequestError(text, is_transient=True) from None
                continue
            client.has_answered = self._has_answered = True
            self._limits.note(num_bytes, time.monotonic() - start)
            return answer
        raise AssertionError  # the last attempt returns or raises

    def _client(self, limit_s: float) -> "_Client":
        """The client that abandons requests after `limit_s`; each has its own connections."""
        client = self._clients.get(limit_s)
        if client is None:
            client = self._clients.setdefault(limit_s, _Client(self._made(limit_s)))
        return client

    def _made(self, limit_s: float) -> Any:
        prefix = _PREFIXES[self._base.partition("://")[0]]
        if f"{prefix}TIMEOUT" in os.environ:
            return self._bucket
        given = {name: os.environ.get(f"{prefix}{name.upper()}") for name in _CLIENT_OPTIONS}
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        options["timeout"] = f"{limit_s * 1000:.0f}ms"
        return self._open(self._base, retry_config=_NO_RETRIES, client_options=options)

    def _fault(self, error: Exception) -> RequestError:
        text = _ANSWER.sub(lambda match: match["code"], first_line(error))
        match = STATUS.search(text)
        status = int(match[1]) if match is not None else 0
        if isinstance(error, FileNotFoundError) or status == 404:
            return Missing(text)
        if _INSTANCE_METADATA in text:
            # Before the first answer, credentials are missing; later, their renewal failed, which is transient.
            return RequestError(text, is_transient=True) if self._has_answered else Denied(f"no credentials: {text}")
        exceptions = self._obstore.exceptions
        denials = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        if isinstance(error, denials) or status in (401, 403):
            return Denied(text)
        if "non-partial" in text:
            return RequestError(
                f"the server answers a range with the whole object, so samples cannot be read from it: {text}. Serve "
                "the data by another one, or copy them to a disk."
            )
        if "builder error" in text:
            return RequestError(f"{text}. For an endpoint with http:// set AWS_ALLOW_HTTP=true.")
        return RequestError(
            text, is_transient=isinstance(error, exceptions.GenericError) and is_transient_status(status)
        )


class MscBucket:
    """The profile at the URL `base`, as described in the file MSC_CONFIG; `msc` is the module.

    It runs on its own threads: called from the main thread it is many times slower.

    Raises:
        ConfigError: if there is no such profile, or it lacks something.
    """

    def __init__(self, base: str, msc: Any) -> None:
        self._range: Callable[[int, int], Any] = msc.types.Range
        import concurrent.futures  # imported here: slow, and other stores do not need it

        self._threads = concurrent.futures.ThreadPoolExecutor(MAX_OPEN, "bridge_data msc")
        try:
            self._client, _ = msc.resolve_storage_client(f"{base}/")
        except Exception as error:
            raise ConfigError(f"{base}: cannot be opened: {first_line(error)}") from error

    def read(self, key: str, start: int, num_bytes: int) -> tuple[bytes, None]:
        """A `read` with a range fetches only that; `open` and `seek` would fetch the whole object."""
        limit_s = full_limit_s(num_bytes)
        content: bytes = self._done(self._client.read, key, byte_range=self._range(start, num_bytes), limit_s=limit_s)
        return content, None

    def read_all(self, key: str, at_most: int) -> bytes:
        content: bytes = self._done(self._client.read, key, limit_s=LONGEST_S)
        return content

    def info(self, key: str) -> Version:
        meta = self._done(self._client.info, key, limit_s=LONGEST_S)
        if meta.type != "file":
            raise Missing(f"{key} is a folder")
        return _msc_info(meta)

    def list(self, folder: str) -> Iterator[tuple[str, Version]]:
        prefix = f"{folder}/" if folder else ""
        for meta in self._done(lambda: [*self._client.list(path=prefix)], limit_s=None):
            yield meta.key.lstrip("/").removeprefix(prefix), _msc_info(meta)

    def write(self, key: str, content: bytes | Path) -> str | None:
        if isinstance(content, Path):
            self._done(self._client.upload_file, key, str(content), limit_s=None)
        else:
            self._done(self._client.write, key, content, limit_s=LONGEST_S)
        return None

    def delete(self, key: str) -> None:
        with contextlib.suppress(Missing):
            self._done(self._client.delete, key, limit_s=LONGEST_S)

    def _done(self, action: Callable[..., T], *arguments: Any, limit_s: float | None, **settings: Any) -> T:
        future = self._threads.submit(functools.partial(action, *arguments, **settings))
        try:
            return future.result(limit_s)
        except TimeoutError as error:
            if future.done():  # it is one of the client
                raise RequestError(first_line(error), is_transient=True) from error
            future.cancel()
            raise RequestError(f"no whole answer within {limit_s:g} s", is_transient=True) from None
        except FileNotFoundError as error:
            raise Missing(first_line(error)) from error
        except PermissionError as error:
            raise Denied(first_line(error)) from error
        except (ValueError, TypeError, NotImplementedError) as error:
            raise RequestError(first_line(error)) from error
        except Exception as error:
            match = STATUS.search(str(error))
            raise RequestError(
                first_line(error), is_transient=is_transient_status(int(match[1]) if match else 0)
            ) from error


def _msc_info(meta: Any) -> Version:
    return Version(meta.content_length, f"{meta.etag} {meta.last_modified}")
