"""The client of `msc://`: a profile of multi-storage-client.

Enters: the URL of a profile, keys. Leaves: what a `Store` returns. Guarantee: each request ends in bounded time;
listings and writes take as many requests as needed.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from bridge_data.errors import ConfigError
from bridge_data.storage.object_stores import (
    LONGEST_S,
    STATUS,
    Denied,
    Missing,
    ObjectInfo,
    RequestError,
    first_line,
    full_limit_s,
    is_transient_status,
)

NUM_THREADS = 16
T = TypeVar("T")


class MscStore:
    """The profile at the URL `base`, as described in the file MSC_CONFIG; `msc` is the module.

    It runs on its own threads: called from the main thread it is many times slower.

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
        """A `read` with a range fetches only that; `open` and `seek` would fetch the whole object."""
        limit_s = full_limit_s(num_bytes)
        content: bytes = self._done(self._client.read, key, byte_range=self._range(start, num_bytes), limit_s=limit_s)
        return content, None

    def read_all(self, key: str, at_most: int) -> bytes:
        content: bytes = self._done(self._client.read, key, limit_s=LONGEST_S)
        return content

    def info(self, key: str) -> ObjectInfo:
        meta = self._done(self._client.info, key, limit_s=LONGEST_S)
        if meta.type != "file":
            raise Missing(f"{key} is a folder")
        return _msc_info(meta)

    def list(self, folder: str) -> Iterator[tuple[str, ObjectInfo]]:
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


def _msc_info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta.content_length, f"{meta.etag} {meta.last_modified}")
