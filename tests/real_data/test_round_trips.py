"""Real pictures, recordings, videos and documents go through every converter and writer, and are read again here and in
Megatron-Energon, as they were in their package, byte by byte."""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bridge_data import ShardWriter, write
from tests.peer.running import MARKS
from tests.peer.test_prepare_peer import ours, theirs
from tests.plugins.convert.originals import (
    converted,
    save_to_disk,
    write_arrow,
    write_csv,
    write_jsonl,
    write_mds,
)
from tests.real_data import pages, speech, stamps, videos

pytestmark = [pytest.mark.data, *MARKS]

LANGUAGES = ("en", "de", "ja")
NUM_STAMPS = 90

Originals = dict[str, tuple[str, bytes]]
"""Text and medium by key; the key ends with the ending of the medium."""


def captioned(package: Callable[[str], Path]) -> Originals:
    """Stamps with captions in three languages in turn."""
    found = stamps.find_stamps(package(stamps.PACKAGE))
    known = [stamp for stamp in found.values() if stamp.captions.keys() >= {*LANGUAGES}][:NUM_STAMPS]
    assert len(known) == NUM_STAMPS
    return {
        f"{number:03d}.png": (stamp.captions[LANGUAGES[number % 3]], stamp.picture.read_bytes())
        for number, stamp in enumerate(known)
    }


def spoken(package: Callable[[str], Path]) -> Originals:
    """Recordings with their transcripts."""
    found = speech.find_speech(package(speech.PACKAGE))
    return {f"{path.stem.replace('.', '_')}.wav": (text, path.read_bytes()) for path, text in found.items()}


def filmed(package: Callable[[str], Path]) -> Originals:
    """Videos with their names."""
    root = package(videos.PACKAGE)
    return {f"{name}.mp4": (f"film {name}", videos.video_file(root, name).read_bytes()) for name in videos.NUM_FRAMES}


CONTENTS: dict[str, Callable[[Callable[[str], Path]], Originals]] = {
    "pictures": captioned,
    "recordings": spoken,
    "videos": filmed,
}


def files_of(folder: Path, originals: Originals) -> Path:
    """The media as files."""
    folder.mkdir(parents=True)
    for name, (_, data) in originals.items():
        (folder / name).write_bytes(data)
    return folder


def rows_of(originals: Originals) -> list[dict[str, Any]]:
    return [{"media": name, "text": text} for name, (text, _) in originals.items()]


def table_of(originals: Originals) -> Any:
    import pyarrow

    media = [{"bytes": data, "path": name} for name, (_, data) in originals.items()]
    return pyarrow.table({"media": media, "text": [text for text, _ in originals.values()]})


def as_folder(folder: Path, originals: Originals) -> Path:
    files_of(folder, originals)
    for name, (text, _) in originals.items():
        (folder / name).with_suffix(".txt").write_text(text, encoding="utf-8")
    return folder


def as_parquet(folder: Path, originals: Originals) -> Path:
    import pyarrow.parquet

    folder.mkdir()
    pyarrow.parquet.write_table(table_of(originals), folder / "a.parquet", row_group_size=20)
    return folder / "a.parquet"


def as_json(folder: Path, originals: Originals) -> Path:
    path = files_of(folder, originals) / "a.json"
    path.write_text(json.dumps(rows_of(originals)))
    return path


def as_data_urls(folder: Path, originals: Originals) -> Path:
    kinds = {"png": "image/png", "wav": "audio/wav", "mp4": "video/mp4"}
    folder.mkdir()
    rows = [
        {"media": f"data:{kinds[name[-3:]]};base64,{base64.b64encode(data).decode()}", "text": text}
        for name, (text, data) in originals.items()
        if len(data) < 5_000_000
    ]
    return write_jsonl(folder / "a.jsonl", rows)


def as_mds(folder: Path, originals: Originals) -> Path:
    records = [{"media": data, "text": text.encode()} for text, data in originals.values()]
    return write_mds(folder, records, {"media": "bytes", "text": "str"})


def as_tars(folder: Path, originals: Originals) -> Path:
    return converted(as_folder(folder.with_name("raw"), originals), folder, "--sample-type", "crude")


def as_coco(folder: Path, originals: Originals) -> Path:
    images = [{"id": number, "file_name": name} for number, name in enumerate(originals)]
    texts = [{"id": at, "image_id": at, "caption": text} for at, (text, _) in enumerate(originals.values())]
    path = files_of(folder, originals) / "a.json"
    path.write_text(json.dumps({"images": images, "annotations": texts}))
    return path


FORMS: dict[str, Callable[[Path, Originals], Path]] = {
    "folder": as_folder,
    "jsonl": lambda folder, found: write_jsonl(files_of(folder, found) / "a.jsonl", rows_of(found)),
    "data URLs": as_data_urls,
    "json": as_json,
    "csv": lambda folder, found: write_csv(files_of(folder, found) / "a.csv", rows_of(found)),
    "tsv": lambda folder, found: write_csv(files_of(folder, found) / "a.tsv", rows_of(found)),
    "parquet": as_parquet,
    "arrow": lambda folder, found: write_arrow(folder / "a.arrow", table_of(found)),
    "feather": lambda folder, found: write_arrow(folder / "a.feather", table_of(found), is_file=True),
    "datasets": lambda folder, found: save_to_disk(folder, table_of(found)),
    "mds": as_mds,
    "webdataset": as_tars,
    "coco": as_coco,
}


def digests(contents: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}


def texts_and_media(folder: Path, originals: Originals) -> list[tuple[str, str]]:
    """Text and digest of the medium of each sample, as both packages read it."""
    mine, others = ours(folder, "train")["train"], theirs(folder, "train")["train"]
    assert [(one["shard"], one["parts"]) for one in others] == [(one["shard"], one["parts"]) for one in mine]
    from bridge_data.data import ShardReader, open_shards

    reader = ShardReader(open_shards(folder, "train"))
    found = []
    for number, one in enumerate(mine):
        parts = dict(reader.read(number).parts)
        content = parts.pop("json", None)
        text = parts.pop("txt").decode() if content is None else json.loads(content)
        (medium,) = parts.values()
        assert hashlib.sha256(medium).hexdigest() in one["parts"].values()
        found.append((text if isinstance(text, str) else text.get("text", text.get("caption")), digest_of(medium)))
    return sorted(found)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("content", "form"),
    [(content, form) for content in CONTENTS for form in FORMS if form != "coco" or content == "pictures"],
)
def test_every_converter_keeps_text_and_medium(
    content: str, form: str, package: Callable[[str], Path], tmp_path: Path
) -> None:
    originals = CONTENTS[content](package)
    folder = converted(FORMS[form](tmp_path / "source", originals), tmp_path / "out", "--sample-type", "crude")
    expected = [(text, digest_of(data)) for text, data in originals.values()]
    if form == "data URLs":
        expected = [(text, digest_of(data)) for text, data in originals.values() if len(data) < 5_000_000]
    assert texts_and_media(folder, originals) == sorted(expected)


def test_pictures_in_a_folder_for_each_class_keep_their_bytes(package: Callable[[str], Path], tmp_path: Path) -> None:
    originals = captioned(package)
    for number, (name, (_, data)) in enumerate(originals.items()):
        path = tmp_path / "raw" / LANGUAGES[number % 3] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    folder = converted(tmp_path / "raw", tmp_path / "out")
    (folder / ".nv-meta/dataset.yaml").write_text(
        json.dumps({"__module__": "megatron.energon", "__class__": "CrudeWebdataset"})
    )
    mine, others = ours(folder, "train")["train"], theirs(folder, "train")["train"]
    assert [one["parts"] for one in others] == [one["parts"] for one in mine]
    classes = sorted(LANGUAGES)
    expected = [
        digests({"png": data, "cls": str(classes.index(name)).encode(), "txt": name.encode()})
        for number, (_, data) in enumerate(originals.values())
        for name in [LANGUAGES[number % 3]]
    ]
    assert sorted(map(json.dumps, map(sorted_parts, expected))) == sorted(
        json.dumps(sorted_parts(one["parts"])) for one in mine
    )


def sorted_parts(parts: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(parts.items()))


@pytest.mark.parametrize("how", ["writer", "function"])
def test_documents_keep_their_texts_and_images(how: str, package: Callable[[str], Path], tmp_path: Path) -> None:
    root = package(pages.PACKAGE)
    samples = []
    for name, page in pages.find_pages(root).items():
        images = {
            f"{number:02d}{image.suffix}": (root / pages.PAGES / image).read_bytes()
            for number, image in enumerate(page.images)
        }
        texts = [item for item in page.sequence if isinstance(item, str)]
        content = json.dumps({"title": page.title, "texts": texts}, ensure_ascii=False).encode()
        samples.append({"__key__": name, "json": content, **images})
    if how == "writer":
        with ShardWriter(tmp_path / "out", max_samples=50) as writer:
            for sample in samples:
                writer.write(sample)
    else:
        write(lambda number: samples[number], tmp_path / "out", items=range(len(samples)), num_workers=2)
    mine, others = ours(tmp_path / "out", "train")["train"], theirs(tmp_path / "out", "train")["train"]
    expected = [digests({k: v for k, v in sample.items() if k != "__key__"}) for sample in samples]
    assert [one["parts"] for one in mine] == expected
    assert [one["parts"] for one in others] == expected
