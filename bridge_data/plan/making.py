"""Samples that no field map describes: their fields come from a function of the decoded parts.

Enters: a sample as a dict, its parts by name and its provenance under the dunder names. Leaves: a sample of its class.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from bridge_data.errors import FatalSampleError
from bridge_data.plan.sample_class import SampleClass
from bridge_data.plan.source import Parts


def made(sample_class: SampleClass, fields: Any, sample: Parts, subflavors: dict[str, Any], maker: str) -> Any:
    """A sample of `sample_class` with the `fields` that `maker` gave of `sample`, and with the provenance of that.

    Raises:
        FatalSampleError: if these are not the fields of the class, which no other sample would survive either.
    """
    if not isinstance(fields, dict):
        raise FatalSampleError(
            f"{maker} returned {fields!r} for sample {sample['__key__']}: expected a dict of the fields of "
            f"{sample_class.__name__}"
        )
    provenance = {name: sample[name] for name in ("__restore_key__", "__sources__")}
    values = {"__key__": sample["__key__"], **fields, **provenance, "__subflavors__": subflavors}
    try:
        return sample_class(**values)
    except TypeError as error:
        raise FatalSampleError(
            f"{maker}: the fields {', '.join(fields) or '(none)'} do not make a {sample_class.__name__}: {error} "
            f"(sample {sample['__key__']})"
        ) from error


@dataclasses.dataclass(frozen=True)
class LoadedBy:
    """Makes samples of `sample_class` with the fields that `sample_loader` gives of the decoded parts."""

    sample_class: SampleClass
    sample_loader: Callable[[Parts], Any]

    def maker(self, decode: Callable[[Parts], Parts] | None, subflavors: dict[str, Any]) -> Callable[[Parts], Any]:
        """See `SampleMaker`."""

        def make(sample: Parts) -> Any:
            decoded = sample if decode is None else decode(sample)
            return made(self.sample_class, self.sample_loader(decoded), sample, subflavors, "sample_loader")

        return make
