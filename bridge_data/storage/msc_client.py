"""A profile of multi-storage-client: `msc://profile/path`, as the file that MSC_CONFIG names says.

It runs on threads of its own: called from the main thread it is many times slower.
"""

import concurrent.futures
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from bridge_data.errors import ConfigError
from bridge_data.storage.retries import Denied, Missing, RequestError, may_pass
from bridge_data.storage.store import ObjectInfo, first_line

NUM_THREADS = 16

_STATUS = re.compile(r"status_code: (\d{3})")

T = TypeVar("T")


class MscStore:
    """The profile at the URL `base`; `msc` is the module.

    Raises:
        ConfigError: if there is no such profile, or it lacks something.
    """

    def __init__(self, base: str, msc: Any) -> None:
        self._range: Callable[[int, int], Any] = msc.types.Range
        self._threads = concurrent.futures.ThreadPoolExecutor(NUM_THREADS, "bridge_data msc")
        try:
            self._client, _ = msc.resolve_storage_client(f"{base}/")
        except Exception as error:
            raise ConfigError(f"{base}: cannot be opened: {first_line(error)}") from error

    def read(self, key: str, start: int, num_bytes: int) -> tuple[bytes, None]:
        """See `Store.read`. A `read` with a range asks for no more; `open` and `seek` would fetch the whole object."""
        content: bytes = self._done(self._client.read, key, byte_range=self._range(start, num_bytes))
        return content, None

    def read_all(self, key: str, at_most: int) -> bytes:
        """See `Store.read_all`."""
        content: bytes = self._done(self._client.read, key)
        return content

    def info(self, key: str) -> ObjectInfo:
        """See `Store.info`."""
        meta = self._done(self._client.info, key)
        if meta.type != "file":
            raise Missing(f"{key} is a folder")
        return ObjectInfo(meta.content_length, f"{meta.etag} {meta.last_modified}")

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """See `Store.list`."""
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
            raise RequestError(first_line(error), passing=may_pass(int(match[1]) if match else 0)) from error
