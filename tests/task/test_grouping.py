import itertools
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

from bridge_data import (
    ConfigError,
    DefaultTaskEncoder,
    TextSample,
    get_loader,
    group_by,
    homogeneous_concat_mix,
    shape_of,
    source_of,
    subflavor,
    type_of,
)
from tests.prepared import train_dataset, write_blend, write_texts


def sample(**provenance: Any) -> TextSample:
    return TextSample(__key__="a", text="b", **provenance)


def test_keys_of_samples() -> None:
    assert source_of(sample(__restore_key__=("photos", 0, 3, 0))) == "photos"
    assert source_of(sample(__restore_key__=("pack", ("photos", 0, 3, 0), ("texts", 0, 1, 0)))) == "photos"
    assert source_of({"__restore_key__": ("photos", 0, 3, 0)}) == "photos"
    assert type_of(sample()) == "TextSample"
    assert subflavor("task")(sample(__subflavors__={"task": "ocr"})) == "ocr"
    assert subflavor("task")(sample()) is None
    assert shape_of("image")({"image": torch.ones(3, 4)}) == (3, 4)


def test_groups_have_the_batch_sizes_given() -> None:
    by_task = group_by(subflavor("task"), batch_sizes={"ocr": 8})
    assert by_task(sample(__subflavors__={"task": "ocr"})) == ("ocr", 8)
    assert by_task(sample()) == (None, None)
    assert group_by(type_of, subflavor("task"))(sample()) == (("TextSample", None), None)
    assert cloudpickle.loads(cloudpickle.dumps(by_task))(sample()) == (None, None)


def test_wrong_keys_are_errors() -> None:
    with pytest.raises(ConfigError, match="at least one function"):
        group_by()
    with pytest.raises(ConfigError, match="a TextSample has no source"):
        source_of(sample())
    with pytest.raises(ConfigError, match=r"\['a'\] cannot be the key"):
        group_by(subflavor("task"))(sample(__subflavors__={"task": ["a"]}))


class Homogeneous(DefaultTaskEncoder[Any, Any, Any, Any]):
    batch_group_criterion = group_by(source_of)


class BySize(DefaultTaskEncoder[Any, Any, Any, Any]):
    batch_group_criterion = group_by(subflavor("origin"), batch_sizes={"a": 4, "b": 2})


@pytest.fixture(scope="module")
def blend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "a", 60, lambda number: f"a{number}")
    write_texts(folder / "b", 60, lambda number: f"b{number}")
    return write_blend(folder / "blend.yaml", {"a": 1, "b": 1})


def batches(blend: Path, encoder: Any, batch_size: int | None) -> list[list[str]]:
    dataset = train_dataset(blend, batch_size=batch_size, task_encoder=encoder)
    return [batch.text for batch in itertools.islice(get_loader(dataset), 20)]


def test_batches_mix_sources_unless_a_criterion_keeps_them_apart(blend: Path) -> None:
    mixed = batches(blend, DefaultTaskEncoder(), 4)
    assert any(len({text[0] for text in batch}) == 2 for batch in mixed)
    apart = batches(blend, Homogeneous(), 4)
    assert {tuple({text[0] for text in batch}) for batch in apart} == {("a",), ("b",)}


def test_the_criterion_alone_may_say_the_batch_sizes(blend: Path) -> None:
    assert {(batch[0][0], len(batch)) for batch in batches(blend, BySize(), None)} == {("a", 4), ("b", 2)}


class NoSize(DefaultTaskEncoder[Any, Any, Any, Any]):
    answer: Any = ("all", None)

    def batch_group_criterion(self, sample: Any) -> Any:
        return self.answer


class Changing(DefaultTaskEncoder[Any, Any, Any, Any]):
    def batch_group_criterion(self, sample: Any) -> Any:
        return "all", 3 + len(sample.text)


@pytest.mark.parametrize(
    ("encoder", "answer", "message"),
    [
        (NoSize, ("all", None), "batch_size is None, and batch_group_criterion of NoSize has no batch size for group"),
        (NoSize, "all", r"returned 'all'; expected a pair"),
        (NoSize, ("all", 0), "the batch size 0; expected 1 or more"),
        (NoSize, (object(), None), r"returned the key <object object at 0x.*cannot be saved; return numbers"),
        (Changing, None, "gave group 'all' the batch size .*, and before .*; a group has one batch size"),
    ],
)
def test_wrong_answers_of_a_criterion_stop_the_run(blend: Path, encoder: type, answer: Any, message: str) -> None:
    made = encoder()
    made.answer = answer
    with pytest.raises(ConfigError, match=message):
        batches(blend, made, None)


def test_batches_of_one_type_are_joined() -> None:
    joined = homogeneous_concat_mix([{"ids": torch.ones(1, 2)}, {"ids": torch.ones(2, 3)}])
    assert joined["ids"].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]
    with pytest.raises(ConfigError, match=r"got TextSample, dict; expected batches of one type"):
        homogeneous_concat_mix([sample(), {}])
