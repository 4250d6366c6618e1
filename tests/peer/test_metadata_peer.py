"""Forms of `.nv-meta` that Energon reads mean the same samples here."""

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.peer.running import MARKS, in_order, run_both
from tests.prepared import write_dataset

pytestmark = MARKS

ENERGON = "megatron.energon"
TEXT_TYPE = {"sample_type": {"__module__": ENERGON, "__class__": "TextSample"}}
TEXTS = TEXT_TYPE | {"field_map": {"text": "txt"}}
NAMES = [f"data-{number:04d}.tar" for number in range(6)]
COUNTS = dict.fromkeys(NAMES, 2)

SPLITS: dict[str, str] = {
    "no exclude": "split_parts: {train: ['data-{0000..0002}.tar']}",
    "excluded shards": "split_parts: {train: ['data-{0000..0005}.tar']}\n"
    "exclude: [data-0001.tar, 'data-000{3,4}.tar', data-0005.tar/k10]",
    "excluded samples": "split_parts: {train: ['data-{0000..0005}.tar']}\n"
    "exclude: ['data-0001.tar/k{02,03}', 'data-000{0..1}.tar/k00', data-0002.tar/zzz, gone.tar, gone.tar/k1]",
    "nested braces": "split_parts: {train: ['data-{000{0,2},000{4..5}}.tar']}",
    "braces with steps": "split_parts: {train: ['data-{0000..0004..2}.tar']}",
    "braces backwards": "split_parts: {train: ['data-{0003..0001}.tar']}",
    "braces of one digit": "split_parts: {train: ['data-000{1..3}.tar']}",
    "braces padded by their end": "split_parts: {train: ['data-{1..0003}.tar']}",
    "another part with a wrong pattern": "split_parts: {train: [data-0000.tar], test: ['x-{0..1.tar', '{']}",
    "another part without shards": "split_parts: {train: [data-0000.tar], test: [gone.tar], val: []}",
    "another order": "split_parts: {train: [data-0003.tar, data-0000.tar]}",
}
DEFINITIONS: dict[str, dict[str, Any]] = {
    "an older class": {"__module__": ENERGON, "__class__": "TextWebdataset", "field_map": {"text": "txt"}},
    "a module of Energon": {
        "sample_type": {"__module__": f"{ENERGON}.flavors.text", "__class__": "TextSample"},
        "field_map": {"text": "txt"},
    },
    "a module that is gone": {
        "sample_type": {"__module__": "nowhere.at_all", "__class__": "TextSample"},
        "field_map": {"text": "txt"},
    },
    "the standard factory": {"__module__": ENERGON, "__class__": "StandardWebdatasetFactory", **TEXTS},
    "a split": TEXTS | {"split_config": "mine.json"},
    "sub-flavors": TEXTS | {"subflavors": {"a": 1, "b": [1, 2], "c": {"d": None}}},
    "no sub-flavors": TEXTS | {"subflavors": None},
    "alternatives": TEXT_TYPE | {"field_map": {"text": "text,txt"}},
    "a path": TEXT_TYPE | {"field_map": {"text": "json[l][1][b]"}},
    "a class of one's own": {
        "sample_type": {"__module__": "own", "__class__": "Numbered"},
        "field_map": {"text": "txt", "number": "json[a]"},
    },
    "a class with a default": {
        "sample_type": {"__module__": "own", "__class__": "Numbered"},
        "field_map": {"text": "txt"},
    },
    "a factory of one's own": {"__module__": "own", "__class__": "Upper", "field_map": {"text": "txt"}},
    "a sample loader": TEXT_TYPE
    | {"sample_loader": "sample_loader.py:sample_loader", "part_filter": "sample_loader.py:part_filter"},
    "parts by name": TEXT_TYPE | {"sample_loader": "sample_loader.py", "part_filter": ["txt", "json"]},
}
LOADER = """
def sample_loader(sample):
    return {"text": f"{sample['txt']} of {sample['json']['a']}"}

def part_filter(part):
    return part in ("txt", "json")
"""
OWN = """
from megatron.energon import DefaultDecoderWebdatasetFactory, Sample, TextSample, edataclass

@edataclass
class Numbered(Sample):
    text: str
    number: int = 7

class Upper(DefaultDecoderWebdatasetFactory[TextSample]):
    __sample_type__ = TextSample

    def load_sample(self, sample):
        made = super().load_sample(sample)
        made.text = made.text.upper()
        return made
"""


def variants(folder: Path) -> dict[str, Path]:
    """Data sets of the same samples, whose `.nv-meta` has another form each."""
    samples = ({"__key__": f"k{n:02d}", "txt": f"t{n}", "json": {"a": n, "l": [n, {"b": f"x{n}"}]}} for n in range(12))
    plain = write_dataset(folder / "plain", samples, per_shard=2, definition=TEXTS)
    found = {}

    def another(name: str) -> Path:
        found[name] = folder / name
        shutil.copytree(plain, found[name])
        return found[name] / ".nv-meta"

    for name, text in SPLITS.items():
        (another(f"split with {name}") / "split.yaml").write_text(text)
    for name, definition in DEFINITIONS.items():
        meta = another(f"dataset.yaml with {name}")
        (meta / "dataset.yaml").write_text(yaml.safe_dump(definition))
        (meta / "sample_loader.py").write_text(LOADER)
        (meta / "mine.json").write_text(json.dumps({"split_parts": {"train": NAMES[2:3]}}))
    meta = another("info in YAML")
    (meta / ".info.json").unlink()
    (meta / ".info.yaml").write_text(yaml.safe_dump({"energon_version": "4.0.0", "shard_counts": COUNTS}))
    meta = another("info in both")
    (meta / ".info.yaml").write_text("shard_counts: {x.tar: 1}")
    (another("info without a version") / ".info.json").write_text(json.dumps({"shard_counts": COUNTS}))
    (another("info of more shards") / ".info.json").write_text(json.dumps({"shard_counts": COUNTS | {"z.tar": 7}}))
    meta = another("split in JSON")
    (meta / "split.json").write_text(json.dumps(yaml.safe_load((meta / "split.yaml").read_text())))
    (meta / "split.yaml").unlink()
    meta = another("without indexes")
    for name in ("index.bridge", "index.sqlite", "index.uuid"):
        (meta / name).unlink()
    meta = another("without the index of a shard that nobody reads")
    (meta / "split.yaml").write_text("split_parts: {train: ['data-{0000..0003}.tar'], val: [data-0005.tar]}")
    (meta.parent / "data-0005.tar.idx").unlink()
    meta = another("in folders")
    (meta.parent / "sub").mkdir()
    for name in (*NAMES, *(f"{name}.idx" for name in NAMES)):
        (meta.parent / name).rename(meta.parent / "sub" / name)
    (meta / ".info.json").write_text(json.dumps({"shard_counts": dict.fromkeys((f"sub/{n}" for n in NAMES), 2)}))
    (meta / "split.yaml").write_text(
        "split_parts: {train: ['sub/data-{0000..0005}.tar']}\nexclude: [sub/data-0001.tar, sub/data-0002.tar/k04]"
    )
    return found


def test_forms_of_metadata(tmp_path: Path) -> None:
    paths = variants(tmp_path)
    program = """
found = {name: val(path, split_part="train") for name, path in given["paths"].items()}
"""
    theirs, ours = run_both(program, tmp_path, {"own": OWN}, paths=paths)
    for name in paths:
        assert in_order(ours[name]) == in_order(theirs[name]), name
    assert len(paths) == 33
    assert min(map(len, ours.values())) == 2
