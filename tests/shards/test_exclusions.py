import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.shards import PreparedDataset, open_shards
from bridge_data.shards.index_file import IndexPage, Segment
from tests.prepared import write_texts
from tests.shards.tars import keys_of, set_split

EXCLUDE = (
    "split_parts: {train: ['data-{000000..000002}.tar'], val: [data-000003.tar]}\n"
    "exclude: [data-000001.tar, 'data-000000.tar/00000{0,3}', data-000003.tar/000016]\n"
)
KEPT = ["000001", "000002", "000004", "000010", "000011", "000012", "000013", "000014"]


def no_samples(folder: Path) -> None:
    """As an older database, which knows none."""
    (folder / ".nv-meta/index.bridge").unlink()
    with sqlite3.connect(folder / ".nv-meta/index.sqlite") as db:
        db.execute("DROP TABLE samples")


def damaged_page(folder: Path) -> None:
    index = folder / ".nv-meta/index.bridge"
    content = bytearray(index.read_bytes())
    content[content.index(b"000000000001")] ^= 1
    index.write_bytes(content)


def remove(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / ".nv-meta" / name).unlink() for name in names] and None


@pytest.mark.parametrize(
    "change", [remove(), remove("index.bridge"), remove("index.bridge", "index.sqlite"), no_samples, damaged_page]
)
def test_exclusions_by_each_index(folder: Path, change: Callable[[Path], None]) -> None:
    change(folder)
    set_split(folder, EXCLUDE)
    dataset = PreparedDataset.open(folder)
    train = dataset.split("train")
    assert (train.names, train.counts) == (("data-000000.tar", "data-000002.tar"), [3, 5])
    assert train.excluded == {"data-000000.tar/000000", "data-000000.tar/000003"}
    assert keys_of(train) == KEPT
    assert keys_of(dataset.split("val")) == ["000015", "000017", "000018", "000019"]


def test_an_exclusion_of_nothing_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    set_split(
        folder, "split_parts: {train: [data-000000.tar]}\nexclude: [data-000000.tar/gone, data-000000.tar/000001]"
    )
    with caplog.at_level(logging.WARNING):
        assert open_shards(folder, "train").counts == [4]
    assert "`exclude` names gone of shard data-000000.tar" in caplog.text


@pytest.mark.parametrize(
    ("first", "left"),
    [
        ("[data-000001.tar, 'data-000000.tar/00000{0,3}']", [2, 4]),
        ("[data-000001.tar]", [0, 2, 3, 4]),
        ("[]", [0, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("", [0, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_all_lists_of_exclusions_hold_if_there_are_several(
    folder: Path, caplog: pytest.LogCaptureFixture, first: str, left: list[int]
) -> None:
    split = f"split_parts: {{train: ['data-{{000000..000002}}.tar']}}\nexclude: {first}\n\n"
    set_split(folder, split + "exclude:\n- data-000002.tar\n- data-000000.tar/000001\n")
    with caplog.at_level(logging.WARNING):
        assert [int(key) for key in keys_of(open_shards(folder, "train"))] == left
    assert f"{folder / '.nv-meta/split.yaml'}:4: 'exclude' is already in line 2" in caplog.text


@pytest.mark.parametrize("split", ["exclude: all\nsplit_parts: {}\nexclude: []", "split_parts: {}\nsplit_parts: {}"])
def test_another_key_twice_is_refused_with_both_lines(folder: Path, split: str) -> None:
    set_split(folder, split)
    with pytest.raises(ConfigError, match=r"split\.yaml:[23]: key '\w+' is already in line 1"):
        open_shards(folder, "train")


@pytest.mark.parametrize("change", ["sample_index = 1 - sample_index WHERE sample_index < 2", "sample_index = 99"])
def test_positions_that_only_energons_index_has_are_not_believed(folder: Path, change: str) -> None:
    with sqlite3.connect(folder / ".nv-meta/index.sqlite") as db:
        db.execute("DROP INDEX IF EXISTS idx_samples_by_tar_and_idx")
        db.execute(f"UPDATE samples SET {change}")
    set_split(folder, EXCLUDE)
    assert keys_of(open_shards(folder, "train")) == KEPT


@pytest.mark.parametrize("kind", ["data-000000.tar.idx", "damaged", "data-000000.tar"])
def test_exclusions_that_cannot_be_found_are_an_error(folder: Path, kind: str) -> None:
    for name in ("index.bridge", "index.sqlite"):
        (folder / ".nv-meta" / name).unlink()
    if kind == "damaged":
        content = bytearray((folder / "data-000000.tar").read_bytes())
        content[:512] = b"x" * 512
        (folder / "data-000000.tar").write_bytes(content)
    else:
        (folder / kind).unlink()
    set_split(folder, EXCLUDE)
    with pytest.raises(DatasetError, match=r"data-000000\.tar"):
        open_shards(folder, "train")


def test_opening_reads_only_the_pages_of_excluded_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_texts(tmp_path / "large", 3000, per_shard=1500)
    read_page, pages = Segment.read_page, []

    def counted(segment: Segment, number: int) -> IndexPage:
        pages.append(number)
        return read_page(segment, number)

    monkeypatch.setattr(Segment, "read_page", counted)
    set_split(folder, "split_parts: {train: ['data-{0000..0001}.tar']}\nexclude: [data-0001.tar/002999]\n")
    shards = open_shards(folder, "train")
    assert (shards.counts, shards.excluded_positions) == ([1500, 1499], {1: (1499,)})
    assert pages == [1499 // 256]
