from pathlib import Path

import pytest

from bridge_data import (
    Cooker,
    DefaultTaskEncoder,
    TextSample,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from bridge_data.errors import ConfigError
from bridge_data.plan import load_plan
from bridge_data.plan.jsonl_source import is_jsonl
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.samples import CrudeSample
from bridge_data.shards.jsonl_file import split_path
from tests.prepared import write_texts

HEAD = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"


def write_lines(path: Path, num: int = 20) -> Path:
    path.write_text("".join(f'{{"text": "{path.stem} {number}"}}\n' for number in range(num)))
    prepare_jsonl(path)
    return path


def cook(sample: CrudeSample) -> TextSample:
    text = sample["json"]["text"] if "json" in sample else str(sample["txt"])
    return TextSample(__key__=sample["__key__"], __restore_key__=sample["__restore_key__"], text=text)


class Lines(DefaultTaskEncoder):
    cookers = [Cooker(cook)]  # noqa: RUF012


class UndecodedLines(Lines):
    decoder = None


CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0)


def texts(path: Path, encoder: type[Lines] = Lines, split_part: str = "val") -> list[str]:
    dataset = get_val_dataset(path, split_part=split_part, worker_config=CONFIG, batch_size=3, task_encoder=encoder())
    return [text for batch in get_loader(dataset) for text in batch.text]


def test_a_jsonl_file_is_a_data_set(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    expected = [f"a {number}" for number in range(20)]
    assert texts(path) == expected
    assert texts(path, UndecodedLines) == expected, "a line is JSON even where nothing else is decoded"
    dataset = get_train_dataset(
        path,
        worker_config=CONFIG,
        batch_size=5,
        shuffle_buffer_size=10,
        max_samples_per_sequence=4,
        task_encoder=Lines(),
        repeat=False,
    )
    found = [text for batch in get_loader(dataset) for text in batch.text]
    assert sorted(found) == sorted(expected) and found != expected


def test_its_source(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    (source,) = load_plan(path).sources
    assert (source.name, source.sample_class, source.num_samples) == ("a.jsonl/train", CrudeSample, 20)
    (tmp_path / "elsewhere").mkdir()
    assert source.fingerprint == load_plan(write_lines(tmp_path / "elsewhere" / "a.jsonl")).sources[0].fingerprint
    assert source.fingerprint != load_plan(write_lines(tmp_path / "b.jsonl")).sources[0].fingerprint
    assert source.fingerprint == "ded89908558d251b", "another value here is another order, and a change of the state"
    assert is_jsonl(str(path)) and not is_jsonl(str(tmp_path))


def test_a_part_of_its_split(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    split_path(path).write_text("split_parts: {train: [0, 18], val: [90%, 100%]}")
    assert texts(path) == ["a 18", "a 19"]
    assert load_plan(path).sources[0].num_samples == 18
    assert load_plan(path).sources[0].fingerprint != load_plan(path, split_part="val").sources[0].fingerprint
    with pytest.raises(ConfigError, match="there is no split part 'test'"):
        load_plan(path, split_part="test")


def test_in_a_metadataset(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl")
    write_lines(tmp_path / "b.jsonl", 5)
    write_texts(tmp_path / "c", 10)
    (tmp_path / "b.parts.yaml").write_text("split_parts: {few: [1, 3]}")
    blend = (
        "  train:\n    blend:\n      - {path: a.jsonl, weight: 2, subflavors: {kind: lines}}\n"
        "      - {path: b.jsonl, split_part: few, split_config: b.parts.yaml}\n      - {path: c}\n"
        "  val: {path: b.jsonl}\n"
    )
    (tmp_path / "m.yaml").write_text(HEAD + blend)
    plan = load_plan(tmp_path / "m.yaml")
    assert [(source.name, source.num_samples) for source in plan.sources[:2]] == [
        ("a.jsonl/train", 20),
        ("b.jsonl/few", 2),
    ]
    assert plan.sources[0].subflavors == {"kind": "lines"}
    assert texts(tmp_path / "m.yaml") == [f"b {number}" for number in range(5)]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("{path: none.jsonl}", r"m\.yaml:4: .*none\.jsonl: no such folder or file"),
        ("{path: raw.jsonl}", r"m\.yaml:4: .*raw\.jsonl: not prepared, there is no raw\.jsonl\.idx"),
        ("{path: a.jsonl, dataset_config: d.yaml}", r"m\.yaml:4: dataset_config is for prepared folders"),
        ("{path: a.jsonl, split_config: d.yaml}", r"m\.yaml:4: .*d\.yaml: no such file"),
    ],
)
def test_wrong_references_are_named_with_their_line(tmp_path: Path, reference: str, message: str) -> None:
    write_lines(tmp_path / "a.jsonl")
    (tmp_path / "raw.jsonl").write_text("{}\n")
    (tmp_path / "m.yaml").write_text(f"{HEAD}  train: {reference}\n")
    with pytest.raises(ConfigError, match=message):
        load_plan(tmp_path / "m.yaml")
