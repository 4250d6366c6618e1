"""Modules of Bridge with one line changed: the import of its DataModule becomes ours."""

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from megatron.bridge.data.base import DatasetBuildContext
from megatron.bridge.data.builders import energon as builders
from megatron.bridge.diffusion.data.common import diffusion_energon_datamodule as diffusion

from bridge_data import DefaultTaskEncoder, EnergonMultiModalDataModule, WorkerConfig
from tests.datamodule.parts import NUM_TRAIN, draw, write_numbers
from tests.docs.pages import ROOT

THEIRS = "from megatron.bridge.data.energon.base_energon_datamodule import"


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("numbers"))


def changed(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with its import changed."""
    source = inspect.getsource(module)
    assert source.count(THEIRS) == 1
    made = ModuleType(f"changed_{module.__name__.rpartition('.')[2]}")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(compile(source.replace(THEIRS, "from bridge_data import"), module.__file__ or "", "exec"), vars(made))
    return made


def groups_of(rank: int, size: int) -> Any:
    return SimpleNamespace(dp=SimpleNamespace(rank=lambda: rank, size=lambda: size))


def test_bridge_s_builder_runs_on_several_ranks(numbers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = changed(builders, monkeypatch)
    monkeypatch.setattr(module, "build_energon_task_encoder", lambda config: DefaultTaskEncoder())
    config = module.EnergonDatasetConfig(
        path=str(numbers),
        seq_length=8,
        micro_batch_size=2,
        num_workers=0,
        task_encoder=module.HFEnergonTaskEncoderConfig(hf_processor_path="org/model"),
        dataset_kwargs={"virtual_epoch_length": 4},
    )
    seen, evaluated = [], []
    for rank in range(2):
        context = DatasetBuildContext(96, 24, 0, pg_collection=groups_of(rank, 2))
        train, validation, test = module.EnergonDatasetBuilder(config).build(context)
        assert test is None
        seen += draw(train, 4)
        evaluated += draw(validation, 2)
    samples = [number for batch in seen for number in batch]
    assert len({*samples}) == len(samples) == 16 and max(samples) < NUM_TRAIN
    assert sorted(number for batch in evaluated for number in batch) == [*range(NUM_TRAIN, NUM_TRAIN + 8)]


@pytest.mark.parametrize("use_train_split_for_val", [True, False])
def test_bridge_s_data_module_of_diffusion_derives_from_ours(
    numbers: Path, monkeypatch: pytest.MonkeyPatch, use_train_split_for_val: bool
) -> None:
    """It sets the global batch size and the process groups after `__init__`, and makes its data sets itself."""
    module = changed(diffusion, monkeypatch).DiffusionDataModule(
        path=str(numbers),
        num_workers=0,
        micro_batch_size=2,
        task_encoder=DefaultTaskEncoder(),
        use_train_split_for_val=use_train_split_for_val,
    )
    assert isinstance(module, EnergonMultiModalDataModule)
    module.pg_collection = groups_of(1, 2)
    assert module.num_micro_batches(WorkerConfig(rank=1, world_size=2, num_workers=0)) == 2
    train, validation = module.train_dataloader(), module.val_dataloader()
    assert (train is validation) == use_train_split_for_val
    trained, validated = draw(train, 4), draw(validation, 4)
    assert max(map(max, trained)) < NUM_TRAIN
    assert (min(map(min, validated)) >= NUM_TRAIN) == (not use_train_split_for_val)


@pytest.mark.parametrize("page", ["README.md", "docs/migration.md"])
def test_the_imports_that_pages_change_are_bridge_s(page: str) -> None:
    lines = re.findall(r"^-(from megatron\.bridge.* import .*)$", (ROOT / page).read_text(), re.MULTILINE)
    assert lines
    for line in lines:
        exec(line, {})
