"""Opening what a metadataset refers to: ranges of it, and what cannot be opened."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    ConfigError,
    Cooker,
    DefaultTaskEncoder,
    FatalSampleError,
    TextSample,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from bridge_data.data.jsonl_file import split_path
from bridge_data.decode import SampleDecoder
from bridge_data.decode.source_reader import SingleSourceReader
from bridge_data.plan import load_plan
from bridge_data.plan.opening import split_parts
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.samples import CrudeSample
from tests.plan.joins import joined, metadataset, prepared_plan, texts
from tests.plan.own_factories import BytesWebdataset, Shouted, ShoutedWebdataset
from tests.prepared import write_blend, write_dataset, write_texts

HEAD = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"


def keys(source: Any) -> str:
    reader = source.records.reader()
    return "".join(reader.read(number).key for number in range(source.num_samples))


def ranged(folder: Path, *ranges: list[Any]) -> Path:
    """A blend of ranges of the data set `a`."""
    texts(folder / "a", "abcdefg")
    items = [{"path": "a", "subset": {"range": bounds}} for bounds in ranges]
    return metadataset(folder / "m.yaml", items[0] if len(items) == 1 else {"blend": items})


@pytest.mark.parametrize(
    "ranges",
    [
        {"abc": ["0%", "50%"], "defg": ["50%", "100%"]},  # which share a bound, and no sample
        {"bc": [1, 3]},
        {"efg": [4, "end"]},
        {"cd": ["34%", "67%"]},
    ],
)
def test_a_reference_may_be_cut_to_a_range(tmp_path: Path, ranges: dict[str, list[Any]]) -> None:
    sources = load_plan(ranged(tmp_path, *ranges.values())).sources
    assert [keys(source) for source in sources] == [*ranges]
    assert len({source.fingerprint for source in sources}) == len(ranges)


def test_a_join_is_cut_after_it_is_joined(tmp_path: Path) -> None:
    texts(tmp_path / "a", "abcdef")
    texts(tmp_path / "b", "bdf")
    join = [{"path": "a"}, {"path": "b", "nonmatch": "skip"}]
    more = {"subset": {"range": [1, "end"]}, "shuffle_over_epochs_multiplier": 2}
    (source,) = prepared_plan(joined(tmp_path / "m.yaml", join, **more)).sources
    assert (keys(source), source.epochs_per_shuffle) == ("df", 2)
    with pytest.raises(ConfigError, match=r"m\.yaml:\d+: subset: range: \[0, 4\] reaches beyond .* 3 samples"):
        prepared_plan(joined(tmp_path / "m.yaml", join, subset={"range": [0, 4]}))


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ([0, 8], r"\[0, 8\] reaches beyond the data, which have 7 samples"),
        ([3, 3], r"\[3, 3\] leaves none of the 7 samples of a/train"),
        (["0%", "10%"], r"\[0%, 10%\] leaves none of the 7 samples of a/train"),
        (["60%", "50%"], "60% comes after 50%"),
        ([0, "50%"], ".*both percentages or both sample numbers"),
    ],
)
def test_wrong_ranges_are_named_with_their_line(tmp_path: Path, bounds: list[Any], says: str) -> None:
    with pytest.raises(ConfigError, match=rf"m\.yaml:6: subset: range: .*{says}"):
        load_plan(ranged(tmp_path, bounds))


def write_lines(path: Path, num: int = 20) -> Path:
    path.write_text("".join(f'{{"text": "{path.stem} {number}"}}\n' for number in range(num)))
    prepare_jsonl(path)
    return path


def cook(sample: CrudeSample) -> TextSample:
    text = sample["json"]["text"] if "json" in sample else str(sample["txt"])
    return TextSample(__key__=sample["__key__"], __restore_key__=sample["__restore_key__"], text=text)


class Lines(DefaultTaskEncoder):
    cookers = [Cooker(cook)]  # noqa: RUF012


class UndecodedLines(Lines):
    decoder = None


CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0)


def lines_of(path: Path, encoder: type[Lines] = Lines, split_part: str = "val") -> list[str]:
    dataset = get_val_dataset(path, split_part=split_part, worker_config=CONFIG, batch_size=3, task_encoder=encoder())
    return [text for batch in get_loader(dataset) for text in batch.text]


def test_a_jsonl_file_is_a_data_set(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    expected = [f"a {number}" for number in range(20)]
    assert lines_of(path) == expected
    assert lines_of(path, UndecodedLines) == expected, "a line is JSON even where nothing else is decoded"
    dataset = get_train_dataset(
        path,
        worker_config=CONFIG,
        batch_size=5,
        shuffle_buffer_size=10,
        max_samples_per_sequence=4,
        task_encoder=Lines(),
        repeat=False,
    )
    found = [text for batch in get_loader(dataset) for text in batch.text]
    assert sorted(found) == sorted(expected) and found != expected


def test_its_parts_and_its_place_in_a_metadataset(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    (source,) = load_plan(path).sources
    assert (source.name, source.sample_class, source.num_samples) == ("a.jsonl/train", CrudeSample, 20)
    assert source.fingerprint == "ded89908558d251b6fd5d3e3", "another value is another order, and a change of the state"
    write_lines(tmp_path / "b.jsonl", 5)
    write_texts(tmp_path / "c", 10)
    (tmp_path / "b.parts.yaml").write_text("split_parts: {few: [1, 3]}")
    blend = (
        "  train:\n    blend:\n      - {path: a.jsonl, weight: 2, subflavors: {kind: lines}}\n"
        "      - {path: b.jsonl, split_part: few, split_config: b.parts.yaml}\n      - {path: c}\n"
        "  val: {path: b.jsonl}\n"
    )
    (tmp_path / "m.yaml").write_text(HEAD + blend)
    plan = load_plan(tmp_path / "m.yaml")
    found = [(source.name, source.num_samples) for source in plan.sources[:2]]
    assert found == [("a.jsonl/train", 20), ("b.jsonl/few", 2)]
    assert plan.sources[0].subflavors == {"kind": "lines"}
    assert lines_of(tmp_path / "m.yaml") == [f"b {number}" for number in range(5)]
    split_path(path).write_text("split_parts: {train: [0, 18], val: [90%, 100%]}")
    assert lines_of(path) == ["a 18", "a 19"]
    fingerprints = {load_plan(path, split_part=part).sources[0].fingerprint for part in ("train", "val")}
    assert len({*fingerprints, source.fingerprint}) == 3
    with pytest.raises(ConfigError, match="there is no split part 'test'"):
        load_plan(path, split_part="test")


def test_every_kind_of_data_says_its_parts(tmp_path: Path) -> None:
    write_texts(tmp_path / "a", 4)
    assert split_parts(tmp_path / "a") == ["train", "val", "test"]
    assert split_parts(write_blend(tmp_path / "blend.yaml", {"a": 1}, val="a")) == ["train", "val"]
    (tmp_path / "lines.jsonl").write_text("{}\n{}\n")
    assert split_parts(tmp_path / "lines.jsonl") == ["train"]
    (tmp_path / "lines.jsonl.split.yaml").write_text("split_parts: {mine: [0, 1], yours: [1, end]}")
    assert split_parts(tmp_path / "lines.jsonl") == ["mine", "yours"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no", "no such folder or file"),
        ("a.txt", "expected a folder of tars or tables, a metadataset .yaml or a file"),
        ("a.yaml", "a.yaml:1: "),
    ],
)
def test_other_paths_are_refused(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "a.yaml").write_text("splits: 3")
    with pytest.raises(ConfigError, match=says):
        split_parts(tmp_path / name)


def loaded(source: Any, index: int) -> Any:
    reader = SingleSourceReader(pickle.loads(pickle.dumps(source)), SampleDecoder())
    return reader.build(reader.read(index), index)


def own(folder: Path, name: str, **more: Any) -> Path:
    samples = [{"__key__": f"{n:03}", "txt": f"t{n}", "json": {"size": n}} for n in range(3)]
    head = {"__module__": "tests.plan.own_factories", "__class__": name}
    return write_dataset(folder, samples, definition={**head, **more})


SHOUTED = {"field_map": {"text": "txt", "size": "json[size]"}, "subflavors": {"a": 1}}


def test_a_class_of_the_user_makes_its_samples(tmp_path: Path) -> None:
    folder = own(tmp_path / "data", "ShoutedWebdataset", **SHOUTED, mark="?")
    with pytest.raises(ConfigError, match=r"dataset\.yaml:\d+: .*own_factories' would be imported"):
        load_plan(folder)
    (source,) = load_plan(folder, trusted_modules=["tests.plan.own_factories"]).sources
    assert source.config_file == str(folder / ".nv-meta" / "dataset.yaml")
    sample = loaded(source, 2)
    assert type(sample) is Shouted
    assert (sample.text, sample.size, sample.__subflavors__) == ("T2?", 2, {"a": 1})
    assert sample.__sources__[0].file_names == ("002.json", "002.txt")
    assert ShoutedWebdataset(folder, **SHOUTED).source().fingerprint == source.fingerprint
    options: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    data = get_train_dataset(folder, worker_config=CONFIG, batch_size=3, trusted_modules=["tests"], **options)
    assert sorted(text for batch in get_loader(data) for text in batch.text) == ["T0?", "T1?", "T2?"]


def test_its_samples_get_the_sub_flavors_of_a_metadataset_and_must_be_samples(tmp_path: Path) -> None:
    own(tmp_path / "data", "BytesWebdataset")
    file = metadataset(tmp_path / "m.yaml", {"path": "data", "subflavors": {"b": 2}})
    (source,) = load_plan(file, trusted_modules=["tests"]).sources
    sample = loaded(source, 1)
    assert (sample.caption, sample.__subflavors__) == ("t1", {"b": 2})
    assert type(source.sample_loader) is BytesWebdataset
    (source,) = load_plan(own(tmp_path / "none", "NothingWebdataset", **SHOUTED), trusted_modules=["tests"]).sources
    with pytest.raises(FatalSampleError, match=r"load_sample returned None for sample .*000: expected a Sample"):
        loaded(source, 0)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({**SHOUTED, "marc": "?"}, "ShoutedWebdataset: .*unexpected keyword argument 'marc'"),
        ({"field_map": {"text": "txt"}}, "ShoutedWebdataset: .*'size' is missing"),
        ({"sample_loader": "a.py:f", "part_filter": ["txt"]}, "sample_loader: a.py:f is code beside"),
    ],
)
def test_its_wrong_settings_name_the_file(tmp_path: Path, more: dict[str, Any], says: str) -> None:
    folder = own(tmp_path / "data", "ShoutedWebdataset", **more)
    with pytest.raises(ConfigError, match=rf"dataset\.yaml:\d+: {says}"):
        load_plan(folder, trusted_modules=["tests"])
