"""`bridge-data convert`: forms, guesses, questions and refusals."""

import datetime
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge_data import WorkerConfig, get_loader, get_val_dataset
from bridge_data.data import ShardReader, open_shards
from bridge_data.data.metadata import META_FOLDER
from bridge_data.encoders.conversations import ConversationSample, cook_conversation
from bridge_data.errors import ConfigError
from bridge_data.plugins.convert import convert_command
from bridge_data.samples import CrudeSample
from tests.cli.conftest import Run
from tests.decode.av import media
from tests.plugins.convert.originals import (
    CAPTIONS,
    NUM,
    caption,
    convert,
    converted,
    llava,
    picture,
    picture_name,
    recording,
    rows,
    save_to_disk,
    table_of,
    write_arrow,
    write_folder,
    write_jsonl,
    write_media,
    write_parquet,
)


def samples_of(folder: Path) -> list[tuple[str, dict[str, bytes]]]:
    reader = ShardReader(open_shards(folder, "train"))
    return [(sample.key, dict(sample.parts)) for sample in map(reader.read, range(len(reader)))]


def cooked_of(folder: Path) -> list[tuple[str, ConversationSample, list[bytes]]]:
    """Key, conversation and media of all samples."""
    found = []
    for key, parts in samples_of(folder):
        content = json.loads(parts.pop("json"))
        crude = CrudeSample(__key__=key, __restore_key__=(), json=content, **parts)
        found.append((key, cook_conversation(crude), list(parts.values())))
    return found


def convert_refuses(source: Path, target: Path, *flags: object, told: str) -> None:
    result = convert(source, target, *flags)
    assert (result.exit_code, told in result.stderr) == (1, True), result.stderr


def definition_of(folder: Path) -> str:
    return (folder / META_FOLDER / "dataset.yaml").read_text()


def loaded(folder: Path, **settings: Any) -> list[Any]:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    data = get_val_dataset(folder, split_part="train", batch_size=None, worker_config=config, **settings)
    return list(get_loader(data))


def test_pictures_in_a_folder_for_each_class(tmp_path: Path) -> None:
    names = ("cats", "dogs/small", "größe")
    for name in names:
        write_media(tmp_path / "raw" / name, 4)
    found = loaded(converted(tmp_path / "raw", tmp_path / "out"))
    assert [(one.label, one.label_name) for one in found] == [pair for pair in enumerate(names) for _ in range(4)]
    (tmp_path / "raw/lonely.png").write_bytes(picture(1))
    told = "'lonely' (png) is no picture in a folder of its class"
    convert_refuses(tmp_path / "raw", tmp_path / "other", "--format", "classes", told=told)


def test_conversations_with_pictures_are_cooked(tmp_path: Path) -> None:
    write_media(tmp_path / "raw")
    (tmp_path / "chats.json").write_text(json.dumps(llava()))
    folder = converted(tmp_path / "chats.json", tmp_path / "out", "--media-root", tmp_path / "raw", "--key", "id")
    assert "CrudeWebdataset" in definition_of(folder)
    for number, (key, cooked, pictures) in enumerate(cooked_of(folder)):
        assert key == f"chat {number}" and cooked.messages[1]["content"] == caption(number)
        assert cooked.images == pictures == ([] if number % 4 == 3 else [picture(number)])


def test_media_in_the_parts_of_turns(tmp_path: Path) -> None:
    write_media(tmp_path / "raw", 4)
    records = []
    for number in (0, 2):
        parts = [
            {"type": "image", "image": picture_name(number)},
            {"type": "text", "text": "And this?"},
            {"type": "image_url", "image_url": {"url": picture_name(number + 1)}},
        ]
        records.append({"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "Two."}]})
    found = cooked_of(converted(write_jsonl(tmp_path / "raw/chats.jsonl", records), tmp_path / "out"))
    assert [cooked.images for _, cooked, _ in found] == [[picture(0), picture(1)], [picture(2), picture(3)]]


def test_recordings_and_a_video_in_parquet_and_in_a_saved_data_set(tmp_path: Path) -> None:
    film = media.write("mp4", video="mpeg4", times=range(5))
    sounds = [{"bytes": recording(number), "path": None} for number in range(6)]
    films = [{"bytes": film, "path": "film.mp4"}] * 6
    table = pa.table({"audio": sounds, "film": films, "text": [caption(number) for number in range(6)]})
    pq.write_table(table, tmp_path / "a.parquet")
    save_to_disk(tmp_path / "saved", table)
    for name in ("a.parquet", "saved"):
        for at, (_, parts) in enumerate(samples_of(converted(tmp_path / name, tmp_path / f"out {name}"))):
            assert (parts["audio.wav"], parts["film.mp4"]) == (recording(at), film)
            assert json.loads(parts["json"])["text"] == caption(at)


def test_questions_with_answers_labels_and_texts(tmp_path: Path) -> None:
    write_media(tmp_path / "raw")
    asked = [{"image": r["image"], "question": f"{n}?", "answer": r["caption"]} for n, r in enumerate(rows())]
    labelled = [{"image": r["image"], "label": n % 3} for n, r in enumerate(rows())]
    texts = [{"text": text} for text in CAPTIONS]
    found = []
    for number, records in enumerate((asked, labelled, texts)):
        source = write_jsonl(tmp_path / f"raw/{number}.jsonl", records)
        found.append(loaded(converted(source, tmp_path / str(number))))
    assert [(one.context, one.answers) for one in found[0]][:2] == [("0?", [caption(0)]), ("1?", [caption(1)])]
    assert [one.label for one in found[1]][:4] == [0, 1, 2, 0]
    assert tuple(one.text for one in found[2]) == CAPTIONS
    folder = converted(save_to_disk(tmp_path / "saved", table_of()), tmp_path / "named")
    contents = [json.loads(parts["json"]) for _, parts in samples_of(folder)]
    assert [content["label_name"] for content in contents[:3]] == ["odd", "even", "odd"]


def two_texts(folder: Path) -> Path:
    records = [{"image": r["image"], "english": r["caption"], "deutsch": "Bild"} for r in rows()]
    return write_jsonl(write_media(folder) / "photos.jsonl", records)


def test_what_is_not_clear_is_refused_or_asked(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = two_texts(tmp_path / "raw")
    told = "it is not clear which column fills the field 'caption': english, deutsch. Give --field-map"
    convert_refuses(source, tmp_path / "out", told=told)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(convert_command, "is_terminal", lambda: True)
    result = run("convert", source, tmp_path / "asked", "--no-progress", "--num-workers", 1, typed="deutsch\n")
    assert result.exit_code == 0 and "Which column fills the field 'caption'?" in result.output
    assert loaded(tmp_path / "asked")[0].caption == "Bild"
    for flag, value in (("--field-map", "caption=english"), ("--field-map", '{"caption": "english"}')):
        assert loaded(converted(source, tmp_path / flag, flag, value))[0].caption == caption(0)


def test_a_prepared_data_set_keeps_its_sample_class(tmp_path: Path) -> None:
    source = converted(two_texts(tmp_path / "raw"), tmp_path / "one", "--field-map", "caption=deutsch")
    folder = converted(source, tmp_path / "two", "--max-bytes", 2000)
    assert definition_of(folder) == definition_of(source)
    assert len(list(folder.glob("*.tar"))) > 5
    assert [parts for _, parts in samples_of(folder)] == [parts for _, parts in samples_of(source)]


def test_tars_whose_keys_come_twice(tmp_path: Path) -> None:
    (tmp_path / "tars").mkdir()
    for name in ("a", "b"):
        converted(write_folder(tmp_path / f"raw{name}", 3), tmp_path / name)
        (tmp_path / name / "train-000000.tar").rename(tmp_path / "tars" / f"{name}.tar")
    convert_refuses(tmp_path / "tars", tmp_path / "out", told="3 records are broken")
    folder = converted(tmp_path / "tars", tmp_path / "prefixed", "--prefix-keys")
    assert [key for key, _ in samples_of(folder)] == [f"{name}/{number:03d}" for name in "ab" for number in range(3)]


def test_names_as_tar_and_windows_write_them(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "raw", 3)
    (source / "000.txt").rename(source / "000.TXT")
    (source / "Thumbs.db").write_bytes(b"")
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        tar.add(source, ".", filter=lambda member: None if "Thumbs" in member.name else member)
    for name in ("raw", "all.tar"):
        folder = converted(tmp_path / name, tmp_path / "out" / name)
        assert [key for key, _ in samples_of(folder)] == ["000", "001", "002"]
        assert [sample.caption for sample in loaded(folder)] == [caption(number) for number in range(3)]


def test_a_column_of_formats_names_no_files(tmp_path: Path) -> None:
    write_media(tmp_path, 3)
    (tmp_path / "ä b.png").write_bytes(picture(1))
    images = [*map(picture_name, range(3)), *((tmp_path / name).as_uri() for name in (picture_name(0), "ä b.png"))]
    records = [{"image": image, "format": "png", "caption": str(at)} for at, image in enumerate(images)]
    folder = converted(write_jsonl(tmp_path / "a.jsonl", records), tmp_path / "out")
    assert [sample.caption for sample in loaded(folder)] == [*"01234"]


def test_what_an_unfinished_conversion_left_is_taken_for_nothing(run: Run, tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"{number}"}) for number in range(9)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, "{"]))
    assert convert(tmp_path / "a.jsonl", tmp_path / "out", "--max-samples", 2).exit_code == 1
    assert len(list((tmp_path / "out").glob("*.tar"))) == 4
    for command in (("info",), ("prepare", "--non-interactive", "--split-ratio", "1,0,0")):
        result = run(command[0], str(tmp_path / "out"), *command[1:])
        assert result.exit_code == 1 and "is not whole" in result.stderr
    assert not (tmp_path / "out" / META_FOLDER).exists()
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    result = convert(tmp_path / "a.jsonl", tmp_path / "out", "--max-samples", 2)
    assert result.exit_code == 0 and "started anew, without its 4 shards" in result.stderr
    assert [sample.text for sample in loaded(tmp_path / "out")] == [*"012345678"]


@pytest.mark.processes
def test_nobody_to_ask(tmp_path: Path) -> None:
    """Standard input is closed, as in some services and schedulers."""
    command = [sys.executable, "-m", "bridge_data.cli", "convert", str(write_folder(tmp_path / "raw", 2))]
    shell = ["bash", "-c", 'exec "$@" <&-', "-"]
    done = subprocess.run([*shell, *command, str(tmp_path / "o")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_columns_that_a_sample_cannot_hold_are_all_named(tmp_path: Path) -> None:
    now = datetime.datetime(2024, 1, 1)
    table = pa.table({"text": ["a", "b"], "time": [now, now], "nested": [[{"at": now}], []]})
    source = write_arrow(tmp_path / "a.arrow", table)
    convert_refuses(source, tmp_path / "out", told="time (timestamp[us]), nested (list<")
    convert_refuses(source, tmp_path / "out", told="--drop time,nested")
    folder = converted(source, tmp_path / "out", "--drop", "time,nested")
    assert [sample.text for sample in loaded(folder)] == ["a", "b"]


def test_files_with_other_columns_or_of_several_splits(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_parquet(tmp_path / f"data/{split}-0.parquet")
    convert_refuses(tmp_path / "data", tmp_path / "out", told="of the splits test, train")
    assert len(samples_of(converted(tmp_path / "data", tmp_path / "out", "--include", "train*"))) == NUM
    for number, value in enumerate(("a", 1)):
        write_arrow(tmp_path / f"odd/{number}.arrow", pa.table({"text": [value]}))
    convert_refuses(tmp_path / "odd", tmp_path / "no", told="1.arrow: has other columns than")


REFUSALS = [
    (["no"], "no such file or folder"),
    (["raw", "raw/out"], "is inside"),
    (["raw", "--key", "a"], "--key is for records with columns"),
    (["raw", "--split", "train"], "--split train: expected the share of each part"),
    (["raw", "--field-map", "caption"], "expected FIELD=PART"),
    (["raw", "--field-map", "text=txt,image=png"], "has the fields"),
    (["raw", "--field-map", "caption=cap"], "there is no such column, but jpg, txt"),
    (["raw", "--sample-type", "Captions"], "unknown sample class"),
    (["raw", "--num-workers", "0"], "--num-workers 0: expected"),
    (["odd.xyz"], "its name does not say its format"),
    (["bad.csv"], "should name the columns"),
    (["short.csv"], "has 1 columns; expected 2: image, caption"),
    (["bad.json"], "is not JSON: at byte 9 expected ',' or ']'"),
    (["number.json"], "expected a list of objects"),
    (["empty.jsonl"], "holds no records"),
    (["bad.parquet"], "is no Parquet file, or is cut off"),
    (["saved"], "holds the splits test, train; convert each by itself"),
    (["classes"], "its folders are of the splits test, train; convert each by itself"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSALS)
def test_refusals(arguments: list[str], message: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "raw", 2)
    (tmp_path / "odd.xyz").write_text("x")
    (tmp_path / "bad.csv").write_text("a,a\n1,2\n")
    (tmp_path / "short.csv").write_text("image,caption\na.png\n")
    (tmp_path / "bad.json").write_text('[{"a": 1}; {"a": 2}]')
    (tmp_path / "number.json").write_text("17")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    for part in ("train", "test"):
        (tmp_path / "saved" / part).mkdir(parents=True)
        (tmp_path / "saved" / part / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    (tmp_path / "saved/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for part in ("train/cats", "test/cats"):
        write_media(tmp_path / "classes" / part, 1)
    source, *rest = arguments
    target = rest.pop(0) if rest and not rest[0].startswith("-") else "out"
    convert_refuses(tmp_path / source, tmp_path / target, *rest, told=message)
    assert not (tmp_path / target / META_FOLDER).exists()


def test_without_split_all_is_for_training_and_the_way_to_a_validation_part_is_told(tmp_path: Path) -> None:
    raw = write_folder(tmp_path / "raw")
    folder = converted(raw, tmp_path / "out")
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    told = r"no split part 'val'; there is train\. .* convert again with a split, such as `--split train=0\.9,val=0\.1`"
    with pytest.raises(ConfigError, match=told):
        get_val_dataset(folder, batch_size=1, worker_config=config)
    empty = converted(raw, tmp_path / "empty", "--split", "train=1,val=0")
    with pytest.raises(ConfigError, match=rf"^{empty}: the split part 'val' is declared and has no samples"):
        get_val_dataset(empty, batch_size=1, worker_config=config)
    folder = converted(raw, tmp_path / "split", "--split", "train=0.9,val=0.1")
    assert len(get_val_dataset(folder, batch_size=1, worker_config=config)) > 0
