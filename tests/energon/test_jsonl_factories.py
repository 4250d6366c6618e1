from pathlib import Path
from typing import Any

import pytest

from bridge_data import CrudeJsonlDatasetFactory, DefaultCrudeJsonlDatasetFactory, ignored
from bridge_data.errors import ConfigError, SampleError
from bridge_data.plan import load_plan
from bridge_data.plan.blending import EmptySplitError
from bridge_data.samples import CrudeSample
from bridge_data.shards import SubsetRange
from bridge_data.shards.jsonl_file import split_path
from tests.plan.test_references import write_lines

PROVENANCE = {"__key__": "3", "__shard__": "a.jsonl", "__sources__": (), "__restore_key__": ()}


class Marked(DefaultCrudeJsonlDatasetFactory):
    def load_sample(self, sample: dict[str, Any]) -> CrudeSample:
        return CrudeSample({**super().load_sample(sample), "mark": "mine"})


def test_the_default_factory_is_what_the_path_stands_for(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    factory = DefaultCrudeJsonlDatasetFactory(path, subflavors={"kind": "lines"})
    source, known = factory.source(), load_plan(path).sources[0]
    assert source.fingerprint == known.fingerprint
    assert (source.path, source.name, source.sample_class) == (known.path, known.name, known.sample_class)
    assert (source.subflavors, source.maker, len(factory)) == ({"kind": "lines"}, None, 20)
    assert factory.build().sources[0].fingerprint == known.fingerprint
    assert (factory.paths, str(factory)) == ([path], f"DefaultCrudeJsonlDatasetFactory({path} [train])")


def test_lines_stay_bytes_or_are_decoded(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    parts = {**PROVENANCE, "json": b'{"text": "a 3"}'}
    raw = CrudeJsonlDatasetFactory(path).source()
    assert raw.maker is not None
    assert raw.maker.maker(None, {})(parts) == CrudeSample(parts)
    decoded = DefaultCrudeJsonlDatasetFactory(path).maker(None, {"x": 1})(parts)
    assert decoded == CrudeSample({**parts, "json": {"text": "a 3"}, "__subflavors__": {"x": 1}})
    with pytest.raises(SampleError, match=r"a\.jsonl: sample 3 is no JSON: Expecting value"):
        DefaultCrudeJsonlDatasetFactory(path).load_sample({**PROVENANCE, "json": b"x"})


def test_a_class_of_the_users_makes_its_samples(tmp_path: Path) -> None:
    factory = Marked(write_lines(tmp_path / "a.jsonl"))
    source = factory.source()
    assert source.maker is factory
    sample = source.maker.maker(None, {})({**PROVENANCE, "json": b"{}"})
    assert (sample["mark"], sample["json"]) == ("mine", {})


def test_ranges_and_parts(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    split_path(path).write_text("split_parts: {train: [0, 10], none: [3, 3]}")
    (tmp_path / "other.yaml").write_text("split_parts: {train: [0, 4]}")
    assert len(CrudeJsonlDatasetFactory(path, subset=SubsetRange.parse(["50%", "100%"]))) == 5
    assert len(CrudeJsonlDatasetFactory(path, split_config="other.yaml")) == 4
    with pytest.raises(ConfigError, match="there is no split part 'val'"):
        CrudeJsonlDatasetFactory(path, split_part="val").source()
    with pytest.raises(EmptySplitError, match=r"a\.jsonl: the split part 'none' .*no samples"):
        CrudeJsonlDatasetFactory(path, split_part="none").build()
    source = CrudeJsonlDatasetFactory(path, part_filter=lambda part: part != "json").source()
    assert source.parts is not None and "json" not in source.parts
    assert source.records.reader().read(0, source.parts).parts == {}


def test_settings_without_effect_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored, "_warned", set())
    with pytest.warns(UserWarning, match="parallel_shard_iters has no effect"):
        CrudeJsonlDatasetFactory(tmp_path / "a.jsonl", parallel_shard_iters=4)
    with pytest.raises(TypeError, match="unexpected keyword argument 'shufle'"):
        DefaultCrudeJsonlDatasetFactory(tmp_path / "a.jsonl", shufle=1)  # type: ignore[call-arg]
