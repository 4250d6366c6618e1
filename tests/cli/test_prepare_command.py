import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from bridge_data.cli import terminal
from bridge_data.data import PreparedDataset, open_shards
from bridge_data.decode.media_metadata import ImageMetadata, MediaIndex
from tests.cli.conftest import Run
from tests.data.tars import write_tar

CAPTIONING = {"__module__": "megatron.energon", "__class__": "CaptioningSample"}
FIELDS = json.dumps({"image": "png", "caption": "txt"})
QUIET = ("--non-interactive", "--no-progress", "--num-workers", "1")


def dataset_yaml(folder: Path, name: str = "dataset.yaml") -> object:
    return yaml.safe_load((folder / ".nv-meta" / name).read_text())


def counts(folder: Path) -> dict[str, int]:
    dataset = PreparedDataset.open(folder)
    return {part: dataset.split(part).num_samples for part in dataset.split_parts()}


def succeeded(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result


def refused(result: Result, *messages: str) -> None:
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: ") or "\nerror: " in f"\n{result.stderr}"
    assert "Traceback" not in result.output
    for message in messages:
        assert message in result.stderr


VQA = {"__module__": "megatron.energon", "__class__": "VQASample"}
CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}


def captions(part: str) -> dict[str, object]:
    return {"sample_type": CAPTIONING, "field_map": {"image": "png", "caption": part}}


class TestQuestions:
    @pytest.mark.parametrize(
        ("typed", "expected"),
        [
            ("8,1,1\n0\npng\ntxt\n", captions("txt")),  # the first document: a class by number
            ("8,1,1\nCaptioningWebdataset\nYes\npng\ntxt\n", captions("txt")),  # the second: by name, `Field map: Yes`
            ("8,1,1\nCaptioningSample\nYes\npng\ntxt\n", captions("txt")),
            ("8,1,1\nCaptioning\npng\njson[caption]\n", captions("json[caption]")),
            ("8,1,1\nCaptioning\nYes\nimage: png\ncaption: json[caption]\n", captions("json[caption]")),
            ("8,1,1\nCaptioning\nYes\npng\njson[caption] # if .json has a caption\n", captions("json[caption]")),
            (
                "8,1,1\nVQASample\npng\njson[caption]\njson[turns]\n\n",  # an optional field is skipped
                {
                    "sample_type": VQA,
                    "field_map": {"image": "png", "context": "json[caption]", "answers": "json[turns]"},
                },
            ),
            ("8,1,1\nCrudeWebdataset\n", CRUDE),
        ],
    )
    def test_answers_become_a_definition(self, run: Run, tars: Path, typed: str, expected: dict[str, object]) -> None:
        output = succeeded(run("prepare", tars, typed=typed)).output
        assert dataset_yaml(tars) == expected and counts(tars) == {"train": 8, "val": 2, "test": 2}
        assert "  0  CaptioningSample " in output
        if expected is not CRUDE:
            assert "Please enter a webdataset field name for 'image' (<class 'torch.Tensor'>)" in output

    def test_wrong_answers_are_asked_again(self, run: Run, tars: Path) -> None:
        typed = "lots\n1,2\n8,1,1\n17\nCaptoining\n0\njpg\n[\npng\njson[capt]\njpg,txt\n"
        output = succeeded(run("prepare", tars, typed=typed)).output
        assert output.count("expected three numbers for train, val and test") == 2
        assert "unknown sample class '17'" in output
        assert "unknown sample class 'Captoining'; did you mean 'CaptioningSample'?" in output
        assert "field 'image': no part 'jpg' in the first 2 samples" in output
        assert "the parts there are: json, png, txt" in output
        assert "json has no [capt]; there is caption, turns; did you mean 'caption'?" in output
        assert dataset_yaml(tars) == {"sample_type": CAPTIONING, "field_map": {"image": "png", "caption": "jpg,txt"}}

    def test_what_is_prepared_is_not_overwritten_unasked(self, run: Run, tars: Path) -> None:
        succeeded(run("prepare", tars, typed="10,0,0\n0\npng\ntxt\n"))
        result = succeeded(run("prepare", tars, typed="n\n"))
        assert "left unchanged" in result.output
        assert counts(tars) == {"train": 12, "val": 0, "test": 0}
        result = succeeded(run("prepare", tars, typed="y\n8,1,1\nCrudeWebdataset\n"))
        assert "6 shards had not changed" in result.output
        assert counts(tars) == {"train": 8, "val": 2, "test": 2}

    def test_flags_are_not_asked_for(self, run: Run, tars: Path) -> None:
        flags = ("--split-ratio", "1,1,0", "--sample-type", "TextSample")
        succeeded(run("prepare", tars, *flags, typed="txt\n"))
        assert counts(tars) == {"train": 6, "val": 6, "test": 0}
        succeeded(run("prepare", tars, *flags, "--field-map", '{"text": "json[caption]"}', "--force-overwrite"))
        assert dataset_yaml(tars)["field_map"] == {"text": "json[caption]"}  # type: ignore[index]

    def test_leaving_in_the_middle_writes_nothing(self, run: Run, tars: Path) -> None:
        result = run("prepare", tars, typed="8,1,1\n0\npng\n")
        assert result.exit_code == 1
        assert "no answers on standard input" in result.stderr
        assert not (tars / ".nv-meta").exists()


def told(run: Run, tars: Path, *flags: object) -> Result:
    """What `prepare` says with these flags."""
    return succeeded(run("prepare", tars, *QUIET, *flags))


def test_flags_answer_all_questions_at_once(run: Run, tars: Path) -> None:
    flags = ("--split-ratio", "4,1,1", "--sample-type", "CaptioningSample", "--field-map", FIELDS)
    assert "indexed 12 samples" in told(run, tars, *flags).output
    assert counts(tars) == {"train": 8, "val": 2, "test": 2}
    assert open_shards(tars, "train").index is not None


def test_split_parts_are_patterns_and_shards_in_none_are_told(run: Run, tars: Path) -> None:
    parts = ("--split-parts", "train:data-{000000..000003}.tar", "--split-parts", "dev:data-00000[4]")
    result = told(run, tars, *parts)
    assert counts(tars) == {"train": 8, "dev": 2}
    assert "1 of 6 shards are in no split part" in result.stderr and "(in no part)" in result.output
    assert "without dataset.yaml" in result.stderr


@pytest.mark.parametrize("flags", [(), ("--exclude", "00000[45]", "--dataset-config", "other.yaml")])
def test_without_a_class_it_says_so_and_its_next_command_makes_a_data_set_that_loads(
    flags: tuple[str, ...], run: Run, tars: Path
) -> None:
    result = told(run, tars, *flags, "--split-ratio", "1,1,0")
    assert "Done" not in result.output and "without" in result.stderr
    assert not list((tars / ".nv-meta").glob("dataset.yaml"))
    command = shlex.split(result.stdout.splitlines()[-1].partition("bridge-data ")[2])
    succeeded(run(*command, "--no-progress"))
    name = flags[-1] if flags else "dataset.yaml"
    assert dataset_yaml(tars, name)["field_map"] == {"image": "png", "caption": "json[caption]"}  # type: ignore[index]
    assert counts(tars) == dict.fromkeys(("train", "val"), 4 if flags else 6) | {"test": 0}


def test_tars_may_be_left_out_or_shuffled_and_the_file_of_samples_have_another_name(run: Run, tars: Path) -> None:
    crude = ("--sample-type", "CrudeWebdataset", "--dataset-config", "crude.yaml")
    told(run, tars, "--split-ratio", "1,0,0", "--exclude", "00000[12]", *crude)
    assert list(PreparedDataset.open(tars).shard_counts) == [f"data-00000{n}.tar" for n in (0, 3, 4, 5)]
    assert dataset_yaml(tars, "crude.yaml") == {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    assert not (tars / ".nv-meta/dataset.yaml").exists()
    told(run, tars, "--split-ratio", "1,1,0", "--shuffle-tars", "--force-overwrite")
    assert open_shards(tars, "train").names != tuple(sorted(open_shards(tars, "train").names))


def test_what_is_prepared_is_replaced_on_demand_or_its_index_alone_is_renewed(run: Run, tars: Path) -> None:
    first = ("--split-ratio", "4,1,1", "--sample-type", "CrudeWebdataset")
    told(run, tars, *first)
    refused(run("prepare", tars, *QUIET, *first), "has been prepared already", "--force-overwrite", "--tar-index-only")
    assert "6 shards had not changed" in told(run, tars, *first, "--force-overwrite").output
    assert "not changed" not in told(run, tars, *first, "--force-overwrite", "--rescan").output
    for path in tars.glob("*.idx"):
        path.unlink()
    kept = {name: (tars / ".nv-meta" / name).read_bytes() for name in (".info.json", "split.yaml", "dataset.yaml")}
    assert "index of 6 shards written" in succeeded(run("prepare", tars, "--tar-index-only")).output
    assert len(list(tars.glob("*.idx"))) == 6
    assert {name: (tars / ".nv-meta" / name).read_bytes() for name in kept} == kept


def test_a_part_without_shards_is_told_if_it_was_asked_for(run: Run, tars: Path) -> None:
    assert "no shard" not in told(run, tars, "--split-ratio", "100,1,0").stderr
    assert counts(tars) == {"train": 10, "val": 2, "test": 0}
    stderr = told(run, tars, "--split-ratio", "1,100,1", "--force-overwrite").stderr
    assert "no shard for train: shards are not divided, and there are 6" in stderr


def test_progress_is_lines_in_a_log_and_a_bar_on_a_terminal(
    run: Run, tars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("prepare", tars, "--non-interactive", "--force-overwrite", "--split-ratio", "1,0,0", "--num-workers", 2)
    assert "indexing:" not in succeeded(run(*command)).stderr  # too soon
    monkeypatch.setattr(terminal, "LINE_EVERY_S", 0)
    lines = succeeded(run(*command, "--rescan")).stderr.splitlines()
    assert "indexing: 6 of 6 shards after 0 s" in lines and not any("%" in line for line in lines)
    reading, writing = pty.openpty()
    termios.tcsetwinsize(writing, (24, 80))
    code = "from bridge_data.cli import main, terminal\nterminal.SHOWN_AFTER_S = 0\nmain()"
    words = [sys.executable, "-c", code, *map(str, command), "--rescan"]
    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=writing, check=True)
    os.close(writing)
    assert b"6/6" in os.read(reading, 1 << 16)
    os.close(reading)


def test_metadata_of_media_are_stored_for_folders_and_tars_also_in_one_go(run: Run, raw: Path, tars: Path) -> None:
    (raw / "bad.png").write_bytes(b"no picture")
    command = ("prepare", raw, "--media", "extension", "--no-progress")
    result = succeeded(run(*command))
    assert f"{raw}: metadata of 12 media files stored" in result.output
    assert "left out, not readable: 1 media file\n  bad.png: not a readable image" in result.stderr
    assert MediaIndex.open(raw).get("000001.png") == ImageMetadata(width=41, height=30, format="PNG", mode="RGB")
    assert "13 had not changed" in run(*command).output
    output = told(run, tars, "--split-ratio", "1,0,0", "--media", "header").output
    assert "metadata of 12 media files stored" in output
    succeeded(run("prepare", tars, "--media", "*.png", "--num-workers", 2))
    assert MediaIndex.open(tars).get("000012.png").width == 52


RATIO = ("--split-ratio", "1,0,0")
CAPTION = ("--sample-type", "CaptioningSample")


@pytest.mark.parametrize(
    ("flags", "messages"),
    [
        ([], ["give --split-ratio 8,1,1, or --split-parts"]),
        (["--split-ratio", "1,2"], ["split ratio '1,2': expected three numbers"]),
        ([*RATIO, "--split-parts", "train:a"], ["--split-ratio and --split-parts: give one of them"]),
        (["--split-parts", "train"], ["split part 'train': expected \"name:pattern\""]),
        (["--split-parts", "train:x/"], ["split part train:x/: no shard is called so"]),
        ([*RATIO, "--exclude", "("], ["exclude '(' is not a regular expression"]),
        ([*RATIO, "--exclude", "tar"], ["leaves out all 6 tars"]),
        ([*RATIO, "--num-workers", "0"], ["--num-workers 0"]),
        ([*RATIO, "--sample-type", "CaptioningSampel"], ["unknown sample class", "did you mean 'CaptioningSample"]),
        ([*RATIO, *CAPTION], ["needs --field-map image=…,caption=…", "json, png, txt"]),
        ([*RATIO, *CAPTION, "--field-map", "{"], ["--field-map '{' is not JSON"]),
        ([*RATIO, *CAPTION, "--field-map", '{"image": 1}'], ["expected fields with parts"]),
        ([*RATIO, *CAPTION, "--field-map", '{"image": "png"}'], ["'caption' is missing"]),
        (
            [*RATIO, *CAPTION, "--field-map", '{"image": "png", "caption": "txt", "imge": "png"}'],
            ["unknown key 'imge'"],
        ),
        ([*RATIO, *CAPTION, "--field-map", '{"image": "png", "caption": "t["}'], ["field access 't['"]),
        (
            [*RATIO, *CAPTION, "--field-map", '{"image": "jpg", "caption": "txt"}'],
            ["field 'image': no part 'jpg'", "data-000000.tar; the parts there are: json, png, txt", "mean 'png'?"],
        ),
        (
            [*RATIO, *CAPTION, "--field-map", '{"image": "png", "caption": "json[text]"}'],
            ["field 'caption': sample '000001': json has no [text]; there is caption, turns"],
        ),
        ([*RATIO, "--field-map", "{}"], ["give --sample-type too"]),
        ([*RATIO, "--sample-type", "CrudeWebdataset", "--field-map", "{}"], ["CrudeWebdataset has no fields"]),
        ([*RATIO, "--dataset-config", "../x.yaml"], ["expected the name of a file, no path"]),
        (["--tar-index-only"], [".info.json: no such file; run `bridge-data prepare"]),
        (["--tar-index-only", "--exclude", "a"], ["leave --exclude out"]),
        (
            [*RATIO, *CAPTION, "--field-map", '{"image": "jpg,jpeg", "caption": "json[turns][7]"}'],
            ["field 'image': no part 'jpg' or 'jpeg'"],
        ),
        (
            [*RATIO, *CAPTION, "--field-map", '{"image": "png", "caption": "json[turns][7]"}'],
            ["json[turns] has no [7]; it is a list of 2"],
        ),
        (["--task", "0/2", "--fix-duplicates"], ["leave --fix-duplicates out"]),
        (["--task", "2/2"], ["--task 2/2: expected I/N"]),
        (["--executor", "slurm"], ["--executor 'slurm': expected one of local, ray, or the address of a Ray cluster"]),
    ],
)
def test_wrong_flags_write_nothing(run: Run, tars: Path, flags: list[str], messages: list[str]) -> None:
    before = sorted(tars.iterdir())
    refused(run("prepare", tars, "--non-interactive", *flags), *messages)
    assert sorted(tars.iterdir()) == before


def test_shards_that_are_damaged_empty_or_hold_no_json_are_named(run: Run, tars: Path, tmp_path: Path) -> None:
    path = tars / "data-000004.tar"
    path.write_bytes(path.read_bytes()[:1000])
    refused(run("prepare", tars, *QUIET, *RATIO), "data-000004.tar: member", "truncated")
    (tars / "data-000000.tar").write_bytes(b"")
    refused(run("prepare", tars, *QUIET, *RATIO), "data-000000.tar")
    fields = ("--sample-type", "TextSample", "--field-map", '{"text": "json[a]"}')
    for members, told in (({}, "none of its tars holds a sample"), ({"1.json": b"{"}, "1.json is not JSON")):
        write_tar(tmp_path / "odd/a.tar", members)
        refused(run("prepare", tmp_path / "odd", *QUIET, *RATIO, *fields), told, "a.tar")
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    refused(run("prepare", tmp_path / "notes.txt"), "expected a folder of tars")
    refused(run("prepare", tmp_path / "empty"), "there are no .tar files", "bridge-data convert")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--media", "jpg"], "--media 'jpg': expected extension, header, or patterns such as"),
        (["--media", "*.jpg,"], "--media '*.jpg,': expected"),
        (["--media", "header", "--num-workers", "0"], "--num-workers 0: expected at least 1"),
        (["--media", "header", "--tar-index-only"], "leave --media and --costs out"),
        (["--media", "header", "--split-ratio", "1,0,0"], "--split-ratio is for data that are prepared now"),
        (["--orientation", "apply"], "give --media"),
        (["--trust", "mine"], "--trust is for --costs"),
    ],
)
def test_wrong_flags_for_media(run: Run, raw: Path, flags: list[str], message: str) -> None:
    refused(run("prepare", raw, *flags), message)


def test_duplicate_keys_are_fixed_if_that_is_asked_for(run: Run, tars: Path) -> None:
    names = sorted(path.name for path in tars.glob("*.tar"))
    (tars / "again.tar").write_bytes((tars / names[0]).read_bytes())
    flags = (*QUIET, "--split-ratio", "1,0,0")
    assert "2 keys occur in several shards" in succeeded(run("prepare", tars, *flags)).stderr
    refused(run("prepare", tars, "--media", "extension"), "2 keys occur", "--fix-duplicates")
    succeeded(run("prepare", tars, *flags, "--fix-duplicates", "--force-overwrite"))
    assert counts(tars)["train"] == 14


@pytest.mark.parametrize(
    "flags", [(), ("--split-ratio", "1,0,0"), ("--split-ratio", "1,0,0", "--sample-type", "TextSample")]
)
def test_questions_without_anybody_to_answer_name_the_flags(run: Run, tars: Path, flags: tuple[str, ...]) -> None:
    refused(run("prepare", tars, *flags), "no answers on standard input", "--non-interactive", "--field-map")
    assert not (tars / ".nv-meta").exists()
    run("prepare", tars, *QUIET, "--split-ratio", "1,0,0")
    refused(run("prepare", tars, *flags), "no answers on standard input", "--force-overwrite")


def test_hints_are_quoted_for_the_shell(run: Run, raw: Path, tmp_path: Path) -> None:
    target = tmp_path / "my tars & more"
    assert f"Next: bridge-data info '{target}' --samples 3\n" in succeeded(run("convert", raw, target)).output
    shutil.rmtree(target / ".nv-meta")
    assert f"bridge-data prepare '{target}'" in succeeded(run("info", target)).output


def test_tasks_scan_their_shares_and_are_merged(run: Run, tars: Path) -> None:
    output = told(run, tars, "--task", "1/2").output
    assert f"{tars}: task 1 of 2 has scanned " in output and "Give --task merge when all have" in output
    merge = ("--task", "merge", "--split-ratio", "8,1,1")
    messages = ("are not scanned, such as", "task 0 of 2 (counted from 0) have not finished", "without --task")
    refused(run("prepare", tars, *QUIET, *merge), *messages)
    output = told(run, tars, "--task", "1/2").output
    assert "has scanned 0 shards; " in output and "had been scanned before" in output
    told(run, tars, "--task", "0/2")
    told(run, tars, *merge)
    assert counts(tars) == {"train": 8, "val": 2, "test": 2} and not (tars / ".scanned").exists()
