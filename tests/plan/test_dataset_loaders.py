"""Data sets at hand in Python: `load_dataset` and what it returns."""

from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    ConfigError,
    DatasetLoader,
    DatasetLoaderInterface,
    Metadataset,
    MetadatasetV2,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    load_dataset,
    traverse_metadataset,
)
from bridge_data.data import SubsetRange
from bridge_data.energon import TraversedDatasetReference
from bridge_data.limits import Limits
from bridge_data.plan import EmptySplitError, Plan
from tests.plan.joins import BY_FIELDS, texts
from tests.plan.prepared import CAPTIONING, CRUDE, write_meta

HEAD = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
ALONE = WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data sets a of 10 samples, b of 7 with sub-flavors, c of 3 crude ones; no shard is there."""
    write_meta(tmp_path / "a", {"0.tar": 6, "1.tar": 4}, {"train": ["0.tar", "1.tar"], "val": []})
    write_meta(tmp_path / "b", {"x.tar": 7}, {"train": ["x.tar"]}, CAPTIONING + "subflavors: {s: b}\n")
    write_meta(tmp_path / "c", {"x.tar": 3}, {"train": ["x.tar"]}, CRUDE)
    return tmp_path


def written(folder: Path, text: str, name: str = "m.yaml") -> Path:
    (folder / name).write_text(HEAD + text)
    return folder / name


def test_a_path_is_loaded_as_what_lies_there(folder: Path) -> None:
    second = written(folder, "splits: {train: {path: a}, val: {path: b}}\n")
    first = folder / "first.yaml"
    first.write_text("splits: {train: {datasets: [{path: a}]}}\n")
    found = [load_dataset(path) for path in (folder / "a", second, first)]
    assert [type(loader) for loader in found] == [DatasetLoader, MetadatasetV2, Metadataset]
    assert all(isinstance(loader, DatasetLoaderInterface) for loader in found)
    assert [loader.get_datasets(training=True, split_part="train").num_samples for loader in found] == [10] * 3
    alone = load_dataset(folder / "a", subflavors={"x": 1}, shuffle_over_epochs_multiplier=3)
    (source,) = alone.get_datasets(training=True, split_part="train").sources
    assert (source.subflavors, source.epochs_per_shuffle) == ({"x": 1}, 3)
    assert isinstance(found[1], MetadatasetV2) and found[1].splits == ["train", "val"]


def test_what_is_said_to_the_loader_holds_for_its_data_sets(folder: Path) -> None:
    loader = load_dataset(written(folder, "splits: {train: {blend: [{path: a}, {path: b, weight: 3}]}}\n"))
    plan = loader.get_datasets(
        training=True,
        split_part="train",
        subflavors={"s": "outer", "t": 1},
        shuffle_over_epochs_multiplier=2,
        subset=SubsetRange.parse(["0%", "50%"]),
    )
    assert plan.weights == (0.25, 0.75)
    assert [source.num_samples for source in plan.sources] == [5, 3]
    assert [source.subflavors for source in plan.sources] == [{"s": "outer", "t": 1}] * 2
    assert [source.epochs_per_shuffle for source in plan.sources] == [2, 2]


def test_what_a_data_set_s_loader_knows_comes_first(folder: Path) -> None:
    (folder / "b" / ".nv-meta" / "crude.yaml").write_text(CRUDE)
    loader = DatasetLoader(
        folder / "b", split_part="train", subflavors={"s": 1, "u": 1}, shuffle_over_epochs_multiplier=3,
        dataset_config="crude.yaml",
    )  # fmt: skip
    (source,) = loader.get_datasets(
        training=True, split_part="other", subflavors={"u": 2}, shuffle_over_epochs_multiplier=2
    ).sources
    assert (source.split_part, source.subflavors, source.epochs_per_shuffle) == ("train", {"s": 1, "u": 2}, 6)
    assert source.sample_class.__name__ == "CrudeSample"


def test_validation_has_no_weights(folder: Path) -> None:
    plan = load_dataset(folder / "a").get_datasets(training=False, split_part="train")
    assert plan.weights is None
    with pytest.raises(EmptySplitError, match="'val' is declared and has no samples"):
        load_dataset(folder / "a").get_datasets(training=False, split_part="val")


def test_a_dict_says_what_its_yaml_would(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    splits = {"train": {"blend": [{"path": "a", "weight": 1}, {"path": folder / "b", "weight": 3}]}}
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    for loader in (load_dataset({**head, "splits": splits}), MetadatasetV2(folder / "m.yaml", splits)):
        assert loader.get_datasets(training=True, split_part="train").weights == (0.25, 0.75)
    older = Metadataset("m.yaml", {"train": {"datasets": [{"path": "a"}]}})
    assert older.get_datasets(training=True, split_part="train").num_samples == 10
    with pytest.raises(
        ConfigError, match=r"V2\(.*/\(dict\)\): weight of 'a': expected a finite number of 0 or more, got -1"
    ):
        load_dataset({**head, "splits": {"train": {"blend": [{"path": "a", "weight": -1}]}}}).get_datasets(
            training=True, split_part="train"
        )


def test_traversing_opens_no_data_set(folder: Path) -> None:
    written(folder, "splits: {train: {path: nowhere, subflavors: {x: inner, y: 1}}}\n", "inner.yaml")
    path = written(
        folder,
        "splits:\n  train:\n    blend:\n      - {path: inner.yaml, subflavors: {x: outer}}\n"
        "      - {path: c, split_part: all, aux: {media: filesystem://pages, pairs: ../pairs}}\n",
    )
    assert traverse_metadataset(path, split_part="train") == [
        TraversedDatasetReference(str(folder / "nowhere"), "train", {}, {"x": "outer", "y": 1}),
        TraversedDatasetReference(
            str(folder / "c"),
            "all",
            {"media": str(folder / "pages"), "pairs": str(folder.parent / "pairs")},
            {},
        ),
    ]


def test_traversing_a_join_comes_to_its_members(folder: Path) -> None:
    path = written(
        folder, f"splits: {{train: {{join: [{{path: a}}, {{path: b, split_part: x}}], joiner: {BY_FIELDS}}}}}"
    )
    found = load_dataset(path).traverse(split_part="train")
    assert [(Path(data.path).name, data.split_part) for data in found] == [("a", "train"), ("b", "x")]


def test_joins_are_prepared(tmp_path: Path) -> None:
    texts(tmp_path / "a", "abc")
    texts(tmp_path / "b", "abc")
    loader = load_dataset(
        written(tmp_path, f"splits: {{train: {{join: [{{path: a}}, {{path: b}}], joiner: {BY_FIELDS}}}}}")
    )
    with pytest.raises(ConfigError, match="bridge-data prepare"):
        loader.get_datasets(training=True, split_part="train")
    assert len(loader.prepare()) == 1
    assert loader.get_datasets(training=True, split_part="train").num_samples == 3
    assert load_dataset(tmp_path / "a").prepare() == []


def test_a_join_that_was_edited_is_opened_as_it_was_prepared(tmp_path: Path) -> None:
    for name in "abc":
        texts(tmp_path / name, "xyz")
    join = f"splits: {{train: {{join: [{{path: a}}, {{path: b}}], joiner: {BY_FIELDS}}}}}"
    loader = load_dataset(written(tmp_path, join))
    written(tmp_path, join.replace("path: b", "path: c"))
    loader.prepare()
    assert loader.get_datasets(training=True, split_part="train").num_samples == 3


class Half(DatasetLoaderInterface):
    """A way of its own."""

    def __init__(self, path: Path) -> None:
        self.inner = load_dataset(path)

    def get_datasets(self, *, training: bool, split_part: str, **settings: Any) -> Plan:
        half = SubsetRange.parse(["0%", "50%"])
        return self.inner.get_datasets(training=training, split_part=split_part, subset=half)


def test_datasets_take_loaders_in_place_of_a_path(tmp_path: Path) -> None:
    folder = texts(tmp_path / "a", "abcdef")
    for data, expected in ((load_dataset(folder), 6), (Half(folder), 3)):
        dataset = get_train_dataset(
            data,
            worker_config=ALONE,
            batch_size=None,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            repeat=False,
        )
        assert len(list(get_loader(dataset))) == expected
        val = get_val_dataset(data, split_part="train", worker_config=ALONE, batch_size=None)
        assert [sample.text for sample in get_loader(val)] == [f"a{letter}" for letter in "abcdef"[:expected]]
        ((_, source),) = get_val_datasets(data, split_part="train", worker_config=ALONE, batch_size=None)
        assert source.num_samples == expected
    with pytest.raises(NotImplementedError, match="Half does not override traverse"):
        Half(folder).traverse(split_part="train")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda folder: load_dataset(folder / "nowhere"), "nowhere: no such folder or file"),
        (lambda folder: load_dataset(folder / "m.yaml", split_part="x"), "split_part='x' is for a single data set"),
        (lambda folder: load_dataset(folder / "m.yaml", subflavors={"a": 1}), "subflavors={'a': 1} is for a single"),
        (lambda folder: Metadataset(folder / "m.yaml"), "m.yaml is a MetadatasetV2; open it with load_dataset"),
        (lambda folder: traverse_metadataset(folder / "a", split_part="train"), "expected a metadataset .yaml"),
        (lambda folder: MetadatasetV2(folder / "m.yaml", {}).prepare(), "joins are prepared next to a YAML file"),
        (lambda folder: DatasetLoader(folder / "a", shuffle_over_epochs_multiplier=0), "expected a number of epochs"),
        (
            lambda folder: get_val_dataset(
                load_dataset(folder / "a"), worker_config=ALONE, batch_size=None, split_config="s.yaml"
            ),
            "split_config='s.yaml': is for a path, but got a DatasetLoader",
        ),
        (
            lambda folder: get_val_dataset(
                load_dataset(folder / "a"), worker_config=ALONE, batch_size=None, limits=Limits(max_json_bytes=9)
            ),
            "is for a path, but got a DatasetLoader",
        ),
        (
            lambda folder: get_val_dataset("ftp://p/a", worker_config=ALONE, batch_size=None),
            "ftp://p/a: unknown kind of URL",
        ),
    ],
)
def test_wrong_use_is_named(folder: Path, call: Any, says: str) -> None:
    written(folder, "splits: {train: {path: a}}\n")
    with pytest.raises(ConfigError) as error:
        call(folder)
    assert says in str(error.value)


def test_other_files_of_a_folder_may_be_named_for_training(tmp_path: Path) -> None:
    folder = texts(tmp_path / "a", "abcdef")
    (folder / ".nv-meta" / "other.yaml").write_text("split_parts: {val: [data-0001.tar]}\n")
    (folder / ".nv-meta" / "keys.yaml").write_text(
        "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: __key__}\n"
    )
    val = get_val_dataset(
        folder, worker_config=ALONE, batch_size=None, split_config="other.yaml", dataset_config="keys.yaml"
    )
    assert [sample.text for sample in get_loader(val)] == ["data-0001.tar/c", "data-0001.tar/d"]
