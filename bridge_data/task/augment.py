"""A task encoder around another one."""

from collections.abc import Generator, Hashable, Mapping
from typing import Any

from bridge_data.samples import CrudeSample
from bridge_data.task.cooking import Cooker
from bridge_data.task.stores import FileStore
from bridge_data.task.task_encoder import T_batch, T_encoded_sample, T_raw_batch, T_sample, TaskEncoder, stateless

_ATTRIBUTES = ("decoder", "cookers", "__default_failure_tolerance__")


class AugmentTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """A task encoder around another one: hooks that a subclass does not override are those of `task_encoder`.

    In an overridden hook, `super()` calls that of the inner encoder. Decoder, cookers and failure tolerance are those
    of the inner encoder, unless the subclass has its own.
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

    @stateless
    def cook_crude_sample(
        self,
        sample: T_sample | CrudeSample,
        cooker: Cooker[T_sample] | None = None,
        aux: Mapping[str, FileStore[Any]] | None = None,
    ) -> T_sample:
        given = (cooker, aux) if cooker is not None else ()  # the inner hook may take only the sample
        return self._task_encoder.cook_crude_sample(sample, *given)

    @stateless
    def encode_sample(self, sample: T_sample) -> T_encoded_sample | Generator[T_encoded_sample, None, None]:
        return self._task_encoder.encode_sample(sample)

    @stateless
    def preencode_sample(self, sample: T_sample) -> T_sample | Generator[T_sample, None, None]:
        return self._task_encoder.preencode_sample(sample)

    @stateless
    def postencode_sample(self, sample: T_sample) -> T_encoded_sample:
        return self._task_encoder.postencode_sample(sample)

    @stateless
    def select_samples_to_pack(self, samples: list[T_sample]) -> list[list[T_sample]]:
        return self._task_encoder.select_samples_to_pack(samples)

    @stateless
    def pack_selected_samples(self, samples: list[T_encoded_sample]) -> T_encoded_sample:
        return self._task_encoder.pack_selected_samples(samples)

    @stateless
    def batch_group_criterion(self, sample: T_encoded_sample) -> tuple[Hashable, int | None]:
        return self._task_encoder.batch_group_criterion(sample)

    @stateless
    def batch(self, samples: list[T_encoded_sample]) -> T_raw_batch:
        return self._task_encoder.batch(samples)

    @stateless
    def encode_batch(self, batch: T_raw_batch) -> T_batch | Generator[T_batch, None, None]:
        return self._task_encoder.encode_batch(batch)

    def batch_cost(self, batch: T_batch) -> float:
        return self._task_encoder.batch_cost(batch)

    def empty_batch(self, batch: T_batch) -> T_batch:
        return self._task_encoder.empty_batch(batch)
