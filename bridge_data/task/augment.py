"""A task encoder around another one."""

import functools
from collections.abc import Mapping
from typing import Any

from bridge_data.samples import CrudeSample
from bridge_data.task.cooking import Cooker
from bridge_data.task.stores import FileStore
from bridge_data.task.task_encoder import (
    HOOKS,
    T_batch,
    T_encoded_sample,
    T_raw_batch,
    T_sample,
    TaskEncoder,
    stateless,
)

_ATTRIBUTES = ("decoder", "cookers", "__default_failure_tolerance__")


class AugmentTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """A task encoder around another one: hooks that a subclass does not override are those of `task_encoder`.

    In an overridden hook, `super()` calls that of the inner encoder. Decoder, cookers and failure tolerance are those
    of the inner encoder, unless the subclass has its own.

    >>> from bridge_data import DefaultTaskEncoder, TextSample
    >>> class Lower(AugmentTaskEncoder):
    ...     @stateless
    ...     def encode_sample(self, sample):
    ...         sample.text = sample.text.lower()
    ...         return super().encode_sample(sample)
    >>> Lower(DefaultTaskEncoder()).encode_sample(TextSample(__key__="1", text="ABC")).text
    'abc'
    """

    def __init__(self, task_encoder: TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]) -> None:
        self._task_encoder = task_encoder
        own = [vars(cls) for cls in type(self).__mro__[: type(self).__mro__.index(AugmentTaskEncoder)]]
        for name in _ATTRIBUTES:
            if not any(name in attributes for attributes in own):
                setattr(self, name, getattr(task_encoder, name))

    @property
    def task_encoder(self) -> TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]:
        """The inner encoder."""
        return self._task_encoder

    @property
    def most_packs(self) -> int | None:
        """That of the inner encoder."""
        return self._task_encoder.most_packs

    @stateless
    def cook_crude_sample(
        self,
        sample: T_sample | CrudeSample,
        cooker: Cooker[T_sample] | None = None,
        aux: Mapping[str, FileStore[Any]] | None = None,
    ) -> T_sample:
        given = (cooker, aux) if cooker is not None else ()  # the inner hook may take only the sample
        return self._task_encoder.cook_crude_sample(sample, *given)


def _of_the_inner_encoder(name: str) -> Any:
    @functools.wraps(getattr(TaskEncoder, name))
    def hook(self: AugmentTaskEncoder[Any, Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        return getattr(self.task_encoder, name)(*args, *kwargs.values())  # whatever its parameter is called

    return hook


for _name in {*HOOKS, "batch_cost", "costs", "empty_batch"} - {"cook_crude_sample"}:
    setattr(AugmentTaskEncoder, _name, _of_the_inner_encoder(_name))
