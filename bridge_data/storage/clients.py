"""The clients of object stores that this process has: `s3://`, `gs://` and `az://` by obstore, `msc://` by
multi-storage-client.

Enters: a URL. Leaves: a `Store` and the key in it. Guarantee: a client is made when a process first needs it, and is
shared by its threads; none is used in a forked child, where it would hang. The library in question reads
credentials and endpoints from the environment.
"""

import functools
import importlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from bridge_data.errors import ConfigError
from bridge_data.storage.object_stores import (
    Denied,
    Missing,
    ObjectInfo,
    RequestError,
    Store,
    first_line,
    is_transient_status,
    split_url,
)

_STATUS = re.compile(r"status[ _]code: (\d{3})")
T = TypeVar("T")
NUM_THREADS = 16
_ANSWER = re.compile(r"<\?xml.*?<Code>(?P<code>\w+)</Code>.*", re.DOTALL)

_INSTANCE_METADATA = "169.254.169.254"
"""The metadata service of cloud machines, asked for credentials if the environment has none."""


class _Clients:
    """The stores that this process has opened, by their URLs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stores: dict[str, Store] = {}
        self.of_the_parent: list[dict[str, Store]] = []
        """Kept so that nothing is freed: that would need threads of the parent."""

    def after_fork(self) -> None:
        """In a forked child: start with no clients, and a lock that no thread of the parent can hold."""
        if self.stores:
            self.of_the_parent.append(self.stores)
        self.lock, self.stores = threading.Lock(), {}


_clients = _Clients()
os.register_at_fork(after_in_child=_clients.after_fork)


def open_store(url: str) -> tuple[Store, str]:
    """(the store that `url` is in, the key of `url` there).

    Raises:
        ConfigError: for an unknown kind of store, a package that is not installed, or settings that do not fit.
    """
    base, key = split_url(url)
    store = _clients.stores.get(base)
    if store is None:
        with _clients.lock:
            store = _clients.stores.get(base) or _opened(base)
            _clients.stores[base] = store
    return store, key


def _opened(base: str) -> Store:
    if base.startswith("msc://"):
        return MscStore(base, _needed("multistorageclient", base))
    if _clients.of_the_parent:
        raise ConfigError(
            f"{base}: this process was forked from one that had read from an object store, and the client does not "
            'survive a fork. Start workers by start_method="server", the default, or "spawn".'
        )
    return ObstoreStore(base, _needed("obstore", base))


def _needed(module: str, base: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'{base}: reading it takes the package {error.name}: pip install "bridge-data[s3]"'
        ) from error


class MscStore:
    """The profile at the URL `base`, as the file that MSC_CONFIG names describes it; `msc` is the module.

    It runs on threads of its own: called from the main thread it is many times slower.

    Raises:
        ConfigError: if there is no such profile, or it lacks something.
    """

    def __init__(self, base: str, msc: Any) -> None:
        self._range: Callable[[int, int], Any] = msc.types.Range
        import concurrent.futures  # imported here: slow, and other stores do not need it

        self._threads = concurrent.futures.ThreadPoolExecutor(NUM_THREADS, "bridge_data msc")
        try:
            self._client, _ = msc.resolve_storage_client(f"{base}/")
        except Exception as error:
            raise ConfigError(f"{base}: cannot be opened: {first_line(error)}") from error

    def read(self, key: str, start: int, num_bytes: int) -> tuple[bytes, None]:
        """A `read` with a range asks for no more; `open` and `seek` would fetch the whole object."""
        content: bytes = self._done(self._client.read, key, byte_range=self._range(start, num_bytes))
        return content, None

    def read_all(self, key: str, at_most: int) -> bytes:
        content: bytes = self._done(self._client.read, key)
        return content

    def info(self, key: str) -> ObjectInfo:
        meta = self._done(self._client.info, key)
        if meta.type != "file":
            raise Missing(f"{key} is a folder")
        return ObjectInfo(meta.content_length, f"{meta.etag} {meta.last_modified}")

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        prefix = f"{folder}/" if folder else ""
        for meta in self._done(lambda: [*self._client.list(path=prefix)]):
            yield meta.key.lstrip("/").removeprefix(prefix), meta.content_length

    def _done(self, action: Callable[..., T], *arguments: Any, **settings: Any) -> T:
        try:
            return self._threads.submit(functools.partial(action, *arguments, **settings)).result()
        except FileNotFoundError as error:
            raise Missing(first_line(error)) from error
        except PermissionError as error:
            raise Denied(first_line(error)) from error
        except (ValueError, TypeError, NotImplementedError) as error:
            raise RequestError(first_line(error)) from error
        except Exception as error:
            match = _STATUS.search(str(error))
            raise RequestError(
                first_line(error), is_transient=is_transient_status(int(match[1]) if match else 0)
            ) from error


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["size"], f"{meta['e_tag']} {meta['version']} {meta['last_modified']}")


class ObstoreStore:
    """The bucket of S3, Google Cloud Storage or Azure at the URL `base`; `obstore` is the module.

    Its own retries are off: those of `object_stores` are bounded, and say what they did. It refuses a server that
    answers a range with the whole object.

    Raises:
        ConfigError: if the environment lacks something that a client cannot be made without.
    """

    def __init__(self, base: str, obstore: Any) -> None:
        self._obstore = obstore
        try:
            # No client options: they would replace those of the environment, such as AWS_ALLOW_HTTP.
            self._bucket = importlib.import_module("obstore.store").from_url(base, retry_config={"max_retries": 0})
        except Exception as error:
            raise ConfigError(f"{base}: cannot be opened: {first_line(error)}") from error
        self._has_answered = False

    def read(self, key: str, start: int, num_bytes: int) -> tuple[memoryview, ObjectInfo]:

        def request() -> tuple[memoryview, ObjectInfo]:
            answer = self._obstore.get(self._bucket, key, options={"range": (start, start + num_bytes)})
            return memoryview(answer.bytes()), _info(answer.meta)

        return self._asked(request)

    def read_all(self, key: str, at_most: int) -> bytes | int:

        def request() -> bytes | int:
            answer = self._obstore.get(self._bucket, key)  # its head alone; the content comes when it is asked for
            size: int = answer.meta["size"]
            return answer.bytes().to_bytes() if size <= at_most else size

        return self._asked(request)

    def info(self, key: str) -> ObjectInfo:
        return _info(self._asked(lambda: self._obstore.head(self._bucket, key)))

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        prefix = f"{folder}/" if folder else ""
        try:
            for batch in self._obstore.list(self._bucket, prefix):
                for meta in batch:
                    yield meta["path"].removeprefix(prefix), meta["size"]
        except Exception as error:
            raise self._fault(error) from None  # it has the message of the error

    def _asked(self, request: Callable[[], T]) -> T:
        try:
            answer = request()
        except Exception as error:
            raise self._fault(error) from None  # it has the message of the error
        self._has_answered = True
        return answer

    def _fault(self, error: Exception) -> RequestError:
        text = _ANSWER.sub(lambda match: match["code"], first_line(error))
        match = _STATUS.search(text)
        status = int(match[1]) if match is not None else 0
        if isinstance(error, FileNotFoundError) or status == 404:
            return Missing(text)
        if _INSTANCE_METADATA in text:
            # Without any answer so far there are no credentials; later it is a transient fault of their renewal.
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
