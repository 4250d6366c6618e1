"""What this package takes from an installed Megatron-Bridge: its dataset config as a base class, and its encoders.

Enters: a config class of ours, a task-encoder config of Bridge. Leaves: a class that is both ours and Bridge's, a task
encoder. Guarantee: importing this module imports nothing of Bridge; only making a config does.

Source: the names are those of Megatron-Bridge 0.6.
"""

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, Protocol, TypeGuard, TypeVar

from bridge_data.energon import replace_energon
from bridge_data.errors import ConfigError
from bridge_data.task import TaskEncoder

C = TypeVar("C")

PLAIN_CLASS = "_plain_class"
"""The attribute of a class made by `bridge_class` that holds the class it was made for."""

_BUILDERS = "megatron.bridge.data.builders.energon"
_PROVIDERS = "megatron.bridge.data.utils"
_TARGETS = "megatron.bridge.utils.instantiate_utils"


_made: dict[type[Any], type[Any]] = {}


def bridge_class(config: type[C], build: Callable[..., Any]) -> type[C]:
    """`config`, or where Bridge is installed, the class that is also Bridge's `EnergonDatasetConfig`, and whose data
    Bridge builds with `build`. It is made once.

    Bridge's `ConfigContainer` knows by its own class which batch sizes to compare, and what to pad and pack.
    """
    if config not in _made:
        _made[config] = _joined(config, build) if _is_installed() else config
    return _made[config]


def _joined(config: type[C], build: Callable[..., Any]) -> type[C]:
    try:
        theirs = importlib.import_module(_BUILDERS).EnergonDatasetConfig
        builders = importlib.import_module(_PROVIDERS)._REGISTRY
        allow = importlib.import_module(_TARGETS).register_allowed_target_prefix
    except (ImportError, AttributeError) as error:
        warnings.warn(
            f"megatron.bridge is installed, and cannot be used ({error}), so its checks of the configuration do not "
            f"know {config.__name__}: batch sizes are not compared, padding and packing not derived",
            stacklevel=5,
        )
        return config
    if issubclass(config, theirs):
        return config
    names = {"__module__": config.__module__, "__qualname__": config.__qualname__, "__doc__": config.__doc__}
    both: type[C] = type(config.__name__, (config, theirs), names | {PLAIN_CLASS: config})
    others = dict(builders)  # Bridge takes the first that fits, and its own would
    builders.clear()
    builders[both] = build
    builders.update(others)
    allow(config.__module__)  # so that the YAML of a run may name it
    return both


class BridgeEncoderConfig(Protocol):
    """A task-encoder config of Bridge."""

    def validate(self) -> None:
        """Raises a ValueError for a setting that is wrong."""


def is_bridge_encoder(value: Any) -> TypeGuard[BridgeEncoderConfig]:
    """Whether `value` is a task-encoder config of Bridge."""
    return type(value).__module__ == _BUILDERS


def build_bridge_encoder(config: Any) -> TaskEncoder[Any, Any, Any, Any]:
    """The task encoder that Bridge makes for `config`, a dataset config of ours with a task-encoder config of Bridge.

    Bridge's encoders import Energon, which this package replaces first.

    Raises:
        ConfigError: if they have already been imported with Energon itself.
    """
    replace_energon()
    encoder = importlib.import_module(_BUILDERS).build_energon_task_encoder(config)
    if not isinstance(encoder, TaskEncoder):
        raise ConfigError(
            f"{type(encoder).__name__} of Megatron-Bridge is not a task encoder of bridge_data: call "
            "bridge_data.energon.replace_energon() before Bridge's encoders are imported"
        )
    return encoder


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("megatron.bridge") is not None
    except ModuleNotFoundError:
        return False
