import json
from pathlib import Path
from typing import Any, Literal, Optional

import pyarrow as pa
import pytest
import torch

from bridge_data import DefaultTaskEncoder, SampleDecoder, TextSample, WorkerConfig, get_loader, get_train_dataset
from bridge_data.decode.source_reader import is_of_type
from bridge_data.plugins.doctor.lint import LintConfig, lint
from bridge_data.plugins.joins.metadataset_joins import prepare_metadataset
from bridge_data.prepare.tars import PrepareConfig, refresh_index
from tests.decode.pictures import encoded, picture
from tests.plan.joins import BY_FIELDS, joined
from tests.plan.prepared import write_dataset
from tests.tables import save_to_disk, table_of, write_parquet

JPEG = encoded(picture((9, 6)), "JPEG")
ARRAY = [[0.5, 1.0]]


@pytest.mark.parametrize(
    ("hint", "fitting", "others"),
    [
        (str, ["a"], [1]),
        (int, [], [True, 1.5]),
        (float, [1], []),
        (Optional[str], [None], []),  # noqa: UP045
        (None, [None], []),
        (str | None, ["a"], [b"a"]),
        (torch.Tensor, [torch.ones(1)], ["a"]),
        (list[str], [["a", "b"]], ["a", ["a", 1]]),
        (list[int], [[]], []),
        (tuple[int, str], [[1, "a"]], [[1]]),
        (tuple[int, ...], [[1, 2, 3]], []),
        (dict[str, int], [{"a": 1}], [{"a": "b"}]),
        (dict[str, list[int] | None], [{"a": [1]}], []),
        (Literal["x", "y"], ["x"], ["z"]),
        (Any, [object()], []),
        ("NotAType", ["what"], []),
    ],
)
def test_values_fit_the_type_that_is_declared_or_not(hint: object, fitting: list[object], others: list[object]) -> None:
    assert all(is_of_type(value, hint) for value in fitting)
    assert not any(is_of_type(value, hint) for value in others)


FIELDS: dict[str, tuple[dict[str, str], Any, list[Any]]] = {
    "TextSample text": ({}, "a text", [None, 5, 2.5, True, ["a"], {"a": "b"}]),
    "CaptioningSample caption": ({"image": "jpg"}, "a text", [None, 5, ["a", "b"]]),
    "CaptioningSample image": ({"caption": "txt"}, ARRAY, [None, 5, True, "a.jpg", {"path": "a.jpg"}, ["a.jpg"]]),
    "VQASample context": ({"image": "jpg"}, "why?", [None, ["why?"]]),
    "VQASample answers": ({"image": "jpg", "context": "txt"}, "yes", [5, [1], ["a", None], {"answer": "a"}]),
    "VidQASample answers": ({"video": "jpg", "context": "txt"}, ["a", "b"], [5, [1], ["a", None]]),
    "VQASample answer_weights": ({"image": "jpg", "context": "txt"}, None, ["1", 0.5, {"a": 1.0}, [None]]),
    "ImageClassificationSample label": ({"image": "jpg"}, 3, ["3", 3.5, True, [3]]),
    "ImageClassificationSample label_name": ({"image": "jpg"}, None, [3, ["cat"]]),
    "MultiChoiceVQASample choices": ({"image": "jpg", "context": "txt"}, ["a"], ["ab", {"a": 1}]),
    "MultiChoiceVQASample correct_choice_idx": ({"image": "jpg", "context": "txt"}, 1, [None, "1", [1]]),
    "OCRSample block_boxes": ({"image": "jpg", "text": "txt"}, [[1, 2, 3, 4.5]], ["1 2 3 4", 1, [["1"]], True]),
    "VQAOCRSample words_text": ({"image": "jpg", "context": "txt", "text": "json[texts][0]"}, ["a"], ["a", [1]]),
    "VidQASample context": ({"video": "jpg"}, "why?", [None, 7]),
    "InterleavedSample sequence": ({}, ["a", "b"], [None, "ab", ["a", None]]),
    "SimilarityInterleavedSample matched_text_indices": (
        {"images": "json[arrays]", "texts": "json[texts]"},
        [0],
        [0, ["0"]],
    ),
}
"""Class and field; the other fields of its map; a value that fits, and others."""


def loaded(data: Any, encoder: Any = None, **options: Any) -> tuple[list[Any], dict[str, str]]:
    """The batches of one epoch, of one sample each, and the errors of the samples that failed, by key."""
    told: dict[str, str] = {}
    config = WorkerConfig(
        0, 1, 0, num_lanes=1, global_error_handler=lambda e, one, _: told.update({one.__key__: str(e)})
    )
    small = {"batch_size": 1, "shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    data = get_train_dataset(
        data, worker_config=config, task_encoder=encoder or DefaultTaskEncoder(), **small, **options
    )
    with get_loader(data) as loader:
        return list(loader), told


def definition(kind: str, field_map: dict[str, str]) -> str:
    return json.dumps({"sample_type": {"__module__": "megatron.energon", "__class__": kind}, "field_map": field_map})


@pytest.mark.parametrize("name", FIELDS)
def test_a_value_of_another_type_than_the_field_is_the_failure_of_its_sample(name: str, tmp_path: Path) -> None:
    kind, field = name.split()
    others, fitting, wrong = FIELDS[name]
    samples = {
        f"{number}": {
            "jpg": JPEG,
            "txt": b"t",
            "json": json.dumps({"x": value, "texts": ["t"], "arrays": [[ARRAY]]}).encode(),
        }
        for number, value in enumerate([fitting, *wrong])
    }
    write_dataset(tmp_path, {"0.tar": samples}, dataset_yaml=definition(kind, others | {field: "json[x]"}))
    batches, told = loaded(tmp_path)
    assert [key for batch in batches for key in batch.__key__] == ["0.tar/0"]
    assert sorted(told) == [f"0.tar/{number}" for number in range(1, len(samples))]
    for number, value in enumerate(wrong, 1):
        for place in ("json[x]", "null" if value is None else repr(value), repr(field), kind, "dataset.yaml"):
            assert place in told[f"0.tar/{number}"]
    faults = lint(tmp_path, LintConfig(num_workers=1)).kept
    assert {code for code in faults if not code.startswith("index")} == {"wrong-type"}
    assert [fault.key for fault in faults["wrong-type"]] == [f"{number}" for number in range(1, len(samples))]


def wrong_tars(folder: Path, field: str) -> Path:
    samples = {"good": {"json": b'"a"' if field == "json" else b'{"x": "a"}'}, "bad": {"json": b'{"x": null}'}}
    return write_dataset(folder, {"0.tar": samples}, dataset_yaml=definition("TextSample", {"text": field}))


def as_table(file: Path) -> tuple[Path, dict[str, Any]]:
    keys, values = ["good", "bad"], pa.array([{"x": "a"}, {"x": None}], pa.struct({"x": pa.string()}))
    table = table_of({"__key__": keys, "about": values})
    path = write_parquet(file, table) if file.suffix else save_to_disk(file, table)
    return path, {"sample_type": TextSample, "field_map": {"text": "about[x]"}}


def as_join(folder: Path) -> tuple[Path, dict[str, Any]]:
    for name in ("a", "b"):
        refresh_index(wrong_tars(folder / name, "json[x]"), PrepareConfig(num_workers=1))
    path = joined(folder / "join.yaml", [{"path": "a"}, {"path": "b"}], BY_FIELDS)
    prepare_metadataset(path, num_workers=1)
    return path, {}


READERS: dict[str, Any] = {
    "a whole part, in blocks": lambda folder: (wrong_tars(folder, "json"), {}),
    "Parquet": lambda folder: as_table(folder / "a.parquet"),
    "saved to disk": lambda folder: as_table(folder / "a"),
    "a join": as_join,
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_checks_values(name: str, tmp_path: Path) -> None:
    data, options = READERS[name](tmp_path)
    batches, told = loaded(data, **options)
    assert [batch.text for batch in batches] == [["a"]]
    ((key, error),) = told.items()
    assert key.endswith("bad") and "takes str" in error


@pytest.mark.parametrize("own", [{"handlers": {"json": len}}, {"handlers": lambda name, data: 7}])
def test_what_the_user_decodes_is_not_checked(own: dict[str, Any], tmp_path: Path) -> None:
    batches, told = loaded(
        wrong_tars(tmp_path, "json"), type("Mine", (DefaultTaskEncoder,), {"decoder": SampleDecoder(**own)})()
    )
    assert (len(batches), told) == (2, {})
    batches, told = loaded(tmp_path, type("Bare", (DefaultTaskEncoder,), {"decoder": None})())
    assert ([type(batch.text[0]) for batch in batches], told) == ([bytes, bytes], {})
