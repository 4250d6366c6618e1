"""`convert --where`: what is written is what a run with the same condition would see."""

from pathlib import Path
from typing import Any

import pytest

from bridge_data import TextSample, WorkerConfig, get_loader, get_val_dataset
from bridge_data.prepare.tombstone_writing import forget_samples
from tests.prepared import write_texts
from tests.tables import save_to_disk, table_of, write_parquet
from tests.tools.cli.runner import run_command

SIZE = 200
TEXTS: dict[str, Any] = {"sample_type": TextSample, "field_map": {"text": "text"}}
QUIET = ("--non-interactive", "--no-progress", "--num-workers", "1")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))


def texts(path: Path, **options: Any) -> list[str]:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    data = get_val_dataset(path, split_part="train", worker_config=config, batch_size=None, **options)
    return [sample.text for sample in get_loader(data)]


@pytest.mark.parametrize("form", ["one.parquet", "files", "saved"])
def test_rows_are_those_of_a_run(tmp_path: Path, form: str) -> None:
    table = table_of({"text": [str(n) for n in range(SIZE)], "score": [n / 10 for n in range(SIZE)]})
    write_parquet(tmp_path / "one.parquet", table, per_group=30)
    for number in range(2):
        write_parquet(tmp_path / "files" / f"part-{number}.parquet", table.slice(100 * number, 100), per_group=30)
    save_to_disk(tmp_path / "saved", table, per_batch=30, num_files=2)
    where = "score >= 9.5 and text like '%5' or index = 3"
    options = ("--where", where, "--sample-type", "TextSample", "--field", "text=text", "--drop", "score", *QUIET)
    result = run_command("convert", tmp_path / form, tmp_path / "out", *options)
    assert result.exit_code == 0, result.output
    assert "chosen are 12 of 200 records" in result.output
    expected = [str(n) for n in range(SIZE) if (n >= 95 and n % 10 == 5) or n == 3]
    assert texts(tmp_path / "out") == expected == texts(tmp_path / form, where=where, **TEXTS)


def test_samples_of_tars_are_those_of_a_run_and_what_is_forgotten_stays_so(tmp_path: Path) -> None:
    root = write_texts(tmp_path / "texts", SIZE, ratio="3,1,0")
    forget_samples(root, ["000020", "000021"], "asked for")
    where = "index % 10 = 0 and txt.bytes > 1"
    result = run_command("convert", root, tmp_path / "out", "--where", where, "--max-samples", "7", *QUIET)
    assert result.exit_code == 0, result.output
    expected = [str(n) for n in range(10, SIZE, 10) if n != 20]
    assert texts(tmp_path / "out") == expected
    assert sorted(texts(root, where=where)) == sorted(text for text in expected if int(text) < 150)  # the part train
    assert len(list((tmp_path / "out").rglob("*.tar"))) == 3


def test_the_same_command_goes_on_and_another_condition_is_another_conversion(tmp_path: Path) -> None:
    root = write_texts(tmp_path / "texts", SIZE)
    options = ("--shuffle", "3", *QUIET)
    assert run_command("convert", root, tmp_path / "out", "--where", "index < 50", *options).exit_code == 0
    again = run_command("convert", root, tmp_path / "out", "--where", "index<50", *options)
    assert again.exit_code == 0 and "was converted by the same command already" in again.output
    other = run_command("convert", root, tmp_path / "out", "--where", "index < 51", *options)
    assert other.exit_code == 1 and "holds a data set already" in other.output
    assert sorted(map(int, texts(tmp_path / "out"))) == list(range(50))


def test_what_has_no_columns_and_what_chooses_nothing_is_refused(tmp_path: Path) -> None:
    root = write_texts(tmp_path / "texts", 60)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    for source, where, told in (
        (tmp_path / "a.jsonl", "index = 0", "where: is for prepared folders of tars, Parquet and Arrow files"),
        (root, "txt.bytes > 99", "chooses none of the 60 records"),
        (root, "txt.byte > 9", "did you mean 'txt.bytes'"),
    ):
        result = run_command("convert", source, tmp_path / "out", "--where", where, *QUIET)
        assert result.exit_code == 1 and told in result.output
