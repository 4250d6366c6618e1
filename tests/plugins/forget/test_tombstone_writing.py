"""Data with lists of forgotten samples: which keys are found, and what stays of a list that several data sets share."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bridge_data import (
    Cooker,
    DefaultTaskEncoder,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_val_dataset,
    stateless,
)
from bridge_data.data.metadata import BRIDGE_INDEX, META_FOLDER
from bridge_data.data.withheld import FORGOTTEN_BRIDGE
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.plugins.forget.tombstone_writing import (
    forget_samples,
    open_forgettable,
    read_tombstones,
    renew_tombstones,
)
from bridge_data.plugins.forget.tombstones import digest_of
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.prepare.tars import PrepareConfig, refresh_index
from bridge_data.samples import CrudeSample, TextSample
from tests.data.tars import reverse_tar
from tests.prepared import write_texts
from tests.tables import save_to_disk, table_of, write_parquet

FIELDS = {"sample_type": TextSample, "field_map": {"text": "text"}}


@stateless
def cook(sample: CrudeSample) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=sample["json"]["text"])


class Lines(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Texts out of JSON lines."""

    cookers = (Cooker(cook),)


def texts_of(path: Path) -> list[str]:
    """What a run sees."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    own: dict[str, Any] = {"task_encoder": Lines()} if path.suffix == ".jsonl" else FIELDS
    own = {} if (path / META_FOLDER).is_dir() else own
    dataset = get_val_dataset(path, split_part="train", worker_config=config, batch_size=1, **own)
    return [batch.text[0] for batch in get_savable_loader(dataset)]


def write_lines(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
    prepare_jsonl(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two Parquet files and two JSONL files."""
    for name in ("one", "two"):
        texts = [f"{name} {number}" for number in range(6)]
        write_parquet(tmp_path / f"{name}.parquet", table_of({"text": texts}), per_group=2)
        write_lines(tmp_path / f"{name}.jsonl", texts)
    return tmp_path


@pytest.fixture(params=["parquet", "jsonl"])
def files(folder: Path, request: pytest.FixtureRequest) -> list[Path]:
    return [folder / f"{name}.{request.param}" for name in ("one", "two")]


def test_a_file_loses_its_samples_and_others_of_the_folder_keep_theirs(files: list[Path]) -> None:
    one, two = files
    assert forget_samples(one, ["1", f"{one.name}/4", f"{one.name}:1"], "asked for").num_forgotten == 2
    assert texts_of(one) == ["one 0", "one 2", "one 3", "one 5"]
    assert texts_of(two) == [f"two {number}" for number in range(6)]
    assert not load_plan(two, training=False).sources[0].withheld, "its states do not depend on the other's list"
    assert forget_samples(two, ["0"], "asked for").num_forgotten == 1
    assert (len(texts_of(one)), len(texts_of(two))) == (4, 5)
    assert forget_samples(one, ["4"], "was a mistake", restore=True).num_forgotten == 1
    assert texts_of(one) == ["one 0", "one 2", "one 3", "one 4", "one 5"]
    (found,) = read_tombstones(one)
    assert [version.action for version in found.versions] == ["forget", "forget", "restore"]


def refused(path: Path, told: str) -> None:
    """Neither a run nor `forget` takes the data at `path`."""
    for act in (texts_of, lambda path: forget_samples(path, ["0"], "asked for")):
        with pytest.raises(DatasetError, match=told):
            act(path)


def write_again(file: Path, texts: list[str]) -> None:
    """Write other rows to `file`."""
    if file.suffix == ".jsonl":
        write_lines(file, texts)
    else:
        write_parquet(file, table_of({"text": texts}), per_group=2)


def test_a_file_that_was_rewritten_is_refused_until_its_keys_were_looked_up_again(files: list[Path]) -> None:
    one, two = files
    forget_samples(one, ["1", "5"], "asked for")
    forget_samples(two, ["0", "3"], "asked for")
    write_again(one, ["new 0", "new 1"])
    refused(one, rf"shard {one.name} has changed since .* forget .*{one.name}.* --renew")
    assert texts_of(two) == ["two 1", "two 2", "two 4", "two 5"]
    report = renew_tombstones(one, "was written anew")
    assert (report.num_changed, report.num_forgotten, report.ignored) == (1, 1, [f"{one.name}:5"])
    assert texts_of(one) == ["new 0"]
    assert texts_of(two) == ["two 1", "two 2", "two 4", "two 5"], "they are not of the data that was looked up again"
    assert renew_tombstones(two, "again").num_forgotten == 2
    write_again(two, ["longer than before"] * 6)
    one.unlink()
    refused(two, rf"shard {two.name} has changed")


def rewritten(file: Path, texts: list[str]) -> None:
    """Write other rows to `file`, which keeps its size and their number."""
    num_bytes = file.stat().st_size
    write_again(file, texts)
    assert file.stat().st_size == num_bytes


def test_a_file_that_was_rewritten_in_the_same_size_is_refused_too(files: list[Path]) -> None:
    one, two = files
    texts = [f"one {number}" for number in range(6)]
    if one.suffix == ".jsonl":
        texts = ["first", "2nd", *texts[2:]]
        write_lines(one, texts)
    forget_samples(one, ["1", "5"], "asked for")
    rewritten(one, texts)
    assert len(texts_of(one)) == 4, "the same content is the same file"
    rewritten(one, [texts[1], texts[0], *texts[2:]] if one.suffix == ".jsonl" else [*texts[2:], *texts[:2]])
    refused(one, rf"shard {one.name} has changed since .* forget .*{one.name}.* --renew")
    assert len(texts_of(two)) == 6
    assert renew_tombstones(one, "was written anew").num_forgotten == 2
    assert len(texts_of(one)) == 4


def test_a_list_without_digests_is_read_as_before(files: list[Path]) -> None:
    one, _ = files
    forget_samples(one, ["1", "5"], "asked for")
    file = one.parent / FORGOTTEN_BRIDGE
    (version,) = read_tombstones(one)[0].versions
    shards = {name: replace(shard, stamp=shard.stamp._replace(digest=None)) for name, shard in version.shards.items()}
    old = replace(version, shards=shards)
    file.write_text(replace(old, digest=digest_of(old, "")).line())
    num_bytes, num_samples = one.stat().st_size, 6
    assert f'"{one.name}": [{num_bytes}, {num_samples}, [[1, "1"], [5, "5"]]]' in file.read_text()
    assert len(texts_of(one)) == 4
    rewritten(one, [f"two {number}" for number in range(6)])
    assert texts_of(one) == ["two 0", "two 2", "two 3", "two 4"]
    forget_samples(one, ["2"], "asked for")
    assert read_tombstones(one)[0].shards[one.name].stamp.digest is not None
    assert len(texts_of(one)) == 3


def test_tars_that_were_rewritten_in_the_same_size_are_refused_once_they_are_prepared(tmp_path: Path) -> None:
    root = write_texts(tmp_path / "texts", 20, per_shard=10)
    forget_samples(root, ["000003", "000015"], "asked for")
    for settings in (PrepareConfig(digest=True), PrepareConfig()):
        refresh_index(root, settings)
        assert len(texts_of(root)) == 18, "the same shards, with digests of contents or without"
    (root / META_FOLDER / BRIDGE_INDEX).unlink()
    assert len(texts_of(root)) == 18, "without our index sizes and counts are compared"
    refresh_index(root)
    reverse_tar(root / "data-0001.tar")
    refresh_index(root)
    with pytest.raises(DatasetError, match=r"shard data-0001.tar has changed since .* --renew"):
        texts_of(root)
    assert renew_tombstones(root, "was written anew").num_forgotten == 2
    assert "15" not in texts_of(root) and len(texts_of(root)) == 18


def test_a_file_that_was_renamed_is_refused_until_its_keys_were_looked_up_again(files: list[Path]) -> None:
    one, two = files
    forget_samples(one, ["1", "5"], "asked for")
    forget_samples(two, ["0"], "asked for")
    new = one.with_stem("new")
    for file in one.parent.glob(f"{one.name}*"):
        file.rename(file.with_name(file.name.replace("one", "new")))
    refused(new, rf"{one.name}, in which .* is gone, and {new.name} may be .* --renew")
    assert texts_of(two) == [f"two {number}" for number in range(1, 6)], "its name is in the list"
    assert renew_tombstones(two, "again").num_forgotten == 1
    report = renew_tombstones(new, "has a new name")
    assert (report.num_changed, report.num_forgotten, report.ignored) == (2, 2, [])
    assert texts_of(new) == ["one 0", "one 2", "one 3", "one 4"]


def test_a_file_that_was_removed_is_no_obstacle_for_others(files: list[Path]) -> None:
    one, two = files
    forget_samples(one, ["1"], "asked for")
    write_again(two, ["longer than before"] * 6)
    assert len(texts_of(two)) == 6, "there is the file that the list names"
    one.unlink()
    assert len(texts_of(two)) == 6
    assert renew_tombstones(two, "again").lists[0].samples(2) == {one.name: {1: "1"}}


def test_a_folder_and_a_pattern_find_the_lists_of_their_files_and_others_pass_them_over(folder: Path) -> None:
    for file in folder.glob("*.jsonl*"):
        file.unlink()
    left = folder / f".{FORGOTTEN_BRIDGE}.0123abcd.1.tmp"
    left.write_text("what a killed process has left")
    forget_samples(folder, ["two.parquet/2"], "asked for")
    assert not left.exists()
    with pytest.raises(ConfigError, match=r"'2': in one.parquet, two.parquet: say which, as SHARD:KEY"):
        forget_samples(folder, ["2"], "asked for")
    for path in (folder, folder / "*.parquet", folder / "{one,two}.parquet"):
        assert texts_of(path) == [f"{name} {n}" for name in ("one", "two") for n in range(6) if (name, n) != ("two", 2)]
    assert len(texts_of(folder / "two.parquet")) == 5
    assert pq.read_table(folder).num_rows == 12, "other readers pass over the list"
    damaged = folder / FORGOTTEN_BRIDGE
    damaged.write_text(damaged.read_text().replace("asked", "bored"))
    for name in ("one.parquet", "two.parquet"):
        with pytest.raises(DatasetError, match=r"_forgotten.bridge:1: the list of forgotten samples is damaged"):
            texts_of(folder / name)


@pytest.mark.parametrize("names", ["abc", "xyz"], ids=["old names", "new names"])
def test_rows_that_moved_to_other_files_are_found_by_their_keys(tmp_path: Path, names: str) -> None:
    keys = [f"key {number}" for number in range(12)]

    def write(names: str) -> None:
        for file in tmp_path.glob("*/*.parquet"):
            file.unlink()
        for number, name in enumerate(names):
            own = keys[number :: len(names)]
            write_parquet(tmp_path / f"part {number}" / f"{name}.parquet", table_of({"__key__": own, "text": own}))

    write("ab")
    forget_samples(tmp_path, ["key 5", "key 8"], "asked for")
    write(names)
    report = renew_tombstones(tmp_path, "resharded")
    assert (report.num_changed, report.num_forgotten, report.ignored) == (2, 2, [])
    assert sorted(texts_of(tmp_path)) == sorted({*keys} - {"key 5", "key 8"})


def test_split_parts_may_have_different_columns(tmp_path: Path) -> None:
    tables = {"train": {"__key__": ["a", "b"], "text": ["0", "1"]}, "test": {"text": ["2", "3"]}}
    for split, columns in tables.items():
        save_to_disk(tmp_path / split, table_of(columns))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert forget_samples(tmp_path, ["a", "1"], "asked for").num_forgotten == 2
    assert texts_of(tmp_path) == texts_of(tmp_path / "train") == ["1"]
    assert texts_of(tmp_path / "test") == ["2"]
    assert renew_tombstones(tmp_path, "again").num_changed == 2


def test_samples_with_the_same_key_go_together_and_keys_may_have_slashes(tmp_path: Path) -> None:
    keys = ["a/b", "c", "a/b", "x.parquet/c", "d"]
    path = write_parquet(tmp_path / "x.parquet", table_of({"__key__": keys, "text": list("01234")}), per_group=2)
    assert forget_samples(path, ["a/b"], "asked for").num_changed == 2
    assert texts_of(path) == ["1", "3", "4"]
    with pytest.raises(ConfigError, match=r"'x.parquet/c': in x.parquet, x.parquet"):
        forget_samples(path, ["x.parquet/c"], "asked for")
    with pytest.raises(ConfigError, match=r"2 keys are wrong.*\n.*'nope': no sample has this key\n.*'5'"):
        forget_samples(path, ["d", "nope", "5"], "asked for")
    assert forget_samples(path, ["x.parquet:x.parquet/c"], "asked for").num_changed == 1
    assert texts_of(path) == ["1", "4"]


def test_a_saved_data_set_finds_the_rows_of_each_file(tmp_path: Path) -> None:
    path = save_to_disk(tmp_path / "saved", table_of({"text": list(map(str, range(7)))}), per_batch=2, num_files=2)
    files = sorted(file.name for file in path.glob("*.arrow"))
    state = path / "state.json"
    state.write_text(state.read_text().replace("data-", "./data-", 1))  # which may name its files in another way
    forget_samples(path, [f"{files[0]}/2", f"{files[1]}:0"], "asked for")
    assert texts_of(path) == ["0", "1", "4", "5", "6"]


def test_names_and_reasons_may_have_bytes_that_are_no_utf_8(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "caf\udce9.jsonl", ["0", "1"])
    assert forget_samples(path, ["1"], "caf\udce9").num_forgotten == 1
    assert texts_of(path) == ["0"]
    assert read_tombstones(path)[0].newest.reason == "caf\udce9"


def test_a_folder_is_asked_once_whether_it_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_texts(tmp_path / "texts", 20, per_shard=1)
    real = tmp_path / "real"
    real.mkdir()
    for tar in root.glob("*.tar"):
        tar.rename(real / tar.name)
        tar.symlink_to(real / tar.name)
    asked: list[Path] = []
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda self: asked.append(self) or is_file(self))
    own, other = open_forgettable(root).lists
    assert (own.path.parent.parent, other.path.parent, len(other.stamps)) == (root, real, 20)
    of_real = [path for path in asked if path.parent == real / META_FOLDER]
    assert of_real and len(of_real) == len(set(of_real))
