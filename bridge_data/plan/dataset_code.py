"""Samples made by functions: of Python files beside the data, or given in Python.

Enters: `file.py:function` in `.nv-meta`, such as `sample_loader.py:part_filter`. Leaves: the function. Finding it runs
the file, so this needs `trust_dataset_code=True`, or a caller who names the function. Workers get functions as the
text of their file, which is run again there.

What a function returns for the decoded parts of a sample are the fields of its class (`made`).
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

from bridge_data import storage
from bridge_data.errors import ConfigError, FatalSampleError
from bridge_data.plan.document import Node, nearest
from bridge_data.plan.sample_class import SampleClass
from bridge_data.plan.source import Parts


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
    """The names of parts for which `part_filter` says yes."""

    part_filter: Any

    def __contains__(self, part: object) -> bool:
        return bool(self.part_filter(part))


def read_function(node: Node, what: str, trust_dataset_code: bool) -> DatasetFunction:
    """The function that `node`, the value of `what` in a dataset.yaml, names.

    Raises:
        ConfigError: naming file and line, if it is not trusted, cannot be run, or is not there.
    """
    text = node.text(what)
    if not trust_dataset_code:
        raise node.error(
            f"{what}: {text} is code that lies beside the data and would be run; pass trust_dataset_code=True if you "
            "trust it, or describe the samples by a field_map, or make them crude (__class__: CrudeWebdataset) and "
            "cook them in the task encoder"
        )
    try:
        return load_function(text, what, os.path.dirname(node.file))
    except ConfigError as error:
        raise node.error(str(error)) from error.__cause__


def load_function(text: str, what: str, folder: str) -> DatasetFunction:
    """The function `text`, `file.py:function`, of a file in `folder`; without a name it is called as `what` is.

    Raises:
        ConfigError: if the file cannot be run, or has no such function.
    """
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
    """The names of the module that `code` makes, which is run once in a process."""
    names: dict[str, Any] = {"__name__": os.path.basename(file).removesuffix(".py"), "__file__": file}
    exec(compile(code, file, "exec"), names)
    return names


def made(sample_class: SampleClass, fields: Any, sample: Parts, subflavors: dict[str, Any], maker: str) -> Any:
    """A sample of `sample_class` with the `fields` that `maker` returned for `sample`, and with its provenance.

    Raises:
        FatalSampleError: if these are not the fields of the class; so every other sample would fail, too.
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
