"""The clients of object stores that this process has: `s3://`, `gs://` and `az://` by obstore, `msc://` by
multi-storage-client.

Enters: a URL. Leaves: a `Store` and the key in it. Guarantee: a client is made when a process first needs it, and is
shared by its threads; none is taken along into a forked child, where it would hang. Credentials and endpoints are what
the library in question reads from the environment.
"""

import importlib
import os
import threading
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.storage.store import Store
from bridge_data.storage.urls import split_url


class _Clients:
    """The stores that this process has opened, by their URLs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stores: dict[str, Store] = {}
        self.of_the_parent: list[dict[str, Store]] = []
        """Held so that nothing is freed: the threads that would have to take part stayed behind in the parent."""

    def after_fork(self) -> None:
        """In a forked child: begin anew, with a lock that no thread of the parent can hold."""
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
        from bridge_data.storage.msc_client import MscStore

        return MscStore(base, _needed("multistorageclient", base))
    if _clients.of_the_parent:
        raise ConfigError(
            f"{base}: this process was forked from one that had read from an object store, and the client does not "
            'survive a fork. Start workers by start_method="server", the default, or "spawn".'
        )
    from bridge_data.storage.obstore_client import ObstoreStore

    return ObstoreStore(base, _needed("obstore", base))


def _needed(module: str, base: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'{base}: reading it takes the package {error.name}: pip install "bridge-data[s3]"'
        ) from error
