"""How the core finds what is not in it: plug-ins of this package, then those of other packages.

Reads a kind of extension and a name. Returns the object that a plug-in offers under it. Raises `ConfigError` if nobody
does.

| kind | name | what is offered | who asks |
|---|---|---|---|
| `formats` | an ending of paths, or a word | a class of `plan.formats.Format` | `plan.formats` |
| `stores` | a URL scheme | a class of `storage.store.Store` | `storage` |
| `nodes` | a key of metadatasets | a function that declares the node | `plan.declared` |
| `withheld` | what lists are beside | a function that finds lists of forgotten samples | `data.withheld` |
| `extras` | the name in a state | a class of `order.extras.StateExtra` | `order.extras` |
| `recorders` | the name of the extra | a class of `order.extras.Recorder` | `loader` |
| `pools` | the name in `workers=...` | a dataclass with the method of `run_options.PoolOptions` | `loader` |
| `commands` | a command of `bridge-data` | a click command | the command line |
| `converters` | a kind of tables | a function that opens them | `prepare.converters` |
| `features` | what a setting needs | as whoever reads the setting says | that module |

`bridge_data.plugins.TABLE` says, for each kind and name, in which module the object is; the module is imported when it
is asked for. A name that the table lacks is looked for among the entry points of installed packages, in the group
`bridge_data.<kind>`:

    [project.entry-points."bridge_data.stores"]
    mystore = "my_package.store:open_store"

Without the folder `bridge_data/plugins` the table is empty, and everything else works.
"""

import functools
import importlib
import sys
from collections.abc import Mapping
from typing import Any

from bridge_data.errors import ConfigError


@functools.cache
def plugin_table() -> Mapping[str, Mapping[str, str]]:
    """`bridge_data.plugins.TABLE`: by kind and name, `module:object`; empty if the plug-ins are not installed."""
    try:
        table: Mapping[str, Mapping[str, str]] = importlib.import_module("bridge_data.plugins").TABLE
    except ModuleNotFoundError as error:
        if error.name != "bridge_data.plugins":
            raise
        return {}
    return table


def names_of_extensions(kind: str) -> list[str]:
    """The names of one kind that our plug-ins offer."""
    return [*plugin_table().get(kind, ())]


@functools.cache
def _offered(kind: str, path: tuple[str, ...]) -> Mapping[str, list[Any]]:
    """The entry points of one kind that the packages on `path` have, by name."""
    found: dict[str, list[Any]] = {}
    for entry_point in importlib.import_module("importlib.metadata").entry_points(group=f"bridge_data.{kind}"):
        found.setdefault(entry_point.name, []).append(entry_point)
    return found


def names_of_others(kind: str) -> list[str]:
    """The names of one kind that other packages offer."""
    return [*_offered(kind, tuple(sys.path))]


def find_extension(kind: str, name: str) -> Any | None:
    """The object of this kind and name; None if nobody offers it.

    Raises:
        ConfigError: if two packages offer one, or it cannot be imported from the package that does.
    """
    if (target := plugin_table().get(kind, {}).get(name)) is not None:
        module, _, attribute = target.partition(":")
        return getattr(importlib.import_module(module), attribute)
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


def extension(kind: str, name: str, needed_by: str) -> Any:
    """The object of this kind and name, which the setting `needed_by` needs.

    Raises:
        ConfigError: if nobody offers it.
    """
    found = find_extension(kind, name)
    if found is None:
        raise ConfigError(
            f"{needed_by} needs the plug-in {name!r}, which is not installed: it is neither in bridge_data/plugins nor "
            f"among the entry points 'bridge_data.{kind}' of the installed packages"
        )
    return found
