"""What `convert` takes: no forgotten records, and with `--where` those that a run with the same condition would see."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge_data import TextSample, WorkerConfig, get_loader, get_val_dataset
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from tests.cli.runner import run_command
from tests.data.tars import reverse_tar
from tests.prepared import write_texts
from tests.tables import save_to_disk, table_of, write_parquet

SIZE = 200
TEXTS: dict[str, Any] = {"sample_type": TextSample, "field_map": {"text": "text"}}
AS_TEXT = ("--sample-type", "TextSample", "--field-map", "text=text")
QUIET = ("--non-interactive", "--no-progress", "--num-workers", "1")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))


def texts(path: Path, **options: Any) -> list[str]:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    data = get_val_dataset(path, split_part="train", worker_config=config, batch_size=None, **options)
    return [sample.text for sample in get_loader(data)]


def converts(source: Path, target: Path, *options: object, told: str = "") -> list[str]:
    """The texts that are converted; what it says."""
    result = run_command("convert", source, target, *options, *QUIET)
    assert result.exit_code == 0 and told in result.output, result.output
    return texts(target)


def refused(source: Path, target: Path, *options: object, told: str) -> None:
    result = run_command("convert", source, target, *options, *QUIET)
    assert (result.exit_code, told in result.output) == (1, True), result.output


@pytest.mark.parametrize("form", ["one.parquet", "files", "saved"])
def test_rows_are_those_of_a_run(tmp_path: Path, form: str) -> None:
    table = table_of({"text": [str(n) for n in range(SIZE)], "score": [n / 10 for n in range(SIZE)]})
    write_parquet(tmp_path / "one.parquet", table, per_group=30)
    for number in range(2):
        write_parquet(tmp_path / "files" / f"part-{number}.parquet", table.slice(100 * number, 100), per_group=30)
    save_to_disk(tmp_path / "saved", table, per_batch=30, num_files=2)
    where = "score >= 9.5 and text like '%5' or index = 3"
    told, options = "chosen are 12 of 200 records", ("--where", where, *AS_TEXT, "--drop", "score")
    found = converts(tmp_path / form, tmp_path / "out", *options, told=told)
    expected = [str(n) for n in range(SIZE) if (n >= 95 and n % 10 == 5) or n == 3]
    assert found == expected == texts(tmp_path / form, where=where, **TEXTS)


def test_samples_of_tars_are_those_of_a_run_and_what_is_forgotten_stays_so(tmp_path: Path) -> None:
    root = write_texts(tmp_path / "texts", SIZE, ratio="3,1,0")
    forget_samples(root, ["000020", "000021"], "asked for")
    where = "index % 10 = 0 and txt.bytes > 1"
    expected = [str(n) for n in range(10, SIZE, 10) if n != 20]
    assert converts(root, tmp_path / "out", "--where", where, "--max-samples", "7") == expected
    assert sorted(texts(root, where=where)) == sorted(text for text in expected if int(text) < 150)  # the part train
    assert len(list((tmp_path / "out").rglob("*.tar"))) == 3


def test_the_same_command_goes_on_and_another_condition_is_another_conversion(tmp_path: Path) -> None:
    root, out, shuffle = write_texts(tmp_path / "texts", SIZE), tmp_path / "out", ("--shuffle", "3")
    assert sorted(map(int, converts(root, out, "--where", "index < 50", *shuffle))) == list(range(50))
    converts(root, out, "--where", "index<50", *shuffle, told="was converted by the same command already")
    refused(root, out, "--where", "index < 51", *shuffle, told="holds a data set already")


def write_lines(path: Path, numbers: Iterable[int]) -> Path:
    path.write_text("\n\n".join(json.dumps({"text": str(number)}) for number in numbers) + "\n")
    prepare_jsonl(path)
    return path


def test_lines_are_those_of_a_run_in_all_split_parts(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", range(SIZE))
    pq.write_table(pa.table({"key": ["7", "11", "150"], "score": [1, 2, 3]}), tmp_path / "scores.parquet")
    options = ("--where", "score > 1 or bytes < 16", "--columns", tmp_path / "scores.parquet")
    found = converts(path, tmp_path / "out", *AS_TEXT, *options, told="chosen are 12 of 200 records")
    assert found == [*map(str, range(10)), "11", "150"]
    path.with_name("a.jsonl.split.yaml").write_text("split_parts: {train: [20, 100], val: [150, 200], test: [9, 9]}\n")
    found = converts(path, tmp_path / "parts", *AS_TEXT, "--where", "index in (0, 1, 60)")
    assert found == ["20", "21", "80", "150", "151"]


def test_forgotten_samples_are_left_out_of_a_part_of_the_data_and_of_what_is_chosen(tmp_path: Path) -> None:
    files, tars, numbers = tmp_path / "files", write_texts(tmp_path / "tars", SIZE, per_shard=100), [*range(SIZE)]
    for number in range(2):
        table = table_of({"text": [*map(str, numbers[100 * number :][:100])]})
        write_parquet(files / str(number) / "part.parquet", table, per_group=30)
    forget_samples(files, ["0/part.parquet:20", "1/part.parquet:49", "1/part.parquet:50"], "asked for")
    forget_samples(tars, ["000020", "000150"], "asked for")
    chosen = ("--where", "index < 150", *AS_TEXT)
    for path, options, gone, end in ((files, chosen, {20, 149}, 150), (tars / "data-0000.tar", (), {20}, 100)):
        told = f"left out as forgotten: {len(gone)} record"
        found = converts(path, tmp_path / f"out {path.stem}", *options, told=told)
        assert found == [str(number) for number in range(end) if number not in gone]


def test_forgotten_samples_are_found_by_what_is_in_the_files_now(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", range(200))
    forget_samples(path, ["7"], "asked for")
    lines = path.read_text().split("\n\n")
    path.write_text("\n\n".join(lines[150:151] + lines[1:150] + lines[:1] + lines[151:]))  # and not prepared again
    refused(path, tmp_path / "out", *AS_TEXT, told="shard a.jsonl has changed since samples in it were forgotten")
    with open(path, "a") as file:
        file.write('{"text": "more"}\n')
    refused(path, tmp_path / "out", *AS_TEXT, told=f"forget {path} --renew")
    root = write_texts(tmp_path / "texts", 20, per_shard=10)
    forget_samples(root, ["000003"], "asked for")
    reverse_tar(root / "data-0000.tar")
    told = "data-0000.tar: has changed since '000003' was forgotten: sample 3 is '000006' now; run `"
    refused(root, tmp_path / "out", told=told)
    (tmp_path / "b.csv").write_text("text\none\n")
    assert "left out" not in run_command("convert", tmp_path / "b.csv", tmp_path / "b", *QUIET).output
    path = write_lines(tmp_path / "c.jsonl", range(2))
    forget_samples(path, ["0", "1"], "asked for")
    refused(path, tmp_path / "out", *AS_TEXT, told="all of its records are forgotten")


def test_what_has_no_columns_and_what_chooses_nothing_is_refused(tmp_path: Path) -> None:
    root, lines = write_texts(tmp_path / "texts", 60), write_lines(tmp_path / "b.jsonl", [1])
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "a.csv").write_text("text\na\n")
    unprepared = f"not prepared, there is no a.jsonl.idx; run `bridge-data prepare {tmp_path}"
    for source, where, told in (
        (tmp_path / "a.csv", "index = 0", "where: is for prepared folders of tars, prepared JSONL files and tables"),
        (tmp_path / "a.jsonl", "index = 0", unprepared),
        (lines, "json.text = '1'", "unknown column"),
        (root, "txt.bytes > 99", "chooses none of the 60 records"),
        (root, "txt.byte > 9", "did you mean 'txt.bytes'"),
    ):
        refused(source, tmp_path / "out", "--where", where, told=told)
