"""The content of a `dataset.yaml`: the class and fields of a data set's samples.

Reads a sample class or its name, and a field map. Returns a dict to write as YAML: readers can import the class, and it
has every field that the map names.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from bridge_data import samples as sample_classes
from bridge_data.data.plain_data import parse_yaml
from bridge_data.errors import ConfigError, did_you_mean
from bridge_data.plan.dataset_yaml import SampleConfig, read_sample_config
from bridge_data.samples import CrudeSample, Sample

CRUDE = "CrudeWebdataset"
"""The class of data whose parts a cooker turns into samples."""

SAMPLE_TYPES: dict[str, type[Sample]] = {
    name: value
    for name, value in sorted(vars(sample_classes).items())
    if isinstance(value, type) and issubclass(value, Sample) and value is not Sample
}

_MODULE = "megatron.energon"


def find_sample_type(text: str) -> str:
    """The name of a sample class given by its number in the list, its name, its older name (`CaptioningWebdataset`),
    `crude`, or its name in Energon's `prepare` ("Crude sample").

    Raises:
        ConfigError: naming all classes, if it is unknown.
    """
    names = [*SAMPLE_TYPES, CRUDE]
    wanted = text.strip()
    if wanted.isdecimal() and int(wanted) < len(names):
        return names[int(wanted)]
    if wanted.lower() == "crude" or wanted.lower().startswith("crude sample"):
        return CRUDE
    for name in names:
        stem = name.removesuffix("Sample").removesuffix("Webdataset")
        if wanted in (name, stem, f"{stem}Sample", f"{stem}Webdataset"):
            return name
    guess = did_you_mean(wanted, names, ".")
    raise ConfigError(f"unknown sample class {wanted!r}{guess} There is {', '.join(names)}.")


def definition(sample_type: str, field_map: Mapping[str, str]) -> dict[str, Any]:
    """The content of the dataset.yaml of samples of one of `SAMPLE_TYPES`, or of `CRUDE` ones."""
    if sample_type == CRUDE:
        return {"__module__": _MODULE, "__class__": CRUDE}
    return {"sample_type": {"__module__": _MODULE, "__class__": sample_type}, "field_map": dict(field_map)}


def definition_of(sample_type: str | type[Any] | None, field_map: Mapping[str, str] | None) -> dict[str, Any]:
    """The content of the dataset.yaml of samples of the class `sample_type`: the name of one of ours, any importable
    class, or None for crude samples.

    Raises:
        ConfigError: for an unknown class, one that cannot be imported, or a field map that does not fit it.
    """
    if sample_type is None or sample_type is CrudeSample:
        sample_type = CRUDE
    if isinstance(sample_type, str):
        name = find_sample_type(sample_type)
        made = definition(name, field_map or {})
    elif not (isinstance(sample_type, type) and issubclass(sample_type, (Sample, CrudeSample))):
        raise ConfigError(f"sample_type={sample_type!r}: expected a class derived from Sample, or its name")
    else:
        name = sample_type.__name__
        made = definition(name, field_map or {})
        if SAMPLE_TYPES.get(name) is not sample_type:
            if sample_type.__module__ == "__main__" or "." in sample_type.__qualname__:
                raise ConfigError(
                    f"sample_type={sample_type.__qualname__}: loaders could not import it; define it at the top of a "
                    "module of its own"
                )
            made["sample_type"]["__module__"] = sample_type.__module__
    if name == CRUDE and field_map:
        raise ConfigError("field_map: crude samples have no fields; give a sample_type, such as CaptioningSample")
    if name != CRUDE and not field_map:
        raise ConfigError(f'sample_type={name}: give a field_map too, such as {{"image": "png", "caption": "txt"}}')
    return made


def read_definition(content: Mapping[str, Any]) -> SampleConfig:
    """What a loader reads in the dataset.yaml `content`.

    Raises:
        ConfigError: naming the field that the class does not have, or that the map lacks.
    """
    module = content.get("sample_type", content)["__module__"]
    return read_sample_config(parse_yaml(yaml.safe_dump(dict(content), sort_keys=False), "dataset.yaml"), (module,))
