"""A bucket of S3, Google Cloud Storage or Azure, read by obstore.

Its own retries are off: those of `bridge_data.storage.retries` are bounded, and say what they did. A server that
answers a range with the whole object is refused by it.
"""

import importlib
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from bridge_data.errors import ConfigError
from bridge_data.storage.retries import Denied, Missing, RequestError, may_pass
from bridge_data.storage.store import ObjectInfo, first_line

_STATUS = re.compile(r"status code: (\d{3})")
_ANSWER = re.compile(r"<\?xml.*?<Code>(?P<code>\w+)</Code>.*", re.DOTALL)
_INSTANCE_METADATA = "169.254.169.254"
"""Where credentials are asked for if the environment has none, on machines of a cloud."""

T = TypeVar("T")


class ObstoreStore:
    """The bucket at the URL `base`; `obstore` is the module.

    Raises:
        ConfigError: if the environment lacks something that a client cannot be made without.
    """

    def __init__(self, base: str, obstore: Any) -> None:
        self._obstore = obstore
        try:
            # No client options: any would replace those that the environment gives, such as AWS_ALLOW_HTTP.
            self._bucket = importlib.import_module("obstore.store").from_url(base, retry_config={"max_retries": 0})
        except Exception as error:
            raise ConfigError(f"{base}: cannot be opened: {first_line(error)}") from error
        self._has_answered = False

    def read(self, key: str, start: int, num_bytes: int) -> tuple[memoryview, int]:
        """See `Store.read`."""

        def request() -> tuple[memoryview, int]:
            answer = self._obstore.get(self._bucket, key, options={"range": (start, start + num_bytes)})
            return memoryview(answer.bytes()), answer.meta["size"]

        return self._asked(request)

    def read_all(self, key: str, at_most: int) -> bytes | int:
        """See `Store.read_all`."""

        def request() -> bytes | int:
            answer = self._obstore.get(self._bucket, key)  # its head alone; the content comes when it is asked for
            size: int = answer.meta["size"]
            return answer.bytes().to_bytes() if size <= at_most else size

        return self._asked(request)

    def info(self, key: str) -> ObjectInfo:
        """See `Store.info`."""
        meta = self._asked(lambda: self._obstore.head(self._bucket, key))
        return ObjectInfo(meta["size"], f"{meta['e_tag']} {meta['version']} {meta['last_modified']}")

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """See `Store.list`."""
        prefix = f"{folder}/" if folder else ""
        try:
            for batch in self._obstore.list(self._bucket, prefix):
                for meta in batch:
                    yield meta["path"].removeprefix(prefix), meta["size"]
        except Exception as error:
            raise self._fault(error) from None  # which says what the error says

    def _asked(self, request: Callable[[], T]) -> T:
        try:
            answer = request()
        except Exception as error:
            raise self._fault(error) from None  # which says what the error says
        self._has_answered = True
        return answer

    def _fault(self, error: Exception) -> RequestError:
        text = _ANSWER.sub(lambda match: match["code"], first_line(error))
        match = _STATUS.search(text)
        status = int(match[1]) if match is not None else 0
        if isinstance(error, FileNotFoundError) or status == 404:
            return Missing(text)
        if _INSTANCE_METADATA in text:
            # Who never had an answer has no credentials; who had some meets a passing fault of their renewal.
            return RequestError(text, passing=True) if self._has_answered else Denied(f"no credentials: {text}")
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
        return RequestError(text, passing=isinstance(error, exceptions.GenericError) and may_pass(status))
