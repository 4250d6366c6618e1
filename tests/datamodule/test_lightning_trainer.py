"""What the settings of `lightning.Trainer` do to the data: intervals, limits, epochs; and resuming with each."""

import contextlib
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import OnExceptionCheckpoint

from bridge_data import ConfigError, StateError
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.datamodule.lightning_trainer import DataEpoch, check_trainer, num_overfitted
from bridge_data.plan import EmptySplitError
from tests.datamodule.lightning_parts import VAL, Recorder, fit, keeping, make_trainer, saving
from tests.datamodule.parts import draw, make_module, numbers
from tests.prepared import write_texts

NUM_STEPS = 14


class Keeping(OnExceptionCheckpoint):
    """Keeps its checkpoint, which Lightning's own removes."""

    def teardown(self, *_: Any, **__: Any) -> None:
        """Nothing."""


EACH_INTERVAL = {"check_val_every_n_epoch": None}
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any], int, int]] = {
    # settings of the DataModule and of the Trainer, evaluations, their batches
    "an interval in batches": ({}, {"val_check_interval": 4, **EACH_INTERVAL}, 3, 24),
    "an interval in batches, of epochs": ({}, {"limit_train_batches": 6, "val_check_interval": 3}, 4, 24),
    "an interval that is no part of the epoch": (
        {"virtual_epoch_length": 6},
        {"val_check_interval": 4, **EACH_INTERVAL},
        3,
        24,
    ),
    "a fraction of limited epochs": ({"virtual_epoch_length": 12}, {"val_check_interval": 0.5}, 2, 24),
    "a fraction of a fraction": (
        {"virtual_epoch_length": 12},
        {"limit_train_batches": 0.5, "val_check_interval": 0.5},
        4,
        24,
    ),
    "every second epoch": ({"virtual_epoch_length": 3}, {"check_val_every_n_epoch": 2}, 2, 24),
    "some batches of validation": ({"virtual_epoch_length": 6}, {"limit_val_batches": 5}, 2, 5),
    "loaders asked for again": (
        {"virtual_epoch_length": 4},
        {"reload_dataloaders_every_n_epochs": 2, "limit_val_batches": 3},
        3,
        3,
    ),
    "a sanity check of everything": (
        {"virtual_epoch_length": 6},
        {"num_sanity_val_steps": -1, "limit_val_batches": 7},
        2,
        7,
    ),
    "accumulated gradients": (
        {"global_batch_size": 2, "virtual_epoch_length": 4},
        {"accumulate_grad_batches": 2, "val_check_interval": 0.5},
        7,
        24,
    ),
}


@pytest.mark.seconds
@pytest.mark.parametrize("run", RUNS)
def test_training_and_validation_go_on_from_every_checkpoint(
    path: Path, expected: list[list[int]], tmp_path: Path, run: str
) -> None:
    """Checkpoints of steps, of the ends of validations and of the ends of epochs."""
    module_options, trainer_options, num_evaluations, num_val_batches = RUNS[run]
    per_step = trainer_options.get("accumulate_grad_batches", 1)
    options = {"num_sanity_val_steps": 0, "limit_val_batches": 1.0, "max_steps": NUM_STEPS // per_step}
    options |= trainer_options
    num_sanity = int(options["num_sanity_val_steps"] != 0)
    steps, ends = tmp_path / "steps", tmp_path / "ends"
    callbacks = [keeping(steps, every_n_train_steps=3), keeping(ends, every_n_epochs=1)]
    whole = fit(
        make_module(path, **module_options),
        make_trainer(tmp_path, callbacks=callbacks, enable_checkpointing=True, **options),
    )
    assert whole.trained == expected[:NUM_STEPS]
    assert whole.evaluated[num_sanity:] == [VAL[:num_val_batches]] * num_evaluations
    assert len(whole.evaluated) == num_evaluations + num_sanity

    checkpoints = [*steps.glob("*.ckpt"), *ends.glob("*.ckpt")]
    assert len(checkpoints) > NUM_STEPS // per_step // 3
    for checkpoint in checkpoints:
        done = int(checkpoint.stem.removeprefix("step=")) * per_step
        resumed = fit(make_module(path, **module_options), make_trainer(tmp_path, **options), ckpt_path=checkpoint)
        assert resumed.trained == expected[done:NUM_STEPS], checkpoint
        assert all(batches == VAL[:num_val_batches] for batches in resumed.evaluated), checkpoint


@pytest.mark.parametrize("failing_at", [1, 2, 5, 6, 7])
def test_a_checkpoint_on_failure_resumes_with_whole_steps_and_epochs(
    path: Path, expected: list[list[int]], tmp_path: Path, failing_at: int
) -> None:
    """Epochs of 6 batches, steps of 2."""

    class Stepping(Recorder):
        seen: list[tuple[int, int, list[int]]]

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if len(self.seen) == failing_at:
                raise RuntimeError("out of memory")
            self.seen.append((self.current_epoch, self.global_step, numbers(batch)))
            return super().training_step(batch, batch_idx)

    def run(**options: Any) -> Stepping:
        model = Stepping()
        model.seen = [] if not options else [(-1, -1, [])] * 100  # resumed: it fails no more
        callbacks = [Keeping(tmp_path, "failed")]
        steps = {"max_steps": 8, "limit_train_batches": 6, "accumulate_grad_batches": 2}
        trainer = make_trainer(tmp_path, callbacks=callbacks, enable_checkpointing=True, **steps)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(model, datamodule=make_module(path, global_batch_size=2), **options)
        return model

    with pytest.raises(RuntimeError, match="out of memory"):
        run()
    resumed = run(ckpt_path=tmp_path / "failed.ckpt").seen[100:]
    done = failing_at // 2
    assert resumed == [(step // 3, step, batch) for step in range(done, 8) for batch in expected[2 * step :][:2]]


def test_steps_stay_whole_after_resumes_within_the_first_step_of_an_epoch(
    path: Path, expected: list[list[int]], tmp_path: Path
) -> None:
    """Lightning's own totals fall behind then: of a second epoch it counts as if the first one was still to end."""

    class Failing(Recorder):
        def __init__(self, failing_at: int) -> None:
            super().__init__()
            self.failing_at, self.steps = failing_at, []

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if len(self.trained) == self.failing_at:
                raise RuntimeError("out of memory")
            self.steps.append((self.global_step, batch_idx))
            return super().training_step(batch, batch_idx)

    for failing_at, done in ((5, 0), (1, 4), (2, 4), (99, 4)):
        recorder = Failing(failing_at)
        callbacks = [keeping(tmp_path, every_n_train_steps=2, save_on_train_epoch_end=True, save_last=True)]
        trainer = make_trainer(
            tmp_path,
            callbacks=callbacks,
            enable_checkpointing=True,
            max_epochs=3,
            accumulate_grad_batches=2,
            limit_train_batches=4,
            **{"limit_val_batches": 1, "num_sanity_val_steps": 0, "val_check_interval": 3, **EACH_INTERVAL},
        )
        with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
            warnings.simplefilter("ignore")
            trainer.fit(
                recorder,
                datamodule=make_module(path, global_batch_size=2),
                ckpt_path=tmp_path / "last.ckpt" if done else None,
            )
        number = len(recorder.trained)
        assert recorder.trained == expected[done : done + number]
        assert recorder.steps == [((done + at) // 2, (done + at) % 4) for at in range(number)]
    assert done + number == 12


def test_lightning_is_not_told_that_the_data_cannot_be_resumed(path: Path, tmp_path: Path) -> None:
    options = {"limit_train_batches": 4}
    callbacks = [keeping(tmp_path, every_n_train_steps=2)]
    fit(
        make_module(path),
        make_trainer(tmp_path, max_steps=4, callbacks=callbacks, enable_checkpointing=True, **options),
    )
    trainer = make_trainer(tmp_path, max_steps=3, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(Recorder(), datamodule=make_module(path), ckpt_path=tmp_path / "step=2.ckpt")
    assert not [warning for warning in caught if "resum" in str(warning.message)]
    checkpoint = torch.load(tmp_path / "step=2.ckpt", weights_only=True)
    assert checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] == [{}], "the state is there once"


# ----- several validation sets ----------------------------------------------------------------------------------------


def test_several_validation_sets_are_evaluated_each_by_itself(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 100)):
        write_texts(tmp_path / name, 6, lambda number, first=first: str(first + number), ratio="1,1,0", per_shard=3)
    lines = ["__module__: megatron.energon", "__class__: MetadatasetV2", "splits:"]
    for split in ("train", "val"):
        lines += [f"  {split}:", "    blend:", "      - {path: a}", "      - {path: b}"]
    file = tmp_path / "sets.yaml"
    file.write_text("\n".join(lines))

    class Naming(Recorder):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            super().validation_step(batch, batch_idx, dataloader_idx)
            self.log("loss", float(batch.text[0]), batch_size=1)

    a, b = [[3], [4], [5]], [[103], [104], [105]]
    module = make_module(file, multiple_validation_sets=True)
    trainer = make_trainer(tmp_path, max_steps=4, limit_val_batches=1.0, val_check_interval=2, **EACH_INTERVAL)
    recorder = Naming()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(recorder, datamodule=module)
        assert recorder.evaluated == [[*a[:2], *b[:2]], [*a, *b], [*a, *b]]
        losses = trainer.validate(recorder, datamodule=module, verbose=False)
        assert recorder.evaluated[-1] == [*a, *b]
        limited = make_trainer(tmp_path, limit_val_batches=2)
        limited.validate(recorder, datamodule=module, verbose=False)
    assert losses == [{"loss/dataloader_idx_0": 4.0}, {"loss/dataloader_idx_1": 104.0}]
    assert recorder.evaluated[-1] == [*a[:2], *b[:2]]
    assert module.val_names == ["a/val", "b/val"]
    assert make_module(file).val_names == ["validation"]
    both = make_module(file, micro_batch_size=6, global_batch_size=6).val_dataloader()
    assert draw(both, 1) == [[number for (number,) in (*a, *b)]], "one after the other"


# ----- validate, test, predict ----------------------------------------------------------------------------------------


def test_validating_a_checkpoint_leaves_the_position_of_training(
    path: Path, expected: list[list[int]], tmp_path: Path
) -> None:
    callbacks = [keeping(tmp_path, every_n_train_steps=2)]
    module = make_module(path)
    fit(module, make_trainer(tmp_path, max_steps=4, callbacks=callbacks, enable_checkpointing=True))
    fresh = make_module(path)
    for validated, then in ((module, expected[4:6]), (fresh, expected[:2])):
        recorder, trainer = Recorder(), make_trainer(tmp_path, limit_val_batches=1.0)
        trainer.validate(recorder, datamodule=validated, ckpt_path=tmp_path / "step=2.ckpt", verbose=False)
        assert recorder.evaluated == [VAL]
        assert fit(validated, make_trainer(tmp_path, max_steps=2)).trained == then


# ----- limits and lengths of epochs and steps ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overfit_batches", "module_options", "batches"),
    [(3, {}, 3), (20, {"virtual_epoch_length": 5, "num_lanes": 7}, 5)],
)
def test_overfitting_takes_the_same_first_batches_every_epoch(
    path: Path, tmp_path: Path, overfit_batches: Any, module_options: dict[str, int], batches: int
) -> None:
    first = draw(make_module(path, **module_options).train_dataloader(), batches)
    options = {"overfit_batches": overfit_batches, "max_epochs": 3}
    callbacks = [keeping(tmp_path, every_n_train_steps=batches + 1)]
    recorder = fit(
        make_module(path, **module_options),
        make_trainer(tmp_path, callbacks=callbacks, enable_checkpointing=True, **options),
    )
    assert recorder.trained == first * 3
    checkpoint = tmp_path / f"step={batches + 1}.ckpt"
    resumed = fit(make_module(path, **module_options), make_trainer(tmp_path, **options), ckpt_path=checkpoint)
    assert resumed.trained == first[1:] + first
    limits = [num_overfitted(SimpleNamespace(overfit_batches=limit), 8) for limit in (0, 3, 9, 0.5, 1.0)]
    assert limits == [None, 3, 8, 4, 8], "as Lightning limits epochs of 8 batches"


def test_fast_dev_run_is_one_batch_of_each(path: Path, expected: list[list[int]], tmp_path: Path) -> None:
    module = make_module(path, global_batch_size=2)
    trainer = make_trainer(tmp_path, limit_val_batches=1.0, accumulate_grad_batches=2, fast_dev_run=True)
    recorder = Recorder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "an epoch of 1 batches")
        trainer.fit(recorder, datamodule=module)
    assert (recorder.trained, recorder.evaluated) == (expected[:1], [VAL[:1]])


def test_a_step_is_what_the_trainer_accumulates(path: Path, expected: list[list[int]], tmp_path: Path) -> None:
    module = make_module(path)
    assert fit(module, make_trainer(tmp_path, max_steps=3, accumulate_grad_batches=2)).trained == expected[:6]
    assert module.batch_schedule.global_batch_size == 2
    with pytest.raises(ConfigError, match=r"means 3 micro-batches.*accumulate_grad_batches=3"):
        fit(make_module(path, global_batch_size=3), make_trainer(tmp_path, max_steps=1))


def test_an_epoch_that_ends_within_a_step_is_warned_of(path: Path, tmp_path: Path) -> None:
    for module_options, limit in (({}, 5), ({"virtual_epoch_length": 5}, 1.0), ({"virtual_epoch_length": 10}, 0.5)):
        module = make_module(path, global_batch_size=2, **module_options)
        trainer = make_trainer(tmp_path, max_steps=1, accumulate_grad_batches=2, limit_train_batches=limit)
        with pytest.warns(UserWarning, match="an epoch of 5 batches .* ends within a step of 2 micro-batches"):
            trainer.fit(Recorder(), datamodule=module)


def test_an_overfitting_loader_is_not_used_for_anything_else(path: Path, tmp_path: Path) -> None:
    module = make_module(path)
    fit(module, make_trainer(tmp_path, overfit_batches=2, max_epochs=1))
    for options in ({}, {"overfit_batches": 3}):
        with pytest.raises(ConfigError, match=r"was made to repeat 2; make another DataModule"):
            fit(module, make_trainer(tmp_path, max_steps=2, **options))


def test_testing_takes_the_test_part_in_order_and_predicting_needs_a_loader(path: Path, tmp_path: Path) -> None:
    module = make_module(write_texts(tmp_path / "numbers", 20, per_shard=5, ratio="2,1,1"))
    recorder, trainer = Recorder(), make_trainer(tmp_path)
    for _ in range(2):
        trainer.test(recorder, datamodule=module, verbose=False)
    make_trainer(tmp_path, limit_test_batches=2).test(recorder, datamodule=module, verbose=False)
    test = [[15], [16], [17], [18], [19]]
    assert recorder.evaluated == [test, test, test[:2]]
    with pytest.raises(EmptySplitError, match="'test' is declared and has no samples"):
        trainer.test(recorder, datamodule=make_module(path), verbose=False)
    with pytest.raises(ConfigError, match=r"trainer.predict\(model, dataloaders=get_loader"):
        trainer.predict(recorder, datamodule=module)


@pytest.mark.parametrize(
    ("limit", "virtual_epoch_length", "is_refused"),
    [
        (1.0, 0, False),
        (6, 0, False),
        (1.0, 5, False),
        (4, 5, False),
        (7, 5, False),
        (0.5, 8, False),
        (5, 0, True),
        (3, 5, True),
        (0.6, 5, True),
    ],
)
def test_balanced_epochs_are_of_whole_steps_or_of_the_loader(
    tmp_path: Path, limit: float, virtual_epoch_length: int, is_refused: bool
) -> None:
    """Of a trainer with steps of two micro-batches."""
    trainer = make_trainer(tmp_path, accumulate_grad_batches=2, max_steps=4, limit_train_batches=limit)
    epoch = DataEpoch(length=virtual_epoch_length or None, is_pass=False, num_batches=8)
    refused = pytest.raises(ConfigError, match=f"limit_train_batches={limit} .* step of 2")
    with refused if is_refused else contextlib.nullcontext():
        check_trainer(trainer, BatchSchedule(2, 1), 2, epoch, balanced=True)


# ----- several fits, checkpoints of others, skipped steps -------------------------------------------------------------


def test_no_batch_is_lost_between_fits(path: Path, expected: list[list[int]], tmp_path: Path) -> None:
    module = make_module(path)
    trainer = make_trainer(tmp_path, max_steps=5)
    first = fit(module, trainer).trained
    assert first == expected[:5]
    assert fit(module, make_trainer(tmp_path, max_steps=4)).trained == expected[5:9]
    trainer.fit_loop.epoch_loop.max_steps = 8
    assert fit(module, trainer).trained == expected[9:12]


@pytest.mark.processes
def test_workers_that_are_far_ahead_change_nothing(path: Path, expected: list[list[int]], tmp_path: Path) -> None:
    options = {"num_workers": 1, "prefetch_factor": 4}
    for steps, checkpoint in ((7, None), (12, tmp_path / "step=6.ckpt")):
        module = make_module(path, **options)
        loader = module.train_dataloader()
        assert loader.dataloader.wait_for_workers()
        recorder = fit(module, make_trainer(tmp_path, max_steps=steps, **saving(tmp_path)), ckpt_path=checkpoint)
        loader.close()
        assert recorder.trained == (expected[:7] if checkpoint is None else expected[6:12])


def test_validation_alone_starts_no_training_data(path: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    module = make_module(path)
    make_trainer(tmp_path, limit_val_batches=1.0).validate(recorder, datamodule=module, verbose=False)
    assert recorder.evaluated == [VAL]
    assert module.train_dataloader_object is None


def test_a_checkpoint_without_the_data_is_an_error_and_no_fresh_start(path: Path, tmp_path: Path) -> None:
    fit(make_module(path), make_trainer(tmp_path, max_steps=2, **saving(tmp_path)))
    checkpoint = torch.load(tmp_path / "step=2.ckpt", weights_only=True)
    del checkpoint["EnergonMultiModalDataModule"]
    torch.save(checkpoint, tmp_path / "bare.ckpt")
    with pytest.raises(StateError, match="has no state of the data under 'EnergonMultiModalDataModule'"):
        fit(make_module(path), make_trainer(tmp_path, max_steps=4), ckpt_path=tmp_path / "bare.ckpt")
