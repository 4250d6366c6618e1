"""Sample classes are found by any of their names, and a definition is read as it was meant."""

from typing import Any

import pytest

from bridge_data.errors import ConfigError
from bridge_data.prepare.sample_definitions import (
    CRUDE,
    SAMPLE_TYPES,
    definition_of,
    find_sample_type,
    read_definition,
)
from bridge_data.samples import CaptioningSample, CrudeSample, Sample, TextSample, edataclass


@edataclass
class Recording(Sample):
    """A class of a user."""

    clip: bytes


@pytest.mark.parametrize("name", [*SAMPLE_TYPES, CRUDE])
def test_every_class_is_known_by_its_number_and_each_of_its_names(name: str) -> None:
    stem, number = name.removesuffix("Sample").removesuffix("Webdataset"), [*SAMPLE_TYPES, CRUDE].index(name)
    assert number == 0 or name != "CaptioningSample", "as in Energon's menu"
    for written in (str(number), name, f"{stem}Webdataset", f"{stem}Sample", stem, f" {name} "):
        assert find_sample_type(written) == name
    for text in ("crude", "Crude sample", "Crude sample (plain dict for cooking)"):  # Energon's words
        assert find_sample_type(text) == CRUDE


@pytest.mark.parametrize("text", ["", "-1", "99", "captioningsample", "Sample"])
def test_what_is_no_class(text: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown sample class .* There is CaptioningSample"):
        find_sample_type(text)


@pytest.mark.parametrize(
    ("given", "module", "made_of"),
    [
        (CaptioningSample, "megatron.energon", CaptioningSample),
        ("CaptioningSample", "megatron.energon", CaptioningSample),
        ("CaptioningWebdataset", "megatron.energon", CaptioningSample),
        (Recording, __name__, Recording),
    ],
)
def test_a_definition_of_a_class_of_ours_or_of_the_user(given: Any, module: str, made_of: type[Sample]) -> None:
    field_map = {"clip": "json[text]"} if given is Recording else {"image": "png", "caption": "json[text]"}
    made = definition_of(given, field_map)
    assert made["sample_type"] == {"__module__": module, "__class__": made_of.__name__}
    read = read_definition(made)
    assert read.sample_class is made_of and [*read.field_map.values()][-1].parts == ("json",)


@pytest.mark.parametrize("sample_type", [None, CrudeSample, "CrudeWebdataset"])
def test_a_definition_of_crude_samples(sample_type: Any) -> None:
    assert issubclass(read_definition(definition_of(sample_type, None)).sample_class, CrudeSample)
    with pytest.raises(ConfigError, match="crude samples have no fields"):
        definition_of(sample_type, {"text": "txt"})


def test_definitions_that_cannot_be_read() -> None:
    @edataclass
    class Local(Sample):
        text: str

    not_a_class: Any = 7
    for wrong, field_map, message in (
        (Local, {"text": "txt"}, "could not import it"),
        (not_a_class, None, "expected a class derived from Sample"),
        (dict, None, "expected a class derived from Sample"),
        ("TextSampel", None, "did you mean .TextSample"),
        (TextSample, None, "give a field_map too"),
    ):
        with pytest.raises(ConfigError, match=message):
            definition_of(wrong, field_map)
    with pytest.raises(ConfigError, match="txet"):
        read_definition(definition_of(TextSample, {"txet": "txt"}))
