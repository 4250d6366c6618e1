import json
import shutil
from pathlib import Path

import pytest

from bridge_data.data.metadata import META_FOLDER
from bridge_data.data.withheld import FORGOTTEN_JSONL
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from tests.cli.runner import run_command
from tests.prepared import write_texts
from tests.tables import save_to_disk, table_of, write_parquet


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts", 60, per_shard=20)


def forget(texts: Path, keys: list[str], *more: str) -> tuple[int, str]:
    (texts.parent / "keys.txt").write_text("".join(f"{key}\n" for key in keys))
    done = run_command("forget", texts, "--keys", texts.parent / "keys.txt", "--reason", "asked for", *more)
    return done.exit_code, done.output


def file_of(texts: Path) -> Path:
    return texts / META_FOLDER / FORGOTTEN_JSONL


def test_versions_are_added_and_those_before_stay_as_they_are(texts: Path) -> None:
    told = "forgotten from the next restart on: 3 samples (version 1 of the list)\nforgotten in all: 3 samples\n"
    assert forget(texts, ["000003", "data-0001.tar:000025", "data-0002.tar/000059"]) == (0, told)
    first = file_of(texts).read_bytes()
    told = "nothing changes: version 1 of the list says so already\nforgotten in all: 3 samples\n"
    assert forget(texts, ["000003"]) == (0, told)
    assert file_of(texts).read_bytes() == first
    assert "restart on: 1 sample (version 2" in forget(texts, ["000004", "000003"])[1]
    assert forget(texts, ["000003"], "--restore")[0] == 0
    assert file_of(texts).read_bytes().startswith(first)
    lines = [json.loads(line) for line in run_command("forget", texts, "--list", "--json").output.splitlines()]
    versions = [(line["version"], line["action"], line["reason"]) for line in lines]
    assert versions == [(1, "forget", "asked for"), (2, "forget", "asked for"), (3, "restore", "asked for")]
    assert lines[0]["shards"]["data-0001.tar"][2] == [[5, "000025"]]
    assert "3 samples (version 3 of the list)" in run_command("info", texts).output


def test_all_wrong_keys_are_named_and_nothing_is_written(texts: Path) -> None:
    code, output = forget(texts, ["000003", "nope", "data-0001.tar:000003"])
    assert code == 1 and "2 keys are wrong, and nothing was written" in output
    assert "'nope': no sample has this key" in output and "'data-0001.tar:000003'" in output
    assert not file_of(texts).exists()
    code, output = forget(texts, ["000003", "nope"], "--ignore-unknown")
    assert code == 0 and "ignored: 1 key, such as nope" in output
    code, output = forget(texts, ["000004"], "--restore")
    assert code == 1 and "'000004': is not forgotten" in output


def test_the_samples_of_a_pack_are_forgotten_by_its_key(texts: Path) -> None:
    code, output = forget(texts, ["data-0000.tar/000003,data-0001.tar/000025", "000004"])
    assert code == 0 and "3 samples" in output
    code, output = forget(texts, ["000005,nope", "no,pe"])
    assert code == 1 and "'000005,nope': no sample" in output and "'no,pe': no sample" in output
    code, output = forget(texts, ["000005,nope"], "--ignore-unknown")
    assert "ignored: 1 key" in output and output.endswith("forgotten in all: 3 samples\n"), "it may be a key itself"


def test_a_damaged_list_is_refused(texts: Path) -> None:
    forget(texts, ["000003"])
    forget(texts, ["000005"])
    whole = file_of(texts).read_text()
    changed, second = whole.replace("asked", "wanted", 1), whole.splitlines()[1] + "\n"
    for damaged in (whole[:-30], changed, second, "", "{}\n", "[" * 99_999):
        file_of(texts).write_text(damaged)
        done = run_command("forget", texts, "--list")
        assert done.exit_code == 1 and "the list of forgotten samples is damaged" in done.output, damaged
    file_of(texts).write_text(whole)
    assert run_command("forget", texts, "--list").exit_code == 0


def test_preparing_again_keeps_the_list_and_rewritten_shards_need_it_renewed(texts: Path) -> None:
    forget(texts, ["000003", "000025"])
    before = file_of(texts).read_bytes()
    write_texts(texts, 20, lambda n: f"{n} is longer" * 100, per_shard=21)
    assert file_of(texts).read_bytes() == before
    code, output = forget(texts, ["000004"])
    assert code == 1 and "has changed since samples in it were forgotten" in output
    assert run_command("info", texts).exit_code == 1
    assert run_command("forget", texts, "--renew", "--reason", "shards were written anew").exit_code == 0
    assert run_command("info", texts).exit_code == 0


def test_of_tables_and_jsonl_files_the_list_is_next_to_them(tmp_path: Path) -> None:
    table = table_of({"text": ["a", "b"]})
    save_to_disk(tmp_path / "saved", table, per_batch=2)
    write_parquet(tmp_path / "plain.parquet", table)
    write_parquet(tmp_path / "files" / "train.parquet", table)
    (tmp_path / "lines.jsonl").write_text('{"text": "a"}\n')
    prepare_jsonl(tmp_path / "lines.jsonl")
    for name, version in (("saved", 1), ("plain.parquet", 1), ("files", 1), ("lines.jsonl", 2)):
        code, told = forget(tmp_path / name, ["0"])
        assert code == 0 and f"1 sample (version {version} of the list)\nforgotten in all: 1 sample\n" in told
        assert f"forgotten    1 sample (version {version}" in run_command("info", tmp_path / name).output
        assert "(forgotten: no run sees it)" in run_command("info", tmp_path / name, "--samples", 1).output
    lists = sorted(str(file.parent.relative_to(tmp_path)) for file in tmp_path.rglob("_forgotten.bridge"))
    assert lists == [".", "files", "saved"]


def test_a_saved_data_set_of_several_splits_has_a_list_for_each(tmp_path: Path) -> None:
    for split in ("train", "test"):
        save_to_disk(tmp_path / "both" / split, table_of({"text": ["a", "b"]}))
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    file = "data-00000-of-00001.arrow"
    code, told = forget(tmp_path / "both", [f"test/{file}/1"])
    assert (code, "1 sample (version 1 of the list)" in told) == (0, True)
    code, told = forget(tmp_path / "both", [f"train/{file}/0", f"test/{file}:0"])
    lists = [tmp_path / "both" / split / "_forgotten.bridge" for split in ("train", "test")]
    assert told == (
        f"forgotten from the next restart on: 2 samples (version 1 of {lists[0]}, version 2 of {lists[1]})\n"
        "forgotten in all: 3 samples\n"
    )
    told = run_command("forget", tmp_path / "both", "--list").output
    assert [line for line in told.splitlines() if line.startswith("/")] == [f"{file}:" for file in lists]
    versions = map(json.loads, run_command("forget", tmp_path / "both", "--list", "--json").output.splitlines())
    assert [(one["list"], one["version"]) for one in versions] == [
        (str(lists[0]), 1),
        (str(lists[1]), 1),
        (str(lists[1]), 2),
    ]
    assert "forgotten    3 samples (version 1 and 2 of the list)" in run_command("info", tmp_path / "both").output


def test_tars_that_were_not_prepared_have_no_list(tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("0\n")
    shutil.rmtree(write_texts(tmp_path / "tars", 5) / META_FOLDER)
    for arguments in (["--keys", str(tmp_path / "keys.txt"), "--reason", "x"], ["--list"]):
        done = run_command("forget", tmp_path / "tars", *arguments)
        assert done.exit_code == 1
        assert f"holds tars without {META_FOLDER}: run `bridge-data prepare {tmp_path / 'tars'}` first" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --keys FILE; or --renew or --list"),
        (["--json"], "--json is for --list"),
        (["--renew"], "give --reason"),
        (["--renew", "--reason", "x"], "no samples of it were forgotten"),
    ],
)
def test_options_that_do_not_fit_are_refused(texts: Path, arguments: list[str], message: str) -> None:
    done = run_command("forget", texts, *arguments)
    assert (done.exit_code, message in done.output) == (1, True), done.output
