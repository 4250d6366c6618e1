"""`@stateless` and what it declares about a hook."""

import dataclasses
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from bridge_data.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

_ATTRIBUTE = "__bridge_data_declared__"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a hook says of itself: whether the random generators must be seeded around it, and how many failures in a
    row are left out (None: as many as the encoder says)."""

    seeded: bool = True
    failure_tolerance: float | None = None


@overload
def stateless(fn: Callable[P, R]) -> Callable[P, R]: ...
@overload
def stateless(
    fn: None = None, *, restore_seeds: bool = False, failure_tolerance: float | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def stateless(
    fn: Callable[..., Any] | None = None, *, restore_seeds: bool = False, failure_tolerance: float | None = None
) -> Callable[..., Any]:
    """Declare that a hook's result depends on its arguments alone.

    Plain `@stateless` says that the hook draws no random numbers, and spares the seeding of Python's, numpy's and
    torch's generators around it. With `restore_seeds=True`, as without the decorator, the generators are seeded from
    the sample, so that the same sample is augmented alike on any rank, worker or resume.

    `failure_tolerance` is how many failures of this hook in a row are left out; one more stops the run. So with 0 the
    first one does, and `math.inf` is no limit. None: the encoder's `__default_failure_tolerance__`.

    Raises:
        ConfigError: for a negative tolerance.
    """
    if failure_tolerance is not None:
        check_tolerance("stateless(failure_tolerance", failure_tolerance)

    def declare(hook: Callable[..., Any]) -> Callable[..., Any]:
        setattr(hook, _ATTRIBUTE, Declared(seeded=restore_seeds, failure_tolerance=failure_tolerance))
        return hook

    return declare if fn is None else declare(fn)


def check_tolerance(name: str, tolerance: Any) -> None:
    """See that a tolerance is a number of failures.

    Raises:
        ConfigError: naming the setting, if it is not.
    """
    if not isinstance(tolerance, (int, float)) or not tolerance >= 0:
        raise ConfigError(
            f"{name}={tolerance!r}): expected a number of failures in a row that are left out: 0 or more (0: the first "
            "one stops the run; math.inf: none does)"
        )


def declared(hook: Callable[..., Any]) -> Declared:
    """What `hook` declared; without `@stateless`, that it may draw random numbers."""
    return getattr(hook, _ATTRIBUTE, None) or Declared()
