"""User code that makes samples: functions of a Python file next to the data, and factories.

A function is named in a dataset.yaml as `file.py:function`, such as `sample_loader.py:part_filter`. Finding it runs the
file, so this needs `trust_dataset_code=True`, or a caller who names the function. Workers get functions as the text of
their file, and run it again. A function gets the decoded parts of a sample and returns the fields of its class
(`made`).

A factory describes a data set in Python instead of YAML: it takes a path or the members of a join, and the settings,
and returns a `Source`, or a `Plan` of it, which `get_train_dataset` and `get_val_dataset` take instead of a path. A
class that derives from a factory and overrides `load_sample` makes its samples itself; a dataset.yaml may name it, if
its module is trusted. (Energon's factories of paths and joins are in `energon`.)
"""

import abc
import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from bridge_data import storage
from bridge_data.data import SubsetRange
from bridge_data.data.plain_data import Node, nearest
from bridge_data.errors import ConfigError, FatalSampleError
from bridge_data.ignored import warn_ignored
from bridge_data.plan.blending import Plan, plan_of
from bridge_data.plan.source import EpochsPerShuffle, Parts, SampleClass, Source, check_epochs
from bridge_data.replacement import replacement
from bridge_data.topology import WorkerConfig

T_sample = TypeVar("T_sample")

Decode = Callable[[Parts], Parts]


@dataclasses.dataclass(frozen=True)
class DatasetFunction:
    """The function `name` of the Python file `file`, whose text is `code`."""

    file: str
    name: str
    code: str = dataclasses.field(repr=False)

    @functools.cached_property
    def _function(self) -> Any:
        return _run(self.file, self.code)[self.name]

    def __call__(self, argument: Any) -> Any:
        return self._function(argument)

    def __getstate__(self) -> dict[str, str]:
        return {"file": self.file, "name": self.name, "code": self.code}


@dataclasses.dataclass(frozen=True)
class ChosenParts:
    """The names of parts for which `part_filter` returns true."""

    part_filter: Any

    def __contains__(self, part: object) -> bool:
        return bool(self.part_filter(part))


def read_function(node: Node, what: str, trust_dataset_code: bool) -> DatasetFunction:
    """The function that `node`, the value of `what` in a dataset.yaml, names."""
    text = node.text(what)
    if not (trust_dataset_code or replacement().trust_dataset_code):
        raise node.error(
            f"{what}: {text} is code beside the data that would be run; pass trust_dataset_code=True if you "
            "trust it, to replace_energon in a program for Energon; or describe the samples by a field_map, or make "
            "them crude (__class__: CrudeWebdataset) and cook them in the task encoder"
        )
    try:
        return load_function(text, what, os.path.dirname(node.file))
    except ConfigError as error:
        raise node.error(str(error)) from error.__cause__


def load_function(text: str, what: str, folder: str) -> DatasetFunction:
    """The function `text`, `file.py:function`, of a file in `folder`. The default function name is `what`."""
    path, _, name = text.partition(":")
    file, name = os.path.join(folder, path), name or what
    content = storage.read_if_there(file)
    if content is None:
        raise ConfigError(f"{what}: {file}: no such file; expected `file.py:function`, in the folder {folder}")
    code = content.decode()
    try:
        found = _run(file, code)
    except Exception as error:
        raise ConfigError(f"{what}: {file} cannot be run: {type(error).__name__}: {error}") from error
    if not callable(found.get(name)):
        functions = [key for key, value in found.items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"{what}: {file} has no function {name!r}{nearest(name, functions)}")
    return DatasetFunction(file, name, code)


@functools.cache
def _run(file: str, code: str) -> dict[str, Any]:
    """The global names of the module `code`, which is run once per process."""
    names: dict[str, Any] = {"__name__": os.path.basename(file).removesuffix(".py"), "__file__": file}
    exec(compile(code, file, "exec"), names)
    return names


def made(sample_class: SampleClass, fields: Any, sample: Parts, subflavors: dict[str, Any], function: str) -> Any:
    """A sample of `sample_class` with the `fields` that `function` returned for `sample`, and with its provenance.

    Raises:
        FatalSampleError: if these are not the fields of the class, as every other sample would fail, too.
    """
    if not isinstance(fields, dict):
        raise FatalSampleError(
            f"{function} returned {fields!r} for sample {sample['__key__']}: expected a dict of the fields of "
            f"{sample_class.__name__}"
        )
    provenance = {name: sample[name] for name in ("__restore_key__", "__sources__")}
    values = {"__key__": sample["__key__"], **fields, **provenance, "__subflavors__": subflavors}
    try:
        return sample_class(**values)
    except TypeError as error:
        raise FatalSampleError(
            f"{function}: the fields {', '.join(fields) or '(none)'} do not make a {sample_class.__name__}: {error} "
            f"(sample {sample['__key__']})"
        ) from error


@dataclasses.dataclass(frozen=True)
class LoadedBy:
    """Makes samples of `sample_class` with the fields that `sample_loader` returns for the decoded parts."""

    sample_class: SampleClass
    sample_loader: Callable[[Parts], Any]

    def load_function(
        self, decode: Callable[[Parts], Parts] | None, subflavors: dict[str, Any]
    ) -> Callable[[Parts], Any]:
        """See `SampleLoader`."""

        def make(sample: Parts) -> Any:
            decoded = sample if decode is None else decode(sample)
            return made(self.sample_class, self.sample_loader(decoded), sample, subflavors, "sample_loader")

        return make


class BaseCoreDatasetFactory(abc.ABC, Generic[T_sample]):
    """A single data set. Its samples, of the class `__sample_type__`, get `subflavors`."""

    __sample_type__: ClassVar[SampleClass]
    training: bool = True
    worker_config: WorkerConfig | None = None
    subflavors: dict[str, Any]

    @abc.abstractmethod
    def source(self) -> Source:
        """The data set, opened.

        Raises:
            ConfigError: if it is not as described.
            DatasetError: if the data differ from their metadata.
        """

    def build(self) -> Plan:
        """The plan of this data set alone, for training or validation, as `training` says.

        Raises:
            ConfigError: if it is not as described, or has no samples.
            DatasetError: if the data differ from their metadata.
        """
        source = self.source()
        plan = plan_of(source, training=self.training, what=f"{source.path}: the split part {source.split_part!r}")
        return dataclasses.replace(plan, worker_config=self.worker_config)

    def __len__(self) -> int:
        return self.source().num_samples

    def _set(
        self,
        *,
        training: bool,
        worker_config: WorkerConfig | None,
        shuffle_over_epochs: EpochsPerShuffle,
        subset: SubsetRange | None,
        **ignored: Any,
    ) -> None:
        """Check and keep the settings that all factories have; `ignored` have no effect."""
        warn_ignored(**ignored)
        if subset is not None and not isinstance(subset, SubsetRange):
            raise ConfigError(f"subset={subset!r}: expected a SubsetRange, such as SubsetRange.parse([0, 100])")
        self.training, self.subset, self.subflavors = training, subset, {}
        self.worker_config = worker_config
        self.shuffle_over_epochs = check_epochs(shuffle_over_epochs)

    def _cut(self, source: Source) -> Source:
        """`source` with the range and the epochs of this factory."""
        return source.narrowed(self.subset, self.shuffle_over_epochs)
