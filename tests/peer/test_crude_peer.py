"""Crude samples are cooked alike here and in Energon: with auxiliary data, the primary, caches, and from JSONL."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runner import run_command
from tests.peer.media import picture
from tests.peer.running import MARKS, energon, in_order, run_both
from tests.prepared import CRUDE, write_dataset

pytestmark = MARKS

SIZE = 15

COOK = """
from megatron.energon import FileStoreCachePool, NoCachePool

@edataclass
class Page(Sample):
    picture: object
    size: tuple
    note: str
    turns: list
    kept: object
    own: object
    text: str
    flavor: str

@stateless
@cooker(need_primary=True, need_cache=True)
def cook(sample, pictures, notes, primary, cache):
    name = sample["json"]["picture"]
    metadata = pictures.get_media_metadata(name)
    return Page(
        **basic_sample_keys(sample),
        picture=cache.get_lazy(pictures, name),
        size=(metadata.width, metadata.height, metadata.format, metadata.mode),
        note=notes.get(sample["json"]["note"], sample),
        turns=sample["json"]["turns"],
        kept=cache.to_cache({"note": [name, 1.5]}, "kept"),
        own=primary.get(".jpg", sample),
        text=primary.get(f"{sample['__key__']}.txt"),
        flavor="first",
    )

@stateless
def cook_others(sample, **aux):
    return Page(**basic_sample_keys(sample), picture=None, size=(), note=sample["txt"], turns=sorted(aux), kept=None,
                own=sample["jpg"], text="", flavor="other")

class Pages(DefaultTaskEncoder):
    decoder = SampleDecoder(image_decode="rgb8")
    cookers = [Cooker(cook, has_subflavors={"kind": "page"}), Cooker(cook_others)]

    @stateless
    def encode_sample(self, sample):
        if sample.flavor == "first":
            sample.picture = sample.picture.get(sample)
            sample.kept = sample.kept.get(sample)
        return sample
"""


def write_pages(root: Path) -> Path:
    """Crude samples, the pictures that they name in a data set of its own, notes in a folder; a metadataset of them."""
    pages = (
        {
            "__key__": f"book/page{number}",
            "json": {"picture": f"scan{number % 7}.png", "note": f"of/{number}.txt", "turns": [number, None, {"a": 1}]},
            "txt": f"page {number}",
            "jpg": picture(number, "JPEG"),
        }
        for number in range(SIZE)
    )
    write_dataset(root / "pages", pages, per_shard=4, definition=CRUDE)
    pictures = ({"__key__": f"scan{number}", "png": picture(50 + number)} for number in (5, 3, 0, 2, 6, 4, 1))
    write_dataset(root / "pictures", pictures, per_shard=3, definition=CRUDE)
    (root / "notes/of").mkdir(parents=True)
    for number in range(SIZE):
        (root / f"notes/of/{number}.txt").write_text(f"note {number}, schön")
    aux = {"pictures": "pictures", "notes": "filesystem://notes"}
    items = [
        {"path": "pages", "aux": aux, "subflavors": {"kind": "page", "book": 1}},
        {"path": "pages", "aux": aux, "subflavors": {"kind": "loose"}, "subset": {"range": [0, 3]}},
    ]
    path = root / "pages.yaml"
    path.write_text(metadataset({"train": {"blend": items}}))
    return path


def metadataset(splits: dict[str, Any]) -> str:
    return json.dumps({"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits})


def media_rows(folder: Path) -> list[Any]:
    index = sqlite3.connect(folder / ".nv-meta/index.sqlite")
    return index.execute("SELECT entry_key, metadata_type, metadata_json FROM media_metadata ORDER BY 1").fetchall()


@pytest.mark.parametrize("prepared_by", ["ours", "theirs"])
def test_pages_are_cooked_with_auxiliary_data_the_primary_and_caches(tmp_path: Path, prepared_by: str) -> None:
    path = write_pages(tmp_path)
    if prepared_by == "ours":
        assert run_command("prepare", tmp_path / "pictures", "--media", "extension").exit_code == 0
    else:
        for name in ("pages", "pictures"):
            (tmp_path / name / ".nv-meta/index.bridge").unlink()
        flags = ("--non-interactive", "--force-overwrite", "--skip-dataset-yaml", "--split-ratio", "1,0,0")
        energon(
            ("prepare", tmp_path / "pages", *flags, "--num-workers", 2),
            ("prepare", tmp_path / "pictures", *flags, "--num-workers", 2),
            ("prepare-media", tmp_path / "pictures", "--media-metadata-by-extension", "--num-workers", 2),
        )
    program = (
        COOK
        + """
pools = {
    "none": NoCachePool(),
    "raw": FileStoreCachePool(num_workers=2, method="raw"),
    "pickle": FileStoreCachePool(num_workers=2, method="pickle"),
}
found = {}
for name, pool in pools.items():
    found[name] = val(given["path"], split_part="train", task_encoder=Pages(), cache_pool=pool)
    pool.close()
"""
    )
    theirs, ours = run_both(program, tmp_path, path=path)
    for pool in ours:
        assert in_order(ours[pool]) == in_order(theirs[pool])
    assert ours["none"] == ours["raw"] == ours["pickle"]
    assert len(ours["raw"]) == SIZE + 3


def test_media_metadata_are_stored_alike(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        pictures = ({"__key__": f"{n}", "jpg": picture(n, "JPEG"), "x.png": picture(n, mode="LA")} for n in range(5))
        write_dataset(tmp_path / name / "tars", pictures, per_shard=3, definition=CRUDE)
        (tmp_path / name / "files/sub").mkdir(parents=True)
        (tmp_path / name / "files/sub/a.webp").write_bytes(picture(1, "WEBP"))
        (tmp_path / name / "files/b").write_bytes(picture(2, "GIF"))
        (tmp_path / name / "files/c.txt").write_bytes(b"no picture")
    found = {name: [tmp_path / name / "tars", tmp_path / name / "files"] for name in ("ours", "theirs")}
    # On a folder, Energon 7.4.1 can do it by extension only: by header and by glob its workers fail and it hangs.
    rules = ("header", "extension")
    for folder, rule in zip(found["ours"], rules, strict=True):
        result = run_command("prepare", folder, "--media", rule)
        assert result.exit_code == 0, result.output
    theirs = [(folder, f"--media-metadata-by-{rule}") for folder, rule in zip(found["theirs"], rules, strict=True)]
    energon(*(("prepare-media", *pair, "--num-workers", 2) for pair in theirs))
    rows = [[media_rows(folder) for folder in folders] for folders in found.values()]
    assert rows[0] == rows[1]
    assert [len(stored) for stored in rows[0]] == [10, 1]


def test_lines_of_json_are_crude_samples(tmp_path: Path) -> None:
    lines = [{"text": f"line {n}, schön", "n": n, "nested": [None, 1.5, {"a": []}]} for n in range(SIZE)]
    for name in ("ours", "theirs"):
        text = "".join(json.dumps(line, ensure_ascii=n % 2 == 0) + "\n" for n, line in enumerate(lines))
        (tmp_path / f"{name}.jsonl").write_text(text)
    assert run_command("prepare", tmp_path / "ours.jsonl").exit_code == 0
    energon(("prepare", tmp_path / "theirs.jsonl"))
    assert (tmp_path / "ours.jsonl.idx").read_bytes() == (tmp_path / "theirs.jsonl.idx").read_bytes()
    items = [
        {"path": "ours.jsonl", "subflavors": {"by": "us"}, "subset": {"range": ["20%", "100%"]}},
        {"path": "theirs.jsonl", "subset": {"range": [1, 4]}},
    ]
    (tmp_path / "blend.yaml").write_text(metadataset({"train": {"blend": items}}))
    program = """
@edataclass
class Line(Sample):
    content: dict

@stateless
@cooker(need_primary=True)
def cook(sample, primary):
    other = json.loads(primary["3.json"][0])
    content = {"json": sample["json"], "other": other, "shard": sample["__shard__"]}
    return Line(**basic_sample_keys(sample), content=content)

class Lines(DefaultTaskEncoder):
    decoder = None
    cookers = [Cooker(cook)]

found = [val(path, split_part="train", task_encoder=Lines()) for path in given["paths"]]
"""
    paths = [tmp_path / name for name in ("ours.jsonl", "theirs.jsonl", "blend.yaml")]
    theirs, ours = run_both(program, tmp_path, paths=paths)
    assert [in_order(samples) for samples in ours] == [in_order(samples) for samples in theirs]
    assert [len(samples) for samples in ours] == [SIZE, SIZE, 12 + 3]
