"""There is a factory for each sample class."""

from pathlib import Path

import pytest

import bridge_data
from tests.prepared import TEXT, write_dataset

FACTORIES = [name for name in bridge_data.__all__ if name.endswith("Webdataset")]


@pytest.mark.parametrize("name", FACTORIES)
def test_every_factory_names_its_sample_class(tmp_path: Path, name: str) -> None:
    folder = write_dataset(tmp_path / "data", [{"__key__": "0", "txt": "t"}], definition=TEXT)
    factory = getattr(bridge_data, name)
    expected = name.removesuffix("Webdataset") + "Sample"
    if name == "CrudeWebdataset":
        assert factory(folder).source().sample_class is getattr(bridge_data, expected)
        return
    source = factory(folder, sample_loader=dict, part_filter=["txt"]).source()
    assert source.sample_class is getattr(bridge_data, expected)


def test_there_is_a_factory_for_each_sample_class() -> None:
    assert len(FACTORIES) == 12
