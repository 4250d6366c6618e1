"""A format of another package, found by its entry point, is read like ours: no line here is changed for it."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from bridge_data.errors import ConfigError
from bridge_data.plan import load_plan
from bridge_data.plan.formats import find_format
from bridge_data.runs.named_samples import find_sample
from tests.plan.numbered_texts import PER_FOLDER, NumberedTexts
from tests.prepared import write_texts

SIZE = 250
ENTRY_POINTS = """
[bridge_data.formats]
.numbered = tests.plan.numbered_texts:NumberedTexts
any folder = tests.plan.numbered_texts:NumberedTexts
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of such data, on a machine where the package that reads it is installed."""
    installed = tmp_path / "site" / "numbered_texts-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: numbered-texts\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(installed.parent))
    importlib.invalidate_caches()
    return written(tmp_path / "texts.numbered")


def written(folder: Path) -> Path:
    for number in range(SIZE):
        path = folder / str(number // PER_FOLDER) / f"{number % PER_FOLDER}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text {number}")
    return folder


@stateless
def cook(sample: CrudeSample) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=sample["txt"])


class Texts(DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(cook),)


def loader(path: Path, num_workers: int) -> Any:
    options: dict[str, Any] = {"batch_size": 5, "shuffle_buffer_size": 20, "max_samples_per_sequence": 25}
    config = WorkerConfig(0, 1, num_workers)
    return get_savable_loader(get_train_dataset(path, worker_config=config, task_encoder=Texts(), **options))


def texts_of(batches: Any, count: int) -> list[str]:
    return [text for _, batch in zip(range(count), batches, strict=False) for text in batch.text]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_over_it_goes_on_where_it_was_saved(data: Path, num_workers: int) -> None:
    before = loader(data, num_workers)
    first = iter(before)
    texts_of(first, 20)
    state = before.save_state_rank()
    expected = texts_of(first, 40)
    again = loader(data, num_workers)
    again.restore_state_rank(state)
    assert texts_of(again, 40) == expected
    assert {*texts_of(loader(data, 0), 2 * SIZE // 5)} == {f"text {number}" for number in range(SIZE)}


def test_it_is_one_of_a_blend_and_its_samples_are_found_by_their_keys(data: Path, tmp_path: Path) -> None:
    write_texts(tmp_path / "tars", 40)
    blend = tmp_path / "blend.yaml"
    blend.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        "    - {path: texts.numbered, weight: 3, subset: {range: [10%, 90%]}}\n    - {path: tars, weight: 1}\n"
    )
    plan = load_plan(blend)
    assert [source.num_samples for source in plan.sources] == [SIZE * 8 // 10, 40]
    (found,) = find_sample([plan.sources[0].records], "1/7")
    assert (found.index, found.key) == (107 - SIZE // 10, "7")


def test_what_it_does_not_say_is_refused_with_the_path(data: Path) -> None:
    with pytest.raises(ConfigError, match=r"texts\.numbered: where: is for prepared data sets"):
        load_plan(data, where="bytes > 5")
    with pytest.raises(ConfigError, match=r"texts\.numbered: has no digests to verify"):
        get_train_dataset(
            data, worker_config=WorkerConfig(0, 1, 0), batch_size=1, shuffle_buffer_size=None,
            max_samples_per_sequence=None, verify_digests=True,
        )  # fmt: skip


def test_a_folder_of_any_name_may_hold_it(data: Path, tmp_path: Path) -> None:
    assert isinstance(find_format(str(written(tmp_path / "other"))), NumberedTexts)
    assert find_format(str(tmp_path / "site")) is None
