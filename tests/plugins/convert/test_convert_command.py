"""`bridge-data convert`: forms, guesses, questions and refusals."""

import base64
import datetime
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from bridge_data import WorkerConfig, get_loader, get_val_dataset
from bridge_data.data import ShardReader, open_shards
from bridge_data.data.metadata import META_FOLDER
from bridge_data.encoders.conversations import cook_conversation
from bridge_data.errors import ConfigError
from bridge_data.plugins.convert import convert_command
from bridge_data.samples import (
    CaptioningSample,
    CrudeSample,
    ImageClassificationSample,
    Sample,
    TextSample,
    VQASample,
)
from tests.cli.conftest import Run
from tests.data.tars import write_tar
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


def convert_refuses(source: Path, target: Path, *flags: object, told: str) -> None:
    result = convert(source, target, *flags)
    assert (result.exit_code, told in result.stderr) == (1, True), result.stderr


def definition_of(folder: Path) -> str:
    return (folder / META_FOLDER / "dataset.yaml").read_text()


def loaded(folder: Path, **settings: Any) -> list[Any]:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    data = get_val_dataset(folder, split_part="train", batch_size=None, worker_config=config, **settings)
    return list(get_loader(data))


CLASSES = ("cats", "dogs/small", "größe")
FIELDS: dict[type[Sample], tuple[str, ...]] = {
    CaptioningSample: ("caption",),
    ImageClassificationSample: ("label", "label_name"),
    TextSample: ("text",),
    VQASample: ("context", "answers"),
}


def fields(folder: Path) -> list[Any]:
    """What a loader has of each sample, but for its pixels."""
    return [tuple(getattr(one, name) for name in FIELDS[type(one)]) for one in loaded(folder)]


def chats(folder: Path) -> list[Any]:
    """The key, the answer and the images of each conversation, as encoders cook it."""
    found = []
    for key, parts in samples_of(folder):
        cooked = cook_conversation(CrudeSample({"__key__": key, **parts, "json": json.loads(parts["json"])}))
        found.append((key, cooked.messages[-1]["content"], cooked.images))
    return found


def stored(folder: Path) -> list[Any]:
    """The key and the parts of each sample."""
    return [
        (key, {name: json.loads(part) if name == "json" else part for name, part in parts.items()})
        for key, parts in samples_of(folder)
    ]


def by_class(folder: Path) -> Path:
    for name in CLASSES:
        write_media(folder / name, 4)
    return folder


def lines(*records: dict[str, Any]) -> Callable[[Path], Path]:
    """JSON lines beside pictures."""
    return lambda folder: write_jsonl(write_media(folder) / "a.jsonl", records)


def llava_file(folder: Path) -> Path:
    write_media(folder / "media")
    (folder / "chats.json").write_text(json.dumps(llava()))
    return folder / "chats.json"


def parts_of_turns(number: int) -> dict[str, Any]:
    parts = [
        {"type": "image", "image": picture_name(number)},
        {"type": "text", "text": "And this?"},
        {"type": "image_url", "image_url": {"url": picture_name(number + 1)}},
    ]
    return {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "Two."}]}


def base64_rows(folder: Path) -> Path:
    """As VLMEvalKit writes them."""
    folder.mkdir()
    rows = [f"{n}\t{base64.b64encode(picture(n)).decode()}\t{n}?\tyes\n" for n in range(2)]
    (folder / "a.tsv").write_text("index\timage\tquestion\tanswer\n" + "".join(rows))
    return folder / "a.tsv"


def turns_in_tars(folder: Path) -> Path:
    """As Megatron-LM writes LLaVA's: the JSON is the list of turns."""
    turns = [{"from": "human", "value": "<image>?"}, {"from": "gpt", "value": "Yes."}]
    write_tar(folder / "0.tar", {"0.png": picture(0), "0.json": json.dumps(turns).encode()})
    return folder


def definition_and_chat(folder: Path) -> Any:
    ((_, parts),) = samples_of(folder)
    cooked = cook_conversation(CrudeSample({"__key__": "0", **parts, "json": json.loads(parts["json"])}))
    return yaml.safe_load(definition_of(folder))["__class__"], cooked.messages[-1]["content"], cooked.images


FILM = media.write("mp4", video="mpeg4", times=range(5))


def recordings(name: str) -> Callable[[Path], Path]:
    """Recordings and a video in Parquet, or in a saved data set."""

    def write(folder: Path) -> Path:
        sounds = [{"bytes": recording(number), "path": None} for number in range(6)]
        films = [{"bytes": FILM, "path": "film.mp4"}] * 6
        table = pa.table({"audio": sounds, "film": films, "text": [caption(number) for number in range(6)]})
        folder.mkdir()
        if name == "saved":
            save_to_disk(folder / name, table)
        else:
            pq.write_table(table, folder / name)
        return folder / name

    return write


def named_by_windows(folder: Path) -> Path:
    write_folder(folder, 3)
    (folder / "000.txt").rename(folder / "000.TXT")
    (folder / "Thumbs.db").write_bytes(b"")
    return folder


def named_by_tar(folder: Path) -> Path:
    named_by_windows(folder)
    with tarfile.open(folder.with_name("all.tar"), "w") as tar:
        tar.add(folder, ".", filter=lambda member: None if "Thumbs" in member.name else member)
    return folder.with_name("all.tar")


def urls(folder: Path) -> Path:
    """Files by name and by URL, beside a column of formats, which names none."""
    (write_media(folder, 3) / "ä b.png").write_bytes(picture(1))
    names = [*map(picture_name, range(3)), *((folder / name).as_uri() for name in (picture_name(0), "ä b.png"))]
    records = [{"image": name, "format": "png", "caption": str(at)} for at, name in enumerate(names)]
    return write_jsonl(folder / "a.jsonl", records)


def coco_of_one(folder: Path) -> Path:
    """What COCO says of an image, which replaces no caption."""
    image = {"id": 1, "file_name": picture_name(1), "image": "other.png", "caption": "of the image", "license": 3}
    listed = {"images": [image], "annotations": [{"image_id": 1, "caption": "a cat"}]}
    (write_media(folder, 2) / "coco.json").write_text(json.dumps(listed))
    return folder / "coco.json"


PICTURES = [row["image"] for row in rows()]
SOUNDS = [
    (f"{number:09d}", {"audio.wav": recording(number), "film.mp4": FILM, "json": {"text": caption(number)}})
    for number in range(6)
]
CONVERSIONS: dict[str, tuple[Callable[[Path], Path], tuple[str, ...], Callable[[Path], list[Any]], list[Any]]] = {
    "a folder for each class": (by_class, (), fields, [pair for pair in enumerate(CLASSES) for _ in range(4)]),
    "chats of LLaVA": (
        llava_file,
        ("--media-root", "{}/media", "--key", "id"),
        chats,
        [(f"chat {n}", caption(n), [] if n % 4 == 3 else [picture(n)]) for n in range(NUM)],
    ),
    "media in the parts of turns": (
        lines(parts_of_turns(0), parts_of_turns(2)),
        (),
        chats,
        [(key, "Two.", [picture(n), picture(n + 1)]) for key, n in (("000000000", 0), ("000000001", 2))],
    ),
    "recordings in Parquet": (recordings("a.parquet"), (), stored, SOUNDS),
    "recordings in a saved data set": (recordings("saved"), (), stored, SOUNDS),
    "questions and answers": (
        lines(*({"image": name, "question": f"{n}?", "answer": caption(n)} for n, name in enumerate(PICTURES))),
        (),
        fields,
        [(f"{n}?", [caption(n)]) for n in range(NUM)],
    ),
    "charts": (
        lines(*({"image": name, "query": f"{n}?", "label": [caption(n)]} for n, name in enumerate(PICTURES))),
        (),
        fields,
        [(f"{n}?", [caption(n)]) for n in range(NUM)],
    ),
    "questions and answers of several turns": (
        lines(*({"images": [name], "texts": [{"user": "?", "assistant": "Yes."}]} for name in PICTURES[:2])),
        (),
        chats,
        [(f"{n:09d}", "Yes.", [picture(n)]) for n in range(2)],
    ),
    "turns as a text of JSON": (
        lines(*({"image": name, "messages": json.dumps(parts_of_turns(0)["messages"][1:])} for name in PICTURES[:2])),
        (),
        chats,
        [(f"{n:09d}", "Two.", [picture(n)]) for n in range(2)],
    ),
    "pictures in base64": (
        base64_rows,
        (),
        lambda folder: [{**part, "json": json.loads(part["json"])} for _, part in samples_of(folder)],
        [
            {ending: picture(n), "json": {"index": str(n), "question": f"{n}?", "answer": ["yes"]}}
            for n, ending in enumerate(("jpg", "png"))
        ],
    ),
    "turns in tars": (turns_in_tars, (), definition_and_chat, ("CrudeWebdataset", "Yes.", [picture(0)])),
    "labels": (
        lines(*({"image": name, "label": n % 3} for n, name in enumerate(PICTURES))),
        (),
        fields,
        [(n % 3, None) for n in range(NUM)],
    ),
    "texts": (lines(*({"text": text} for text in CAPTIONS)), (), fields, [(text,) for text in CAPTIONS]),
    "a sound in numbers": (
        lines({"audio": {"array": [0.5, 0.25], "sampling_rate": 8}, "text": "a tone"}),
        (),
        lambda folder: [yaml.safe_load(definition_of(folder))["__class__"]],
        ["CrudeWebdataset"],
    ),
    "names of Windows": (named_by_windows, (), fields, [(caption(n),) for n in range(3)]),
    "names of tar": (named_by_tar, (), fields, [(caption(n),) for n in range(3)]),
    "files by name and by URL": (urls, (), fields, [(str(n),) for n in range(5)]),
    "COCO": (
        coco_of_one,
        (),
        stored,
        [
            (
                "000000000001",
                {"png": picture(1), "json": {"caption": "a cat", "captions": ["a cat"], "image_id": 1, "license": 3}},
            )
        ],
    ),
}


@pytest.mark.parametrize("form", CONVERSIONS)
def test_a_form_becomes_these_samples(form: str, tmp_path: Path) -> None:
    write, flags, view, expected = CONVERSIONS[form]
    source = write(tmp_path / "raw")
    assert view(converted(source, tmp_path / "out", *(flag.format(tmp_path / "raw") for flag in flags))) == expected


def test_classes_of_a_saved_data_set_have_their_names(tmp_path: Path) -> None:
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


def test_a_folder_of_media_that_no_column_names_is_told(run: Run, tmp_path: Path) -> None:
    source = write_jsonl(write_media(tmp_path / "raw") / "a.jsonl", [{"picture": "000", "caption": "a cat"}])
    told = "no column names a file there; names of media have an ending"
    for name, flags, is_told in (("a", ("--media-root", tmp_path / "raw"), True), ("b", (), False)):
        done = run("convert", source, tmp_path / name, "--no-progress", "--non-interactive", *flags)
        assert done.exit_code == 0 and (told in done.stderr) is is_told, done.output


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


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"question": "?", "answer": 2}, "column 'answer' holds numbers, and the field 'answers' takes a text"),
        ({"question": "?", "answers": [{"answer": "a"}]}, "column 'answers' holds no texts, and the field"),
        ({"question": "?", "image_id": "7"}, "no column fits field 'answers'"),
        ({"caption": ["a", "b"], "id": "x"}, "give --field-map 'caption=json[caption][0]', for the first of each"),
    ],
)
def test_columns_that_do_not_fit_their_field_are_refused(row: dict[str, Any], told: str, tmp_path: Path) -> None:
    source = lines(*[{"image": name, **row} for name in PICTURES[:2]])(tmp_path / "raw")
    convert_refuses(source, tmp_path / "out", told=told)
    if "caption" in row:
        folder = converted(source, tmp_path / "out", "--field-map", "caption=json[caption][0]")
        assert [sample.caption for sample in loaded(folder)] == ["a", "a"]


@pytest.mark.parametrize("name", ["choices", "options"])
def test_a_choice_of_answers_is_no_answer(name: str, tmp_path: Path) -> None:
    row = {"image": PICTURES[0], "question": "?", name: ["a", "b"], "answer": "1"}
    assert "CrudeWebdataset" in definition_of(converted(lines(row)(tmp_path / "raw"), tmp_path / "out"))


@pytest.mark.parametrize("more", [{"chosen": [{"role": "assistant", "content": "a"}]}, {"completions": ["a", "b"]}])
def test_a_question_is_no_text_to_be_learnt(more: dict[str, Any], tmp_path: Path) -> None:
    row = {"prompt": "?", **more}
    assert "CrudeWebdataset" in definition_of(converted(lines(row)(tmp_path / "raw"), tmp_path / "out"))


def test_in_lists_of_media_those_that_are_none_are_broken_and_no_others(tmp_path: Path) -> None:
    contents = [picture(0), picture(1), b"", picture(1)[:20]]
    rows = [
        {"images": [{"bytes": one, "path": None}], "messages": parts_of_turns(0)["messages"][1:]} for one in contents
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    folder = converted(tmp_path / "a.parquet", tmp_path / "out", "--skip-broken")
    assert [images for _, _, images in chats(folder)] == [[picture(0)], [picture(1)]]


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
    (["vqa.json"], "jq -c '.questions[]' {0}/vqa.json > questions.jsonl"),
    (["internvl.json"], "names data sets, such as 'a' in a.jsonl: convert each"),
    (["factory.json"], "names data sets, such as 'a' in a.json: convert each"),
    (["other.json"], "if this object is the only line, give --format jsonl"),
    (["empty.jsonl"], "holds no records"),
    (["bad.parquet"], "is no Parquet file, or is cut off"),
    (["saved"], "holds the splits test, train; convert each by itself"),
    (["classes"], "its folders are of the splits test, train; convert each by itself"),
    (["lonely", "--format", "classes"], "'lonely' (png) is no picture in a folder of its class"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSALS)
def test_refusals(arguments: list[str], message: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "raw", 2)
    (tmp_path / "odd.xyz").write_text("x")
    (tmp_path / "bad.csv").write_text("a,a\n1,2\n")
    (tmp_path / "short.csv").write_text("image,caption\na.png\n")
    (tmp_path / "bad.json").write_text('[{"a": 1}; {"a": 2}]')
    (tmp_path / "number.json").write_text("17")
    (tmp_path / "vqa.json").write_text('{"info": {}, "splits": ["a"], "questions": [{"question": "?", "image_id": 1}]}')
    (tmp_path / "internvl.json").write_text('{"a": {"root": "a/", "annotation": "a.jsonl", "length": 1}}')
    (tmp_path / "factory.json").write_text(
        '{"a": {"file_name": "a.json", "columns": {}}, "b": {"file_name": "b.json"}}'
    )
    (tmp_path / "other.json").write_text('{"a": 1, "b": {}, "c": []}')
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    for part in ("train", "test"):
        (tmp_path / "saved" / part).mkdir(parents=True)
        (tmp_path / "saved" / part / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    (tmp_path / "saved/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for part in ("classes/train/cats", "classes/test/cats", "lonely/cats"):
        write_media(tmp_path / part, 1)
    (tmp_path / "lonely/lonely.png").write_bytes(picture(1))
    source, *rest = arguments
    target = rest.pop(0) if rest and not rest[0].startswith("-") else "out"
    convert_refuses(tmp_path / source, tmp_path / target, *rest, told=message.replace("{0}", str(tmp_path)))
    assert not (tmp_path / target / META_FOLDER).exists()


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"image_url": "https://x.org/1", "caption": "a"}, "image_url"),
        ({"contentUrl": "https://x.org/1.mp4?w=3", "name": "a"}, "contentUrl"),
        ({"images": [None, "https://x.org/1.jpg"], "texts": ["a", None]}, "images"),
        ({"url": "https://x.org/1.html", "text": "a"}, ""),
        ({"image": PICTURES[0], "image_url": "https://x.org/1.jpg", "text": "a"}, ""),
    ],
)
def test_media_that_are_named_by_url_alone_are_told(row: dict[str, Any], column: str, tmp_path: Path) -> None:
    result = convert(lines(row)(tmp_path / "raw"), tmp_path / "out")
    assert result.exit_code == 0
    assert (f"note: {column}: names media by URL" if column else "") in result.stderr
    assert ("by URL" in result.stderr) is bool(column)


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
