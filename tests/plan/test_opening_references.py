"""Opening what a metadataset refers to: ranges of it, and what cannot be opened."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

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
from bridge_data.decode import SampleDecoder
from bridge_data.decode.sample_loader import SampleLoader
from bridge_data.plan import load_plan
from bridge_data.plan.document import is_jsonl
from bridge_data.plan.opening import split_parts
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.samples import CrudeSample
from bridge_data.shards.jsonl_file import split_path
from tests.plan.joins import BY_FIELDS, prepared_plan, texts
from tests.plan.own_factories import BytesWebdataset, NothingWebdataset, Shouted, ShoutedWebdataset
from tests.prepared import write_blend, write_dataset, write_texts


def metadataset(folder: Path, train: Any) -> Path:
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    (folder / "m.yaml").write_text(yaml.safe_dump({**head, "splits": {"train": train}}, sort_keys=False))
    return folder / "m.yaml"


def keys(source: Any) -> str:
    reader = source.records.reader()
    return "".join(reader.read(number).key for number in range(source.num_samples))


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [(["0%", "50%"], "abc"), (["50%", "100%"], "def"), ([1, 3], "bc"), ([4, "end"], "ef"), (["34%", "67%"], "cd")],
)
def test_a_reference_may_be_cut_to_a_range(tmp_path: Path, bounds: list[Any], expected: str) -> None:
    texts(tmp_path / "a", "abcdef")
    (source,) = load_plan(metadataset(tmp_path, {"path": "a", "subset": {"range": bounds}})).sources
    assert keys(source) == expected


def test_ranges_that_share_a_bound_share_no_sample_and_are_different_data(tmp_path: Path) -> None:
    texts(tmp_path / "a", "abcdefg")
    halves = [{"path": "a", "subset": {"range": bounds}} for bounds in (["0%", "50%"], ["50%", "100%"])]
    plan = load_plan(metadataset(tmp_path, {"blend": halves}))
    assert "".join(map(keys, plan.sources)) == "abcdefg"
    assert len({source.fingerprint for source in plan.sources}) == 2


def test_a_join_is_cut_after_it_is_joined(tmp_path: Path) -> None:
    texts(tmp_path / "a", "abcdef")
    texts(tmp_path / "b", "bdf")
    join = {"join": [{"path": "a"}, {"path": "b", "nonmatch": "skip"}], "joiner": BY_FIELDS}
    path = metadataset(tmp_path, {**join, "subset": {"range": [1, "end"]}, "shuffle_over_epochs_multiplier": 2})
    (source,) = prepared_plan(path).sources
    assert (keys(source), source.epochs_per_shuffle) == ("df", 2)
    path = metadataset(tmp_path, {**join, "subset": {"range": [0, 4]}})
    with pytest.raises(ConfigError, match=r"m\.yaml:\d+: subset: range: \[0, 4\] reaches beyond .* 3 samples"):
        prepared_plan(path)


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ([0, 7], "[0, 7] reaches beyond the data, which have 6 samples"),
        ([3, 3], "[3, 3] leaves none of the 6 samples of a/train"),
        (["0%", "10%"], "[0%, 10%] leaves none of the 6 samples of a/train"),
        (["60%", "50%"], "60% comes after 50%"),
        ([0, "50%"], "both percentages or both sample numbers"),
    ],
)
def test_wrong_ranges_are_named_with_their_line(tmp_path: Path, bounds: list[Any], says: str) -> None:
    texts(tmp_path / "a", "abcdef")
    with pytest.raises(ConfigError, match=r"m\.yaml:6: subset: range: ") as error:
        load_plan(metadataset(tmp_path, {"path": "a", "subset": {"range": bounds}}))
    assert says in str(error.value)


HEAD = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"


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


def test_its_source(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    (source,) = load_plan(path).sources
    assert (source.name, source.sample_class, source.num_samples) == ("a.jsonl/train", CrudeSample, 20)
    (tmp_path / "elsewhere").mkdir()
    assert source.fingerprint == load_plan(write_lines(tmp_path / "elsewhere" / "a.jsonl")).sources[0].fingerprint
    assert source.fingerprint != load_plan(write_lines(tmp_path / "b.jsonl")).sources[0].fingerprint
    assert source.fingerprint == "ded89908558d251b", "another value here is another order, and a change of the state"
    assert is_jsonl(str(path)) and not is_jsonl(str(tmp_path))


def test_a_part_of_its_split(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    split_path(path).write_text("split_parts: {train: [0, 18], val: [90%, 100%]}")
    assert lines_of(path) == ["a 18", "a 19"]
    assert load_plan(path).sources[0].num_samples == 18
    assert load_plan(path).sources[0].fingerprint != load_plan(path, split_part="val").sources[0].fingerprint
    with pytest.raises(ConfigError, match="there is no split part 'test'"):
        load_plan(path, split_part="test")


def test_in_a_metadataset(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl")
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
    assert [(source.name, source.num_samples) for source in plan.sources[:2]] == [
        ("a.jsonl/train", 20),
        ("b.jsonl/few", 2),
    ]
    assert plan.sources[0].subflavors == {"kind": "lines"}
    assert lines_of(tmp_path / "m.yaml") == [f"b {number}" for number in range(5)]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("{path: none.jsonl}", r"m\.yaml:4: .*none\.jsonl: no such folder or file"),
        ("{path: raw.jsonl}", r"m\.yaml:4: .*raw\.jsonl: not prepared, there is no raw\.jsonl\.idx"),
        ("{path: a.jsonl, dataset_config: d.yaml}", r"m\.yaml:4: dataset_config is for prepared folders"),
        ("{path: a.jsonl, split_config: d.yaml}", r"m\.yaml:4: .*d\.yaml: no such file"),
    ],
)
def test_wrong_references_are_named_with_their_line(tmp_path: Path, reference: str, message: str) -> None:
    write_lines(tmp_path / "a.jsonl")
    (tmp_path / "raw.jsonl").write_text("{}\n")
    (tmp_path / "m.yaml").write_text(f"{HEAD}  train: {reference}\n")
    with pytest.raises(ConfigError, match=message):
        load_plan(tmp_path / "m.yaml")


def test_every_kind_of_data_says_its_parts(tmp_path: Path) -> None:
    write_texts(tmp_path / "a", 4)
    assert split_parts(tmp_path / "a") == ["train", "val", "test"]
    assert split_parts(write_blend(tmp_path / "blend.yaml", {"a": 1}, val="a")) == ["train", "val"]
    (tmp_path / "lines.jsonl").write_text("{}\n{}\n")
    assert split_parts(tmp_path / "lines.jsonl") == ["train"]
    (tmp_path / "lines.jsonl.split.yaml").write_text("split_parts: {mine: [0, 1], yours: [1, end]}")
    assert split_parts(tmp_path / "lines.jsonl") == ["mine", "yours"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("no", None, "no such folder or file"),
        ("a.txt", "", "expected a folder of tars or tables, a metadataset .yaml or a file"),
        ("a.yaml", "splits: 3", "a.yaml:1: "),
    ],
)
def test_other_paths_are_refused(tmp_path: Path, name: str, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as caught:
        split_parts(tmp_path / name)
    assert says in str(caught.value)


ALONE = WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=1)


def loaded(source: Any, index: int) -> Any:
    return SampleLoader(pickle.loads(pickle.dumps(source)), SampleDecoder()).load(index)


def own(folder: Path, name: str, **more: Any) -> Path:
    samples = [{"__key__": f"{n:03}", "txt": f"t{n}", "json": {"size": n}} for n in range(3)]
    head = {"__module__": "tests.plan.own_factories", "__class__": name}
    return write_dataset(folder, samples, definition={**head, **more})


SHOUTED = {"field_map": {"text": "txt", "size": "json[size]"}, "subflavors": {"a": 1}}


def test_a_class_of_the_user_makes_its_samples(tmp_path: Path) -> None:
    folder = own(tmp_path / "data", "ShoutedWebdataset", **SHOUTED, mark="?")
    (source,) = load_plan(folder, trusted_modules=["tests.plan.own_factories"]).sources
    assert source.config_file == str(folder / ".nv-meta" / "dataset.yaml")
    sample = loaded(source, 2)
    assert type(sample) is Shouted
    assert (sample.text, sample.size, sample.__subflavors__) == ("T2?", 2, {"a": 1})
    assert sample.__sources__[0].file_names == ("002.json", "002.txt")
    assert ShoutedWebdataset(folder, **SHOUTED).source().fingerprint == source.fingerprint


def test_its_samples_get_the_sub_flavors_of_a_metadataset(tmp_path: Path) -> None:
    own(tmp_path / "data", "BytesWebdataset")
    file = tmp_path / "m.yaml"
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    file.write_text(head + "splits: {train: {path: data, subflavors: {b: 2}}}\n")
    (source,) = load_plan(file, trusted_modules=["tests"]).sources
    sample = loaded(source, 1)
    assert (sample.caption, sample.__subflavors__) == ("t1", {"b": 2})
    assert type(source.maker) is BytesWebdataset


def test_it_trains(tmp_path: Path) -> None:
    folder = own(tmp_path / "data", "ShoutedWebdataset", **SHOUTED)
    dataset = get_train_dataset(
        folder,
        worker_config=ALONE,
        batch_size=3,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        trusted_modules=["tests.plan.own_factories"],
        repeat=False,
    )
    (batch,) = get_loader(dataset)
    assert sorted(batch.text) == ["T0!", "T1!", "T2!"]
    assert sorted(batch.size) == [0, 1, 2] or torch.equal(batch.size.sort().values, torch.arange(3))


def test_it_is_not_imported_without_trust(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.yaml:\d+: .*own_factories' would be imported"):
        load_plan(own(tmp_path / "data", "ShoutedWebdataset", **SHOUTED))


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


def test_a_class_that_makes_no_sample_stops_the_run(tmp_path: Path) -> None:
    folder = own(tmp_path / "data", "NothingWebdataset", **SHOUTED)
    (source,) = load_plan(folder, trusted_modules=["tests"]).sources
    with pytest.raises(FatalSampleError, match=r"load_sample returned None for sample .*000: expected a Sample"):
        loaded(source, 0)
    assert type(source.maker) is NothingWebdataset
