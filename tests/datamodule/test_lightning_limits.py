"""Habits of Lightning's users: searches before a run, runs to the end of epochs, fractions. Each ends as it does with
any loader, or is refused before the first step."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, GradientAccumulationScheduler, LearningRateFinder
from lightning.pytorch.tuner import Tuner

from bridge_data import ConfigError, DefaultTaskEncoder, StateError, stateless
from tests.datamodule.lightning_parts import Recorder, fit, keeping, make_trainer
from tests.datamodule.parts import NUM_TRAIN, NUM_VAL, draw, make_module

NUM_TRIED = 6
FINDER = {"num_training_steps": NUM_TRIED, "update_attr": False, "early_stop_threshold": None}


class Tuned(Recorder):
    lr, batch_size = 0.1, 2

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch, batch_idx) + (self.weight - 1) ** 2


class FinderLater(LearningRateFinder):
    """Searches again in the second epoch, as Lightning's documentation shows."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            self.lr_find(trainer, pl_module)


def fit_tuned(module: Any, trainer: Any, **options: Any) -> list[list[int]]:
    model = Tuned()
    trainer.fit(model, datamodule=module, **options)
    return model.trained


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.processes)])
def test_a_search_for_a_learning_rate_takes_nothing_from_the_run(
    path: Path, expected: list[list[int]], tmp_path: Path, num_workers: int
) -> None:
    module = make_module(path, num_workers=num_workers)
    trainer = make_trainer(tmp_path, max_steps=5)
    found = Tuner(trainer).lr_find(Tuned(), datamodule=module, num_training=NUM_TRIED, early_stop_threshold=None)
    assert found is not None and len(found.results["loss"]) == NUM_TRIED
    assert fit_tuned(module, trainer) == expected[:5], "by the Tuner"
    limits = {"max_steps": 8, "limit_train_batches": 4}
    trained = fit_tuned(
        make_module(path, num_workers=num_workers),
        make_trainer(tmp_path, callbacks=[LearningRateFinder(**FINDER)], **limits),
    )
    assert trained == expected[:NUM_TRIED] + expected[:8], "a search over two epochs, then the run"


def test_a_search_in_a_later_epoch_or_a_resumed_run_goes_back_to_where_it_was(
    path: Path, expected: list[list[int]], tmp_path: Path
) -> None:
    limits = {"max_steps": 12, "limit_train_batches": 4}
    trainer = make_trainer(tmp_path, callbacks=[FinderLater(**{**FINDER, "num_training_steps": 3})], **limits)
    trained = fit_tuned(make_module(path), trainer)
    assert trained == expected[:3] + expected[:4] + expected[4:7] + expected[4:12]
    state = make_module(path)
    draw(state.train_dataloader(), 7)
    module = make_module(path)
    module.load_state_dict(json.loads(json.dumps(state.state_dict())))
    finder = LearningRateFinder(**FINDER)
    trained = fit_tuned(module, make_trainer(tmp_path, max_steps=8, callbacks=[finder]))
    assert trained == expected[7:13] + expected[7:15]


def test_a_trainer_that_was_set_back_without_its_data_is_refused(path: Path, tmp_path: Path) -> None:
    module = make_module(path)
    trainer = make_trainer(tmp_path, max_steps=5)
    fit(module, trainer)
    trainer.fit_loop.epoch_loop.batch_progress.reset()
    with pytest.raises(StateError, match="set back by"):
        iter(module.train_dataloader())


@pytest.mark.parametrize("name", ["batch_size", "micro_batch_size"])
def test_a_search_for_a_batch_size_is_refused_before_it_tries_one(path: Path, tmp_path: Path, name: str) -> None:
    model = Tuned()
    with pytest.raises(ConfigError, match="micro_batch_size"):
        Tuner(make_trainer(tmp_path, max_steps=5)).scale_batch_size(
            model, datamodule=make_module(path), batch_arg_name=name
        )
    with pytest.raises(ConfigError, match="micro_batch_size"):
        trainer = make_trainer(tmp_path, max_steps=5, callbacks=[BatchSizeFinder(batch_arg_name=name)])
        trainer.fit(model, datamodule=make_module(path))
    assert not model.trained


def test_steps_of_more_and_more_micro_batches_are_refused_as_states_count_steps(path: Path, tmp_path: Path) -> None:
    model, grows = Tuned(), GradientAccumulationScheduler({0: 1, 1: 4})
    with pytest.raises(ConfigError, match=r"accumulate_grad_batches=.*rampup_batch_size"):
        make_trainer(tmp_path, max_steps=5, callbacks=[grows]).fit(model, datamodule=make_module(path))
    assert not model.trained


class Pairs(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Packs of up to two samples, so that nobody knows how many there are."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[start : start + 2] for start in range(0, len(samples), 2)]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]


@pytest.mark.parametrize(
    ("module_options", "num_batches"),
    [
        ({"micro_batch_size": 8, "num_lanes": 2}, 12),
        ({"task_encoder": Pairs(), "packing_buffer_size": 12, "num_lanes": 2}, 48),
    ],
)
def test_an_epoch_of_data_that_end_is_one_pass_and_is_resumed_within_and_between(
    path: Path, tmp_path: Path, module_options: dict[str, Any], num_batches: int
) -> None:
    every = num_batches // 4

    def run(**options: Any) -> Recorder:
        callbacks = [keeping(tmp_path, every_n_train_steps=every)]
        limits = {"max_epochs": 2, "limit_val_batches": 1.0, "num_sanity_val_steps": 0}
        trainer = make_trainer(tmp_path, callbacks=callbacks, enable_checkpointing=True, **limits)
        return fit(make_module(path, repeat=False, **module_options), trainer, **options)

    whole = run()
    assert len(whole.trained) == 2 * num_batches
    for epoch in (whole.trained[:num_batches], whole.trained[num_batches:]):
        drawn = [number for batch in epoch for number in batch]
        assert len(drawn) == len(set(drawn))
        assert len(drawn) == (NUM_TRAIN if num_batches == 12 else 48)
    assert len(whole.evaluated) == 2
    for done in range(every, 2 * num_batches, every):
        resumed = run(ckpt_path=tmp_path / f"step={done}.ckpt")
        assert resumed.trained == whole.trained[done:], done


EPOCHS = {"virtual_epoch_length": 10}
ENDS = {"repeat": False}
NEVER = {"max_steps": 4}


@pytest.mark.parametrize(
    ("module_options", "trainer_options", "setting"),
    [
        ({}, {"max_epochs": 1}, "max_epochs=1"),
        ({}, {}, "max_epochs=1000"),
        ({}, {"min_epochs": 2}, "virtual_epoch_length=48"),
        *(({}, {"overfit_batches": 0.25, **more}, "overfit_batches=12") for more in (NEVER, {"max_epochs": 2})),
        (ENDS, {"overfit_batches": 0.25, "max_epochs": 2}, "overfit_batches=12"),
        ({"virtual_epoch_length": 13}, {"overfit_batches": 0.1, "max_epochs": 1}, None),
        ({}, {"limit_train_batches": 0.5, **NEVER}, "limit_train_batches=24"),
        (ENDS, {"limit_train_batches": 0.5, "max_epochs": 1}, "limit_train_batches=24"),
        ({}, {"val_check_interval": 0.25, **NEVER}, "val_check_interval=12"),
        (ENDS, {"val_check_interval": 0.25, "max_epochs": 1}, "val_check_interval=12"),
        (ENDS, {"val_check_interval": 49, "max_epochs": 1}, "at most 48"),
    ],
)
def test_what_could_not_end_or_has_no_length_is_refused_with_the_setting_to_use(
    path: Path, tmp_path: Path, module_options: dict[str, Any], trainer_options: dict[str, Any], setting: str | None
) -> None:
    model, module = Recorder(), make_module(path, micro_batch_size=2, **module_options)
    trainer = make_trainer(tmp_path, **{"limit_val_batches": 1.0, **trainer_options})
    if setting is None:
        trainer.fit(model, datamodule=module)
        assert len(model.trained) == 1
        return
    with pytest.raises(ConfigError, match=setting):
        trainer.fit(model, datamodule=module)
    assert not model.trained


@pytest.mark.parametrize(("limit", "num_batches"), [(0, 0), (3, 3), (0.5, NUM_VAL // 2), (1.0, NUM_VAL)])
def test_evaluations_are_limited_by_numbers_and_fractions(
    path: Path, tmp_path: Path, limit: float, num_batches: int
) -> None:
    limits = {"limit_val_batches": limit, "max_epochs": 2, "num_sanity_val_steps": 0}
    model = fit(make_module(path, **EPOCHS), make_trainer(tmp_path, **limits))
    assert [len(batches) for batches in model.evaluated] == [num_batches] * (2 if limit else 0)
    packed = make_module(path, task_encoder=Pairs(), packing_buffer_size=12, **EPOCHS)
    if limit == 0.5:
        with pytest.raises(ConfigError, match=r"limit_val_batches=12"):
            make_trainer(tmp_path, **limits).fit(Recorder(), datamodule=packed)


def test_the_limit_of_megatrons_evaluations_is_refused_where_lightning_has_its_own(path: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, limit_val_batches=1.0, max_steps=2)
    with pytest.raises(ConfigError, match=r"eval_batches=3: .*limit_val_batches=3"):
        trainer.fit(Recorder(), datamodule=make_module(path, eval_batches=3))


def test_a_run_that_would_never_validate_says_so(path: Path, tmp_path: Path) -> None:
    for options in ({}, {"val_check_interval": 2}, {"limit_val_batches": 0}):
        chosen = {"max_steps": 4, "limit_val_batches": 1.0, **options}
        trainer, model = make_trainer(tmp_path, **chosen), Recorder()
        if options:
            fit(make_module(path), trainer)
            continue
        with pytest.warns(UserWarning, match="never validates.*val_check_interval"):
            trainer.fit(model, datamodule=make_module(path))


def test_ranks_whose_epochs_may_end_apart_are_refused(path: Path, tmp_path: Path) -> None:
    groups = SimpleNamespace(dp=SimpleNamespace(rank=lambda: 0, size=lambda: 2))
    module = make_module(path, repeat=False, pg_collection=groups)
    with pytest.raises(ConfigError, match=r"ends='uneven'.*2 ranks"):
        make_trainer(tmp_path, max_epochs=1).fit(Recorder(), datamodule=module)
