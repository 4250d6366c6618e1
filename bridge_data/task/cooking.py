"""Cookers: functions that turn crude samples into typed ones, chosen by the sub-flavors of the data set."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.samples import PROVENANCE, CrudeSample


@dataclasses.dataclass(frozen=True, slots=True)
class Cooker:
    """`cook(crude_sample) -> Sample`, for samples whose sub-flavors include all of `has_subflavors` (None: any)."""

    cook: Callable[..., Any]
    has_subflavors: dict[str, Any] | None = None

    def is_match(self, subflavors: dict[str, Any]) -> bool:
        """Whether this cooker takes samples with these sub-flavors."""
        return all(subflavors.get(name, _ABSENT) == value for name, value in (self.has_subflavors or {}).items())


_ABSENT = object()


def choose_cooker(cookers: Sequence[Cooker], sample: CrudeSample) -> Cooker:
    """The first cooker that takes the sample.

    Raises:
        ConfigError: naming the cookers tried, if none does.
    """
    subflavors = sample.get("__subflavors__") or {}
    for cooker in cookers:
        if cooker.is_match(subflavors):
            return cooker
    tried = ", ".join(f"{getattr(c.cook, '__name__', c.cook)} (has_subflavors={c.has_subflavors})" for c in cookers)
    raise ConfigError(
        f"no cooker takes crude sample {sample.get('__key__')} with subflavors {subflavors}; tried: {tried or 'none'}. "
        "Add a Cooker to the task encoder's `cookers`, or give the data set the subflavors that one asks for."
    )


def basic_sample_keys(crude_sample: CrudeSample) -> dict[str, Any]:
    """The provenance of a crude sample, to be passed on as keyword arguments of the cooked one."""
    return {name: crude_sample[name] for name in PROVENANCE if name in crude_sample}
