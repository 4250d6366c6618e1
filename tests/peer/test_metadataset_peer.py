"""Joins, subsets, blends by repetitions and nested metadatasets mean the same samples here and in Energon."""

import collections
import json
from pathlib import Path
from typing import Any

import pytest

from bridge_data.errors import ConfigError
from bridge_data.plan import load_plan
from tests.cli.runner import run_command
from tests.peer.media import picture
from tests.peer.running import MARKS, energon, in_order, run_both
from tests.prepared import TEXT, write_dataset, write_texts

pytestmark = MARKS


def write(path: Path, splits: dict[str, Any], name: str = "MetadatasetV2") -> Path:
    path.write_text(json.dumps({"__module__": "megatron.energon", "__class__": name, "splits": splits}))
    return path


def is_same(ours: Any, theirs: Any) -> bool:
    """Whether both found the same samples under each name."""
    return {name: in_order(samples) for name, samples in ours.items()} == {
        name: in_order(samples) for name, samples in theirs.items()
    }


JOINERS = """
import torch
from megatron.energon import CaptioningSample, Sample, TextSample, edataclass

@edataclass
class Fields(Sample):
    image: torch.Tensor
    caption: str
    text: str

@edataclass
class Asked(Sample):
    image: torch.Tensor
    question: str
    score: float

    @classmethod
    def from_joined(cls, photo, asked, rated):
        return cls.derive_from(photo, image=photo.image[:, ::2], question=asked.text, score=float(rated.text))

def only_texts(photo, asked):
    return TextSample.derive_from(asked, text=f"{photo.caption} {asked.text}")
"""


def by(name: str, key: str = "__class__") -> dict[str, str]:
    return {"__module__": "joiners", key: name}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Photos, questions to some of them, ratings of all of them and more, each in an order and shards of its own."""
    photos = ({"__key__": f"{n:02d}", "png": picture(n), "txt": f"photo {n}"} for n in range(20))
    captions = {"sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"}}
    captions |= {"field_map": {"image": "png", "caption": "txt"}, "subflavors": {"kind": "photo"}}
    write_dataset(tmp_path / "photos", photos, per_shard=6, ratio="3,1,0", definition=captions)
    asked = ({"__key__": f"{n:02d}", "txt": f"question {n}"} for n in (19, 3, 17, 1, 5, 8, 14, 2))
    write_dataset(tmp_path / "asked", asked, per_shard=3, definition=TEXT | {"subflavors": {"kind": "question"}})
    write_dataset(
        tmp_path / "rated", ({"__key__": f"{n:02d}", "txt": f"{n}.5"} for n in range(29, -1, -1)), per_shard=7
    )
    return tmp_path


def test_joins(photos: Path) -> None:
    both = {"path": "asked", "nonmatch": "skip"}
    rated = {"path": "rated", "nonmatch": "error"}
    everything = {"path": "photos", "split_part": "train"}
    inner = {"join": [everything, both | {"split_part": "train"}], "joiner": by("Fields"), "subflavors": {"level": 1}}
    files = {
        "by fields": {"join": [everything, both], "joiner": by("Fields")},
        "by names": {"join": {"photo": everything, "asked": both, "rated": rated}, "joiner": by("Asked")},
        "by a function": {"join": [everything, both], "joiner": by("only_texts", "__function__")},
        "none lacks": {"join": [everything, rated], "joiner": by("Fields")},
        "subset": {"join": [everything, rated], "joiner": by("Fields"), "subset": {"range": [2, 11]}},
        "in a blend": {"blend": [inner, {"path": "asked", "subset": {"range": ["50%", "100%"]}}]},
    }
    paths = {name: write(photos / f"{name}.yaml", {"train": split}) for name, split in files.items()}
    for path in paths.values():
        result = run_command("prepare", path, "--no-progress")
        assert result.exit_code == 0, result.output
    energon(*(("prepare", path) for path in paths.values()))
    program = """
found = {name: val(path, split_part="train") for name, path in given["paths"].items()}
"""
    theirs, ours = run_both(program, photos, {"joiners": JOINERS}, paths=paths)
    for samples in (*ours.values(), *theirs.values()):
        for sample in samples:
            del sample["__sources__"]  # by fields, Energon 7.4.1 names the first member's twice
    assert is_same(ours, theirs)
    assert [len(samples) for samples in ours.values()] == [7, 7, 7, 18, 9, 7 + 4]


def test_joins_that_energon_prepared(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its indexes are read as they are; of two split parts that join the same data sets, it makes the first one's."""
    join = [{"path": "photos"}, {"path": "rated", "split_part": "train"}, {"path": "asked", "split_part": "train"}]
    join[2]["nonmatch"] = "skip"
    by_names = {"join": dict(zip(("photo", "rated", "asked"), join, strict=True)), "joiner": by("Asked")}
    path = write(photos / "joined.yaml", {"train": by_names, "val": by_names})
    for name in ("photos", "rated", "asked"):
        (photos / name / ".nv-meta/index.bridge").unlink()
    energon(("prepare", path))
    program = """
found = [val(given["path"], split_part="train")]
"""
    theirs, ours = run_both(program, photos, {"joiners": JOINERS}, path=path)
    for sample in (*ours[0], *theirs[0]):
        del sample["__sources__"]  # see test_joins
    assert in_order(ours[0]) == in_order(theirs[0])
    assert len(ours[0]) == 7
    assert not (photos / "joined.yaml.joins").exists()
    (photos / "joiners.py").write_text(JOINERS.replace("megatron.energon", "bridge_data.energon"))
    monkeypatch.syspath_prepend(photos)
    with pytest.raises(ConfigError, match="Energon made this index of a join for other shards"):
        load_plan(path, split_part="val", trusted_modules=["joiners"])


RANGES: list[list[Any]] = [
    [0, 10],
    [17, "end"],
    ["0%", "50%"],
    ["33.3%", "66.6%"],
    ["29%", "58%"],
    ["10%", "70%"],
    ["12.5%", "100%"],
]


def test_ranges_in_ranges(tmp_path: Path) -> None:
    for name, size in (("a", 97), ("b", 53), ("c", 100)):
        write_texts(tmp_path / name, size, per_shard=9)
    leaves = [
        {"path": path, "subset": {"range": bounds}, "subflavors": {"leaf": f"{path} {bounds}"}}
        for path in "abc"
        for bounds in RANGES
    ]
    inner = write(tmp_path / "leaves.yaml", {"train": {"blend": leaves}})
    references = [
        {"path": "leaves.yaml", "subset": {"range": bounds}, "subflavors": {"outer": str(bounds)}}
        for bounds in (["0%", "50%"], ["33.3%", "66.6%"], ["10%", "70%"])
    ]
    outer = write(tmp_path / "outer.yaml", {"train": {"blend": references, "subset": {"range": ["7%", "93%"]}}})
    program = """
found = {name: val(path, split_part="train") for name, path in given["paths"].items()}
"""
    theirs, ours = run_both(program, tmp_path, paths={"leaves": inner, "outer": outer})
    assert is_same(ours, theirs)
    assert (len(ours["leaves"]), len(ours["outer"])) == (878, 1083)


def test_an_epoch_of_repetitions(tmp_path: Path) -> None:
    for name, size in (("a", 40), ("b", 31), ("c", 16)):
        write_texts(tmp_path / name, size, per_shard=6)
    once_each = [{"path": "a", "repetitions": 1}, {"path": "b", "repetitions": 3}]
    files = {
        "whole": once_each,
        "fractions": [
            {"path": "a", "repetitions": 0.5},
            {"path": "b", "repetitions": 1.3},
            {"path": "c", "repetitions": 1},
        ],
        "nested": [{"repetitions": 2, "path": "whole.yaml"}, {"repetitions": 1.5, "path": "c"}],
    }
    paths = {}
    for name, items in files.items():
        paths[name] = write(tmp_path / f"{name}.yaml", {"train": {"blend_epochized": items}})
    program = """
found = {name: epoch(path) for name, path in given["paths"].items()}
"""
    theirs, ours = run_both(program, tmp_path, paths=paths)
    assert in_order(ours["whole"]) == in_order(theirs["whole"])
    assert len(ours["whole"]) == 40 + 3 * 31
    # Fractions here are whole samples: others are rounded, and by Energon rounded down, in each worker.
    # Of a fraction, which samples come once more is chance: as many of each data set, none twice as often as promised.
    for name in ("fractions", "nested"):
        times = [times_of(found[name]) for found in (ours, theirs)]
        assert {path: sum(counts) for path, counts in times[0].items()} == {
            path: sum(counts) for path, counts in times[1].items()
        }
        assert all(max(counts) - min(counts) <= 1 for found in times for counts in found.values())


def times_of(samples: list[Any]) -> dict[str, list[int]]:
    """How often each of the samples came, for each data set."""
    found: dict[str, list[int]] = {}
    for (path, _), count in collections.Counter((s["__sources__"][0][0], s["__key__"]) for s in samples).items():
        found.setdefault(Path(path).name, []).append(count)
    return found


def test_metadatasets_of_both_formats_refer_to_each_other(tmp_path: Path) -> None:
    """Sub-flavors of outer levels win, split parts are inherited or given, and validation sets are told apart."""
    captions = TEXT | {"subflavors": {"level": "data set", "own": 1}}
    for name, size in (("a", 30), ("b", 24)):
        samples = ({"__key__": f"{n}", "txt": f"{name}{n}"} for n in range(size))
        write_dataset(tmp_path / name, samples, per_shard=6, ratio="2,1,1", definition=captions)
    (tmp_path / "a/.nv-meta/other.yaml").write_text(json.dumps(TEXT | {"subflavors": {"level": "other"}}))
    (tmp_path / "a/.nv-meta/halves.yaml").write_text(
        json.dumps(
            {"split_parts": {"val": ["data-0000.tar", "data-0003.tar"], "train": ["data-0001.tar"]}, "exclude": []}
        )
    )
    first = {
        "val": {
            "datasets": [
                {"weight": 1, "path": "a", "subflavors": {"level": "first", "first": True}},
                {"weight": 2, "path": "b", "split_part": "test"},
            ]
        }
    }
    write(tmp_path / "first.yaml", first, "Metadataset")
    second = {
        "blend": [
            {"path": "first.yaml", "subflavors": {"level": "second"}},
            {"path": "./a", "split_config": "halves.yaml", "dataset_config": "other.yaml"},
            {"path": "../" + tmp_path.name + "/b", "split_part": "train", "subflavors": {"own": None}},
        ]
    }
    paths = {"first": tmp_path / "first.yaml", "second": write(tmp_path / "second.yaml", {"val": second})}
    program = """
found = {name: val(path) for name, path in given["paths"].items()}
sets = get_val_datasets(given["paths"]["second"], worker_config=alone, batch_size=2, **trust)
found["sets"] = [[describe(batch) for batch in get_loader(dataset)] for dataset, _ in sets]
"""
    theirs, ours = run_both(program, tmp_path, paths=paths)
    assert is_same(ours, theirs)
    assert ours["sets"] == theirs["sets"]
    assert [len(batches) for batches in ours["sets"]] == [3, 3, 6, 6]
