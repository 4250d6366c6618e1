"""How the core finds what is not in it: plug-ins of this package, then those of other packages.

A `Seam` is where plug-ins are asked for: it has a kind, and the type of what they offer. It is declared beside the
protocol or the setting that it serves, and reads a name. Returns what a plug-in offers under that name. Raises
`ConfigError` if nobody does, which names the plug-in and the way out. A `Feature` is the seam of a single plug-in.

| kind | name | seam | what is offered |
|---|---|---|---|
| `formats` | an ending of paths, or a word | `plan.formats` | a class of `Format` |
| `stores` | a URL scheme | `storage.store` | a class of `Store` |
| `nodes` | a key of metadatasets | `plan.declared` | a `ReadNode` |
| `withheld` | what lists are beside | `data.withheld` | a function that finds lists of forgotten samples |
| `extras` | the name in a state | `order.extras` | a class of `StateExtra` |
| `pools` | a value of the option `workers` | `run_options` | a class of `PoolOptions` |
| `commands` | a command of `bridge-data` | `cli` | a click command |
| `packings` | a value of the option `packing` | `run_options` | a function of the data set that packs so |
| `converters` | a format of `convert` | `prepare.record_source` | a function that opens its sources |
| `executors` | a value of `--executor` | `prepare.executors` | a function that makes an `Executor` |
| `features` | what a setting needs | whoever reads the setting | as the `Feature` says |

`bridge_data.plugins.TABLE` says, for each kind and name, in which module the object is; the module is imported when it
is asked for. A name that the table lacks is looked for among the entry points of installed packages, in the group
`bridge_data.<kind>`:

    [project.entry-points."bridge_data.stores"]
    mystore = "my_package.store:open_store"

Without the folder `bridge_data/plugins` the table is empty, and everything else works.
"""

import contextlib
import functools
import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from bridge_data.errors import ConfigError

T = TypeVar("T")

_PLUGINS, _FOLDER = "bridge_data.plugins", "bridge_data/plugins"
_INSTALL = "Install bridge-data with its plug-ins, or do without what needs it"


class Seam(Generic[T]):
    """Where plug-ins of one kind are asked for. Each offers a T, under a name.

    >>> from collections.abc import Callable
    >>> Seam[Callable[[], str]]("greetings").find("morning") is None
    True
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    @property
    def names(self) -> list[str]:
        """The names that our plug-ins offer."""
        return [*_table().get(self.kind, ())]

    @property
    def names_of_others(self) -> list[str]:
        """The names that other packages offer."""
        return [*_offered(self.kind, tuple(sys.path))]

    def find(self, name: str) -> T | None:
        """What is offered under this name; None if nobody offers it.

        Raises:
            ConfigError: if two packages offer one, or it cannot be imported from where it is.
        """
        target, found = _table().get(self.kind, {}).get(name), None
        if target is not None:
            found = _of_ours(target)
        return _of_others(self.kind, name) if found is None else found

    def get(self, name: str, needed_by: str) -> T:
        """The extension of this name, which the setting `needed_by` needs.

        Raises:
            ConfigError: if nobody offers it.
        """
        found = self.find(name)
        if found is None:
            raise ConfigError(f"{needed_by} needs the plug-in {name!r}, which is not installed: {self.lacks}")
        return found

    @property
    def lacks(self) -> str:
        """Where a plug-in that is not installed was looked for, and the way out, for messages."""
        return f"it is neither in {_FOLDER} nor among the entry points 'bridge_data.{self.kind}'. {_INSTALL}"


class Feature(Generic[T]):
    """The seam of one plug-in, which offers a T: the extension `name` of the kind `features`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find(self) -> T | None:
        """What the plug-in offers; None if it is not installed. Errors as of `Seam.find`."""
        return Seam[T]("features").find(self.name)

    def get(self, needed_by: str) -> T:
        """What the plug-in offers, which the setting `needed_by` needs. Errors as of `Seam.get`."""
        return Seam[T]("features").get(self.name, needed_by)


@contextlib.contextmanager
def importing(needed_by: str, module: str = "", otherwise: str = "") -> Iterator[None]:
    """Turn a failed import, of `module` or of what that imports, into a `ConfigError` that names what is not installed,
    a plug-in of ours or a package of others, and says that `needed_by` needs it; `otherwise` is another way out."""
    try:
        yield
    except ImportError as error:
        name = str(error.name)
        is_missing = isinstance(error, ModuleNotFoundError)
        if is_missing and f"{name}.".startswith(f"{_PLUGINS}."):
            plugins = [one.split(".")[2] for one in (name, module) if one.startswith(f"{_PLUGINS}.")]
            what = f"the plug-in {plugins[0]!r}, which is" if plugins else "plug-ins, which are"
            raise ConfigError(f"{needed_by} needs {what} not installed: not in {_FOLDER}. {_INSTALL}") from error
        package = (name if is_missing or not module else module).partition(".")[0]
        if package in ("None", __name__.partition(".")[0]):  # of no package, or a fault of ours
            raise
        line = f"pip install {_INSTALLED_AS.get(package, package)}{otherwise and f', or {otherwise}'}"
        fault = "is not installed" if is_missing else f"cannot be imported ({error})"
        raise ConfigError(f"{needed_by} needs the package {package}, which {fault}: {line}") from error


def needed_package(module: str, needed_by: str, otherwise: str = "") -> Any:
    """A module of a package that few need, for `needed_by`.

    Raises:
        ConfigError: if it cannot be imported, with the command that installs it, or `otherwise`, another way out.
    """
    with importing(needed_by, module, otherwise):
        return importlib.import_module(module)


_INSTALLED_AS = {
    "jsonargparse": "'jsonargparse[signatures]'",
    "lance": "pylance",
    "multistorageclient": "'multi-storage-client[boto3]'",
    "prometheus_client": "prometheus-client",
}
"""The names by which packages are installed that have modules of other names."""


@functools.cache
def _table() -> Mapping[str, Mapping[str, str]]:
    """`bridge_data.plugins.TABLE`: by kind and name, `module:object`; empty if the plug-ins are not installed."""
    try:
        table: Mapping[str, Mapping[str, str]] = importlib.import_module(_PLUGINS).TABLE
    except ModuleNotFoundError as error:
        if error.name != _PLUGINS:
            raise
        return {}
    return table


def _of_ours(target: str) -> Any | None:
    """The object `module:object` of a plug-in of ours; None if its folder is not there."""
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        return None


@functools.cache
def _offered(kind: str, path: tuple[str, ...]) -> Mapping[str, list[Any]]:
    """The entry points of one kind that the packages on `path` have, by name."""
    found: dict[str, list[Any]] = {}
    for entry_point in importlib.import_module("importlib.metadata").entry_points(group=f"bridge_data.{kind}"):
        found.setdefault(entry_point.name, []).append(entry_point)
    return found


def _of_others(kind: str, name: str) -> Any | None:
    """What another package offers."""
    offered = _offered(kind, tuple(sys.path)).get(name, ())
    places = {f"{one.value} of {one.dist.name if one.dist else 'an unknown package'}": one for one in offered}
    if len(places) > 1:
        raise ConfigError(
            f"the entry point {name!r} of 'bridge_data.{kind}' is offered twice: {', '.join(places)}; uninstall one"
        )
    for place, entry_point in places.items():
        try:
            return entry_point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"the entry point {name!r} of 'bridge_data.{kind}', {place}: {error}") from error
    return None
