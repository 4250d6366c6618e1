"""Tables in plans: which files a split part has, field maps, and data sets as a user has them."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

from bridge_data import (
    CaptioningSample,
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    ImageSample,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from bridge_data.errors import ConfigError
from bridge_data.plan import load_plan
from bridge_data.plan.opening import split_parts
from bridge_data.plan.table_files import files_of
from bridge_data.shards.table_records import open_records
from bridge_data.storage import location
from tests.tables import IMAGE, save_to_disk, table_of, write_parquet, write_text_table

SETTINGS: dict[str, Any] = {"batch_size": 4, "shuffle_buffer_size": 20, "max_samples_per_sequence": 20, "repeat": False}
TEXTS: dict[str, Any] = {"sample_type": TextSample, "field_map": {"text": "text"}}


def config(num_workers: int = 0) -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=1, num_workers=num_workers)


def picture(number: int, form: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 6), (number, 0, 0)).save(file, form)
    return file.getvalue()


def captions(size: int = 30) -> pa.Table:
    contents = [picture(number, "PNG" if number % 2 else "JPEG") for number in range(size)]
    image = [{"bytes": one, "path": None} for one in contents]
    return table_of({"image": image, "caption": [f"red of {n}" for n in range(size)]}, {"image": IMAGE})


@pytest.mark.parametrize("kind", ["file", "folder", "glob", "braces", "saved", "saved splits"])
def test_all_rows_come_once(tmp_path: Path, kind: str) -> None:
    for number in range(3):
        write_text_table(tmp_path / "hub" / "data" / f"train-0000{number}-of-00003.parquet", 30)
    write_text_table(tmp_path / "hub" / "data" / "validation-00000-of-00001.parquet", 7)
    write_text_table(tmp_path / "one.parquet", 90)
    write_text_table(tmp_path / "saved", 90)
    write_text_table(tmp_path / "dict" / "train", 90)
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    train = tmp_path / "hub" / "data"
    path = {
        "file": tmp_path / "one.parquet",
        "folder": tmp_path / "hub",
        "glob": train / "train-*.parquet",
        "braces": train / "train-0000{0..2}-of-00003.parquet",
        "saved": tmp_path / "saved",
        "saved splits": tmp_path / "dict",
    }[kind]
    loader = get_savable_loader(get_train_dataset(path, worker_config=config(), **SETTINGS, **TEXTS))
    seen = [(key, text) for batch in loader for key, text in zip(batch.__key__, batch.text, strict=True)]
    assert len(seen) == len({key for key, _ in seen}) == 90


def test_files_that_are_missing_by_their_numbers_are_an_error_but_for_a_pattern(tmp_path: Path) -> None:
    for name in ("a/train-00000-of-00003", "a/train-00002-of-00003", "b/train-00001-of-00001", "a/val-00000-of-00001"):
        write_text_table(tmp_path / f"{name}.parquet", 5)
    with pytest.raises(ConfigError, match=r"1 of 3 .* a/train-00001-of-00003:") as caught:
        load_plan(tmp_path)
    assert len(load_plan(tmp_path, split_part="val").sources) == 1
    way_out = str(caught.value).rpartition("(")[2].rstrip(")")
    assert len(files_of(way_out, "train")) == 2
    with pytest.raises(ConfigError, match=r"\{a,b\.parquet: cannot be expanded"):
        files_of(f"{tmp_path}/{{a,b.parquet", "train")


def test_split_parts_are_those_of_file_names(tmp_path: Path) -> None:
    for name in ("data/train-00000-of-00001", "data/validation-00000-of-00001", "data/extra-00000-of-00001"):
        write_text_table(tmp_path / f"{name}.parquet", 5)
    assert split_parts(tmp_path) == ["train", "extra", "validation"]
    assert [name for name, _ in files_of(str(tmp_path), "val")] == ["data/validation-00000-of-00001.parquet"]
    with pytest.raises(ConfigError, match="no split part 'test'; there is train, extra, validation"):
        files_of(str(tmp_path), "test")
    assert load_plan(tmp_path, split_part="val").sources[0].num_samples == 5
    write_text_table(tmp_path / "more.parquet", 5)
    with pytest.raises(ConfigError, match="names no split part, but others name"):
        split_parts(tmp_path)


def test_parts_may_be_named_by_folders(tmp_path: Path) -> None:
    for name in ("train/a", "train/b", "dev/a"):
        write_text_table(tmp_path / f"{name}.parquet", 5)
    assert [name for name, _ in files_of(str(tmp_path), "train")] == ["train/a.parquet", "train/b.parquet"]
    assert [name for name, _ in files_of(str(tmp_path), "val")] == ["dev/a.parquet"]


def test_a_table_without_splits_is_whole_in_every_part(tmp_path: Path) -> None:
    file = write_text_table(tmp_path / "a.parquet", 9)
    batches = get_savable_loader(get_val_dataset(file, worker_config=config(), batch_size=4, **TEXTS))
    assert [text for batch in batches for text in batch.text] == list(map(str, range(9)))


@pytest.mark.parametrize("saved", [False, True])
def test_pictures_and_captions_become_samples(tmp_path: Path, saved: bool) -> None:
    path = save_to_disk(tmp_path / "a", captions()) if saved else write_parquet(tmp_path / "a.parquet", captions())
    fields: dict[str, Any] = {"sample_type": CaptioningSample, "field_map": {"image": "image", "caption": "caption"}}
    data = get_val_dataset(path, worker_config=config(), batch_size=None, **fields)
    for number, sample in enumerate(get_savable_loader(data)):
        assert sample.image.shape == (3, 6, 8) and sample.caption == f"red of {number}"
        assert abs(float(sample.image[0, 0, 0]) * 255 - number) <= 3


@stateless
def cook(sample: CrudeSample) -> TextSample:
    text = f"{sample['caption']} {tuple(sample['image.jpg'].shape)}"
    return TextSample(**basic_sample_keys(sample), text=text)


class Cooking(DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(cook),)


def test_without_a_field_map_samples_are_crude(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", captions())
    data = get_val_dataset(path, worker_config=config(), batch_size=2, task_encoder=Cooking())
    assert next(iter(get_savable_loader(data))).text == ["red of 0 (3, 6, 8)", "red of 1 (3, 6, 8)"]


@pytest.mark.parametrize("saved", [False, True])
def test_without_a_cooker_the_fields_that_fit_the_columns_are_named_and_work(tmp_path: Path, saved: bool) -> None:
    path = save_to_disk(tmp_path / "a", captions()) if saved else write_parquet(tmp_path / "a.parquet", captions())
    fields: dict[str, Any] = {"sample_type": CaptioningSample, "field_map": {"image": "image", "caption": "caption"}}
    with pytest.raises(ConfigError) as caught:
        get_val_dataset(path, worker_config=config(), batch_size=2)
    assert f"sample_type=CaptioningSample, field_map={json.dumps(fields['field_map'])}\nOr add" in str(caught.value)
    assert "fields of a sample: image.jpg (bytes), caption (str)" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        get_val_dataset(path, worker_config=config(), batch_size=2, sample_type=CaptioningSample)
    assert "there is no field_map, without which rows stay crude: give one" in str(caught.value)
    assert f"such as field_map={json.dumps(fields['field_map'])}. The columns: image, caption" in str(caught.value)
    batch = next(iter(get_savable_loader(get_val_dataset(path, worker_config=config(), batch_size=2, **fields))))
    assert batch.image.shape == (2, 3, 6, 8)


def test_a_table_of_texts_alone_is_one_of_text_samples(tmp_path: Path) -> None:
    path = write_text_table(tmp_path / "a.parquet", 3)
    with pytest.raises(ConfigError, match=r'field: sample_type=TextSample, field_map=\{"text": "text"\}\n'):
        get_val_dataset(path, worker_config=config(), batch_size=2)


def test_a_field_map_that_lacks_a_field_is_told_with_the_path_and_the_columns(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", captions())
    with pytest.raises(ConfigError) as caught:
        get_val_dataset(
            path, worker_config=config(), batch_size=2, sample_type=CaptioningSample, field_map={"image": "image"}
        )
    assert str(caught.value) == (
        f"{path}: field_map: 'caption' is missing, which CaptioningSample requires; add 'caption' with one of the "
        "columns image, caption"
    )


def test_a_dataset_yaml_beside_the_data_says_what_samples_are(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", captions())
    kind = {"__module__": "bridge_data", "__class__": "TextSample"}
    (tmp_path / "fields.yaml").write_text(json.dumps({"sample_type": kind, "field_map": {"text": "caption"}}))
    data = get_val_dataset(path, worker_config=config(), batch_size=1, dataset_config="fields.yaml")
    assert next(iter(get_savable_loader(data))).text == ["red of 0"]
    with pytest.raises(ConfigError, match=r"other\.yaml: no such file; a dataset_config is a file next to the data"):
        get_val_dataset(path, worker_config=config(), batch_size=1, dataset_config="other.yaml")


def metadataset(folder: Path, **entry: Any) -> Path:
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    file = folder / "meta.yaml"
    file.write_text(json.dumps({**head, "splits": {"train": entry}}))
    return file


def test_a_metadataset_names_columns_and_a_range(tmp_path: Path) -> None:
    write_text_table(tmp_path / "a.parquet", 100)
    entry = {"sample_type": "TextSample", "field_map": {"text": "text"}, "subset": {"range": [10, 20]}}
    (source,) = load_plan(metadataset(tmp_path, path="a.parquet", **entry)).sources
    reader = source.records.reader()
    assert [reader.read(index).parts["text"] for index in range(10)] == list(map(str, range(10, 20)))


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"sample_type": "TextSample", "field_map": {"text": "txet"}}, "has no column 'txet'; did you mean 'text'"),
        ({"sample_type": "TextSampel", "field_map": {"text": "text"}}, "unknown sample class 'TextSampel'"),
        (
            {"sample_type": "TextSample"},
            r"field_map is missing: say which column \(text\) gives each field of TextSample",
        ),
        ({"split_config": "split.yaml"}, "split_config is for prepared folders"),
        ({"field_map": {"text": "text"}, "dataset_config": "a.yaml"}, "field_map says the same"),
        ({"path": "none.parquet"}, "there are no files .parquet or .arrow"),
    ],
)
def test_mistakes_name_file_and_line(tmp_path: Path, entry: dict[str, Any], told: str) -> None:
    write_text_table(tmp_path / "a.parquet", 10)
    with pytest.raises(ConfigError, match=told) as caught:
        load_plan(metadataset(tmp_path, **{"path": "a.parquet", **entry}))
    assert "meta.yaml" in str(caught.value)


def test_a_field_map_of_other_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="field_map is for Parquet files and data sets of Hugging Face"):
        load_plan(metadataset(tmp_path, path="a.jsonl", field_map={"text": "text"}))


def test_bytes_of_polars_are_bytes(tmp_path: Path) -> None:
    """Whose type is a view, and which a name such as `jpg` decodes."""
    views = pa.array([picture(1, "JPEG")]).cast(pa.binary_view())
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, pa.schema({"jpg": views.type})) as to,
    ):
        to.write_table(pa.table({"jpg": views}))
    dataset = get_val_dataset(
        tmp_path / "a.arrow", worker_config=config(), batch_size=1, sample_type=ImageSample, field_map={"image": "jpg"}
    )
    (batch,) = get_savable_loader(dataset)
    assert batch.image.shape == (1, 3, 6, 8)


def test_saved_data_whose_rows_are_chosen_elsewhere_are_refused(tmp_path: Path) -> None:
    folder = write_text_table(tmp_path / "saved", 10)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "_indices_data_files": [{"filename": "indices.arrow"}]}))
    with pytest.raises(ConfigError, match="flatten_indices"):
        load_plan(folder)


@pytest.mark.processes
@pytest.mark.parametrize("saved", [False, True])
def test_a_state_goes_on_after_the_last_batch(tmp_path: Path, saved: bool) -> None:
    path = write_text_table(tmp_path / ("a" if saved else "a.parquet"), 500)
    settings = {**SETTINGS, "repeat": True}

    def loader(num_workers: int) -> Any:
        return get_savable_loader(get_train_dataset(path, worker_config=config(num_workers), **settings, **TEXTS))

    with loader(2) as first, loader(0) as second:
        batches = iter(first)
        for _ in range(20):
            next(batches)
        state = first.save_state_rank()
        expected = [next(batches).__key__ for _ in range(20)]
        second.restore_state_rank(state)
        again = iter(second)
        found = [next(again) for _ in range(20)]
        assert [batch.__key__ for batch in found] == expected
        restored = second.dataset.restore_sample(found[3].__restore_key__)
        assert restored.__key__ == found[3].__key__ and restored.text == found[3].text


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    path = write_text_table(tmp_path / "a.parquet", 10)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r'needs pyarrow to be read: pip install "bridge-data\[parquet\]"'):
        load_plan(path)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("is_struct", [False, True])
@pytest.mark.parametrize("name_in_map", ["image", "image.jpg"])
def test_pictures_of_any_writer_are_decoded(tmp_path: Path, form: str, is_struct: bool, name_in_map: str) -> None:
    """Whose column says nothing of its content: the first value that is there decides."""
    contents = [picture(n, "PNG" if n % 2 else "JPEG") for n in range(9)]
    image = [{"bytes": one, "path": "x"} for one in contents] if is_struct else contents
    table = pa.table({"image": image, "caption": ["a"] * 9, "raw": [b"no picture"] * 9})
    path = write_parquet(tmp_path / "a.parquet", table) if form == "parquet" else save_to_disk(tmp_path / "a", table)
    fields: dict[str, Any] = {"field_map": {"image": name_in_map, "caption": "caption"}}
    data = get_val_dataset(path, worker_config=config(), batch_size=None, sample_type=CaptioningSample, **fields)
    assert [sample.image.shape for sample in get_savable_loader(data)] == [(3, 6, 8)] * 9
    (source,) = (
        load_plan(path).sources.values() if isinstance(load_plan(path).sources, dict) else load_plan(path).sources
    )
    assert source.records.reader().read(3).parts.keys() == {"image.jpg", "caption", "raw"}


def test_the_first_value_that_is_there_tells_what_a_column_holds_unless_its_name_does(tmp_path: Path) -> None:
    sound = b"RIFF....WAVEfmt "
    columns = {"a": [None, None, sound], "b": [b"text", picture(1, "PNG"), None], "c.bin": [picture(1, "PNG")] * 3}
    taken = {"d": [picture(1, "PNG")] * 3, "d.jpg": [picture(2, "PNG")] * 3, "e.png": [picture(1, "JPEG")] * 3}
    write_parquet(tmp_path / "a.parquet", pa.table({**columns, **taken}))
    records = open_records(location(tmp_path), [("a.parquet", str(tmp_path / "a.parquet"))], "train", list)
    assert [column.part for column in records.columns] == ["a.wav", "b", "c.bin.jpg", "d", "d.jpg", "e.png"]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_empty_bytes_say_nothing_of_a_column_and_bytes_that_may_be_anything_stay_bytes(
    tmp_path: Path, form: str
) -> None:
    columns = {
        "empty": [b"", None, picture(1, "PNG")],
        "pixels": [bytes([255, 250, 230]) * 4] * 3,
        "frames": [b"\xff\xf1\x50\x80" * 4] * 3,
        "embedding": [b"\0\0\x01\xb3" * 4] * 3,
        "phone": [b"\0\0\0\x18ftypheim\0\0\0\0"] * 3,
        "tagged": [b"ID3\x04"] * 3,
    }
    table = pa.table({name: pa.array(values, pa.binary()) for name, values in columns.items()})
    path = write_parquet(tmp_path / "a.parquet", table) if form == "parquet" else save_to_disk(tmp_path / "a", table)
    (source,) = load_plan(path).sources
    found = [column.part for column in source.records.columns]
    assert found == ["empty.jpg", "pixels", "frames", "embedding", "phone", "tagged.wav"]
