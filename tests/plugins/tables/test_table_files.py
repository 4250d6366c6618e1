"""Tables in plans: which files a split part has, field maps, and data sets as a user has them."""

import json
import re
import sys
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
    get_val_dataset,
    stateless,
)
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.plan.opening import split_parts
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from bridge_data.plugins.tables.table_files import files_of
from bridge_data.storage import location
from tests.decode.pictures import encoded
from tests.object_store import Bucket
from tests.plan.joins import metadataset
from tests.tables import IMAGE, opened, save_to_disk, table_of, write_parquet, write_text_table

TEXTS: dict[str, Any] = {"sample_type": TextSample, "field_map": {"text": "text"}}


def config() -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=1, num_workers=0)


def picture(number: int, form: str) -> bytes:
    return encoded(Image.new("RGB", (8, 6), (number, 0, 0)), form)


def captions(size: int = 30) -> pa.Table:
    contents = [picture(number, "PNG" if number % 2 else "JPEG") for number in range(size)]
    image = [{"bytes": one, "path": None} for one in contents]
    return table_of({"image": image, "caption": [f"red of {n}" for n in range(size)]}, {"image": IMAGE})


def write(folder: Path, form: str, table: pa.Table) -> Path:
    """A Parquet file, or a saved data set."""
    return save_to_disk(folder / "a", table) if form == "arrow" else write_parquet(folder / "a.parquet", table)


def val(path: Path, batch_size: int | None = None, **settings: Any) -> Any:
    return get_val_dataset(path, worker_config=config(), batch_size=batch_size, **settings)


def write_tables(folder: Path) -> None:
    """Tables of every kind, whose rows are told apart."""
    write_text_table(folder / "one.parquet", 90)
    for name, first in (("train-00000-of-00002", 0), ("train-00001-of-00002", 100), ("validation-00000-of-00001", 200)):
        write_text_table(folder / "hub" / "data" / f"{name}.parquet", 40, lambda row, first=first: str(row + first))
    write_text_table(folder / "saved", 90)
    for part in ("train", "val"):
        write_text_table(folder / "dict" / part, 30)
    (folder / "dict" / "dataset_dict.json").write_text('{"splits": ["train", "val"]}')
    write_text_table(folder / "hub" / ".hidden" / "train.parquet", 5)


def keys_and_texts(path: str, split_part: str = "train") -> list[tuple[str, str]]:
    return [(sample.__key__, sample.text) for sample in get_savable_loader(val(path, split_part=split_part, **TEXTS))]


@pytest.mark.parametrize(
    ("path", "split_part", "num_rows"),
    [
        ("one.parquet", "train", 90),
        ("one.parquet", "val", 90),
        ("saved", "train", 90),
        ("dict", "val", 30),
        ("hub/data", "train", 80),
        ("hub/data", "val", 40),
        ("hub/data/train-*.parquet", "train", 80),
        ("hub/**/*.parquet", "train", 120),
        ("hub/data/{train-00000-of-00002,validation-00000-of-00001}.parquet", "train", 80),
        ("hub/data/train-0000{0..1}-of-00002.parquet", "train", 80),
        ("*.parquet", "train", 90),
    ],
)
def test_all_rows_come_once_and_from_a_store_those_of_the_local_copy(
    bucket: Bucket, path: str, split_part: str, num_rows: int
) -> None:
    write_tables(bucket.folder)
    found = keys_and_texts(str(bucket.folder / path), split_part)
    assert found == keys_and_texts(f"{bucket.url}/{path}", split_part)
    assert len(found) == len({key for key, _ in found}) == num_rows
    assert split_parts(location(f"{bucket.url}/dict")) == split_parts(bucket.folder / "dict") == ["train", "val"]


def test_lists_of_forgotten_samples_are_read_from_every_folder(bucket: Bucket) -> None:
    write_tables(bucket.folder)
    forget_samples(bucket.folder / "hub" / "data", ["train-00001-of-00002.parquet/3"], "asked for")
    forget_samples(bucket.folder / "dict", ["val/data-00000-of-00002.arrow/7"], "asked for")
    for path, part, num_rows in (("hub/data", "train", 79), ("hub/**/*.parquet", "train", 119), ("dict", "val", 29)):
        found = keys_and_texts(f"{bucket.url}/{path}", part)
        assert found == keys_and_texts(str(bucket.folder / path), part)
        assert len(found) == num_rows
    (bucket.folder / "hub" / "data" / "_forgotten.bridge").write_text("{}")
    with pytest.raises(DatasetError, match=rf"{bucket.url}/hub/data/_forgotten.bridge:1: .* is damaged"):
        load_plan(f"{bucket.url}/hub/data")
    with pytest.raises(ConfigError, match=r"hub/none-\*\.parquet: there are no files"):
        load_plan(f"{bucket.url}/hub/none-*.parquet")


def test_a_file_in_a_store_that_is_replaced_is_an_error_and_other_data(bucket: Bucket) -> None:
    path, url = bucket.folder / "long.parquet", f"{bucket.url}/long.parquet"
    write_text_table(path, 4_000, lambda row: f"{row:0500d}", per_group=500)
    source = opened(url)
    reader = source.records.reader()
    assert reader.read(3).parts["text"] == f"{3:0500d}"
    before = source.records.identity()
    write_text_table(path, 4_000, lambda row: f"{-row:0500d}", per_group=500)
    with pytest.raises(DatasetError, match=rf"{url}: .*was replaced while it was in use.* in a store the ETag"):
        for index in range(0, 4_000, 100):
            reader.read(index)
    assert opened(url).records.identity() != before


def test_files_that_are_missing_by_their_numbers_are_an_error_but_for_a_pattern(tmp_path: Path) -> None:
    for name in ("a/train-00000-of-00003", "a/train-00002-of-00003", "b/train-00001-of-00001", "a/val-00000-of-00001"):
        write_text_table(tmp_path / f"{name}.parquet", 5)
    with pytest.raises(ConfigError, match=r"1 of 3 .* a/train-00001-of-00003:") as caught:
        load_plan(tmp_path)
    assert len(load_plan(tmp_path, split_part="val").sources) == 1
    fix = str(caught.value).rpartition("(")[2].rstrip(")")
    assert len(files_of(fix, "train")) == 2
    with pytest.raises(ConfigError, match=r"\{a,b\.parquet: cannot be expanded"):
        files_of(f"{tmp_path}/{{a,b.parquet", "train")


@pytest.mark.parametrize(
    ("form", "names"), [("data/{}-00000-of-00001", ["train", "extra", "validation"]), ("{}/a", ["train", "validation"])]
)
def test_split_parts_are_those_of_files_or_folders(tmp_path: Path, form: str, names: list[str]) -> None:
    for name in names:
        write_text_table(tmp_path / f"{form.format(name)}.parquet", 5)
    assert split_parts(tmp_path) == names
    assert [name for name, _ in files_of(str(tmp_path), "val")] == [f"{form.format('validation')}.parquet"]
    with pytest.raises(ConfigError, match=f"no split part 'test'; there is {', '.join(names)}"):
        files_of(str(tmp_path), "test")
    assert load_plan(tmp_path, split_part="val").sources[0].num_samples == 5
    write_text_table(tmp_path / "more.parquet", 5)
    with pytest.raises(ConfigError, match="names no split part, but others name"):
        split_parts(tmp_path)


def test_names_that_say_nothing_of_splits_are_one_data_set_without_hidden_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("part-00000-of-00003", "part-00001-of-00003", "_old/00", ".cache/train", "part-00002-of-00003"):
        write_text_table(tmp_path / f"{name}.parquet", 5)
    assert split_parts(tmp_path) == ["train"]
    assert "begin with . or _: .cache/train.parquet, _old/00.parquet" in caplog.text
    assert load_plan(tmp_path).sources[0].num_samples == load_plan(tmp_path, split_part="val").sources[0].num_samples
    (tmp_path / "part-00001-of-00003.parquet").unlink()
    with pytest.raises(ConfigError, match="1 of 3 files are not there"):
        load_plan(tmp_path)
    write_text_table(tmp_path / "own" / "test_sft-00000-of-00001.parquet", 5)
    assert split_parts(tmp_path / "own") == ["test_sft"]
    write_text_table(tmp_path / "_delta_log" / "00.checkpoint.parquet", 5)
    with pytest.raises(ConfigError, match="is a Delta table"):
        load_plan(tmp_path)


CAPTIONS: dict[str, Any] = {
    "sample_type": CaptioningSample,
    "field_map": {"image": "image", "caption": "caption"},
}


@stateless
def cook(sample: CrudeSample) -> TextSample:
    text = f"{sample['caption']} {tuple(sample['image.jpg'].shape)}"
    return TextSample(**basic_sample_keys(sample), text=text)


class Cooking(DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(cook),)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_pictures_and_captions_become_samples_or_without_a_field_map_crude_ones(tmp_path: Path, form: str) -> None:
    path = write(tmp_path, form, captions())
    for number, sample in enumerate(get_savable_loader(val(path, **CAPTIONS))):
        assert sample.image.shape == (3, 6, 8) and sample.caption == f"red of {number}"
        assert abs(float(sample.image[0, 0, 0]) * 255 - number) <= 3
    cooked = next(iter(get_savable_loader(val(path, 2, task_encoder=Cooking()))))
    assert cooked.text == ["red of 0 (3, 6, 8)", "red of 1 (3, 6, 8)"]


def test_settings_that_are_missing_are_named_with_those_that_fit_the_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "parquet", captions())
    texts = write_text_table(tmp_path / "texts.parquet", 3)
    lacking = (
        f"{path}: field_map: 'caption' is missing, which CaptioningSample requires; add 'caption' with one of the "
        "columns image, caption"
    )
    for data, settings, told in (
        (path, {}, "or give sample_type, and field_map, which says which column gives each field"),
        (path, {}, "fields of a sample: image.jpg (bytes), caption (str)"),
        (path, {"sample_type": CaptioningSample}, "gives each field. The fields of a row: image.jpg (bytes), caption"),
        (path, {"sample_type": CaptioningSample, "field_map": {"image": "image"}}, lacking),
        (path, {"dataset_config": "other.yaml"}, "other.yaml: no such file; a dataset_config is a file next to the da"),
        (texts, {}, "or give sample_type, and field_map, which says which column gives each field"),
    ):
        with pytest.raises(ConfigError, match=re.escape(told)):
            val(data, 2, **settings)
    kind = {"__module__": "bridge_data", "__class__": "TextSample"}
    (tmp_path / "fields.yaml").write_text(json.dumps({"sample_type": kind, "field_map": {"text": "caption"}}))
    assert next(iter(get_savable_loader(val(path, 1, dataset_config="fields.yaml")))).text == ["red of 0"]


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
        (
            {"path": "a.jsonl", "field_map": {"text": "text"}},
            "field_map is for Parquet files and data sets of Hugging Face",
        ),
    ],
)
def test_mistakes_name_file_and_line(tmp_path: Path, entry: dict[str, Any], told: str) -> None:
    write_text_table(tmp_path / "a.parquet", 10)
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=rf"meta\.yaml.*{told}"):
        load_plan(metadataset(tmp_path / "meta.yaml", {"path": "a.parquet", **entry}))


def test_bytes_of_polars_are_bytes(tmp_path: Path) -> None:
    """Whose type is a view, and which a name such as `jpg` decodes."""
    views = pa.array([picture(1, "JPEG")]).cast(pa.binary_view())
    path = write(tmp_path, "arrow", pa.table({"jpg": views}))
    (batch,) = get_savable_loader(val(path, 1, sample_type=ImageSample, field_map={"image": "jpg"}))
    assert batch.image.shape == (1, 3, 6, 8)


def test_saved_data_whose_rows_are_chosen_elsewhere_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_text_table(tmp_path / "saved", 10)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "_indices_data_files": [{"filename": "indices.arrow"}]}))
    with pytest.raises(ConfigError, match="flatten_indices"):
        load_plan(folder)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="pip install pyarrow"):
        load_plan(write_text_table(tmp_path / "a.parquet", 10))


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("is_struct", [False, True])
@pytest.mark.parametrize("name_in_map", ["image", "image.jpg"])
def test_pictures_of_any_writer_are_decoded(tmp_path: Path, form: str, is_struct: bool, name_in_map: str) -> None:
    """Whose column says nothing of its content: the first value that is there decides."""
    contents = [picture(n, "PNG" if n % 2 else "JPEG") for n in range(9)]
    image = [{"bytes": one, "path": "x"} for one in contents] if is_struct else contents
    path = write(tmp_path, form, pa.table({"image": image, "caption": ["a"] * 9, "raw": [b"no picture"] * 9}))
    data = val(path, sample_type=CaptioningSample, field_map={"image": name_in_map, "caption": "caption"})
    assert [sample.image.shape for sample in get_savable_loader(data)] == [(3, 6, 8)] * 9
    assert opened(path).records.reader().read(3).parts.keys() == {"image.jpg", "caption", "raw"}


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_the_first_value_that_is_there_tells_what_a_column_holds_unless_its_name_does(
    tmp_path: Path, form: str
) -> None:
    """Empty bytes say nothing, and bytes that may be anything stay bytes."""
    columns = {
        "a.wav": [None, None, b"RIFF....WAVEfmt "],
        "b": [b"text", picture(1, "PNG"), None],
        "c.bin.jpg": [picture(1, "PNG")] * 3,
        "d": [picture(1, "PNG")] * 3,
        "d.jpg": [picture(2, "PNG")] * 3,
        "e.png": [picture(1, "JPEG")] * 3,
        "empty.jpg": [b"", None, picture(1, "PNG")],
        "pixels": [bytes([255, 250, 230]) * 4] * 3,
        "frames": [b"\xff\xf1\x50\x80" * 4] * 3,
        "embedding": [b"\0\0\x01\xb3" * 4] * 3,
        "phone": [b"\0\0\0\x18ftypheim\0\0\0\0"] * 3,
        "tagged.wav": [b"ID3\x04"] * 3,
    }
    found = ("a.wav", "c.bin.jpg", "empty.jpg", "tagged.wav")
    names = [name.rpartition(".")[0] if name in found else name for name in columns]
    table = pa.table({name: pa.array(one, pa.binary()) for name, one in zip(names, columns.values(), strict=True)})
    records = opened(write(tmp_path, form, table)).records
    assert [column.part for column in records.columns] == [*columns]  # type: ignore[attr-defined]
