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


def test_captioning_is_number_0() -> None:
    assert next(iter(SAMPLE_TYPES)) == find_sample_type("0") == "CaptioningSample"
    assert find_sample_type(str(len(SAMPLE_TYPES))) == CRUDE


@pytest.mark.parametrize("name", [*SAMPLE_TYPES, CRUDE])
def test_every_class_is_known_by_each_of_its_names(name: str) -> None:
    stem = name.removesuffix("Sample").removesuffix("Webdataset")
    for written in (name, f"{stem}Webdataset", f"{stem}Sample", stem, f" {name} "):
        assert find_sample_type(written) == name


@pytest.mark.parametrize("text", ["Crude sample", "Crude sample (plain dict for cooking)"])
def test_crude_data_are_known_by_the_words_of_energons_menu(text: str) -> None:
    assert find_sample_type(text) == CRUDE


@pytest.mark.parametrize("text", ["", "-1", "99", "captioningsample", "Sample"])
def test_what_is_no_class(text: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown sample class .* There is CaptioningSample"):
        find_sample_type(text)


@pytest.mark.parametrize("sample_type", [CaptioningSample, "CaptioningSample", "CaptioningWebdataset"])
def test_a_definition_of_one_of_our_classes(sample_type: Any) -> None:
    made = definition_of(sample_type, {"image": "png", "caption": "json[text]"})
    assert made["sample_type"] == {"__module__": "megatron.energon", "__class__": "CaptioningSample"}
    read = read_definition(made)
    assert read.sample_class is CaptioningSample
    assert read.field_map["caption"].parts == ("json",)


def test_a_definition_of_a_class_of_the_user() -> None:
    made = definition_of(Recording, {"clip": "wav"})
    assert made["sample_type"] == {"__module__": __name__, "__class__": "Recording"}
    assert read_definition(made).sample_class is Recording


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
