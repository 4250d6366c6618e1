"""The DataModule under `lightning.Trainer`, in one process."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import ConfigError, StateError
from tests.datamodule.lightning_parts import VAL, Recorder, fit, make_trainer, saving
from tests.datamodule.parts import draw, make_module, write_numbers
from tests.prepared import write_blend, write_texts


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("numbers"))


@pytest.fixture(scope="module")
def expected(path: Path) -> list[list[int]]:
    return draw(make_module(path).train_dataloader(), 60)


def test_fit_sees_the_stream(path: Path, expected: list[list[int]], tmp_path: Path) -> None:
    assert fit(make_module(path), make_trainer(tmp_path, max_steps=10)).trained == expected[:10]


@pytest.mark.parametrize(
    ("module_options", "trainer_options"),
    [
        ({}, {"limit_train_batches": 4, "max_epochs": 3}),
        ({}, {"limit_train_batches": 4, "max_epochs": 3, "reload_dataloaders_every_n_epochs": 1}),
        ({"virtual_epoch_length": 4}, {"max_epochs": 3}),
    ],
)
def test_no_batch_is_lost_between_epochs(
    path: Path, expected: list[list[int]], tmp_path: Path, module_options: Any, trainer_options: Any
) -> None:
    recorder = fit(make_module(path, **module_options), make_trainer(tmp_path, **trainer_options))
    assert recorder.trained == expected[:12]


def test_no_batch_is_lost_between_fits(path: Path, expected: list[list[int]], tmp_path: Path) -> None:
    module = make_module(path)
    trainer = make_trainer(tmp_path, max_steps=5)
    first = fit(module, trainer).trained
    assert first == expected[:5]
    assert fit(module, make_trainer(tmp_path, max_steps=4)).trained == expected[5:9]
    trainer.fit_loop.epoch_loop.max_steps = 8
    assert fit(module, trainer).trained == expected[9:12]


@pytest.mark.parametrize("options", [{}, {"virtual_epoch_length": 6}])
def test_every_checkpoint_resumes_at_the_next_batch(
    path: Path, expected: list[list[int]], tmp_path: Path, options: dict[str, int]
) -> None:
    fit(make_module(path, **options), make_trainer(tmp_path, max_steps=10, **saving(tmp_path)))
    for step in (2, 4, 6, 8):
        resumed = make_module(path, **options)
        trainer = make_trainer(tmp_path, max_steps=step + 3, **saving(tmp_path / "resumed"))
        recorder = fit(resumed, trainer, ckpt_path=tmp_path / f"step={step}.ckpt")
        assert recorder.trained == expected[step : step + 3]
        assert resumed.init_global_step == step
        again = make_module(path, **options)
        checkpoint = tmp_path / "resumed" / f"step={step + 2}.ckpt"
        recorder = fit(again, make_trainer(tmp_path, max_steps=step + 4), ckpt_path=checkpoint)
        assert recorder.trained == expected[step + 2 : step + 4]


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


def test_accumulated_micro_batches_are_those_of_a_step(path: Path, expected: list[list[int]], tmp_path: Path) -> None:
    module = make_module(path, global_batch_size=3)
    trainer = make_trainer(tmp_path, max_steps=4, accumulate_grad_batches=3, **saving(tmp_path))
    assert fit(module, trainer).trained == expected[:12]
    resumed = make_module(path, global_batch_size=3)
    trainer = make_trainer(tmp_path, max_steps=4, accumulate_grad_batches=3)
    assert fit(resumed, trainer, ckpt_path=tmp_path / "step=2.ckpt").trained == expected[6:12]
    assert resumed.init_global_step == 2
    with pytest.raises(ConfigError, match=r"means 3 micro-batches.*accumulate_grad_batches=3"):
        fit(make_module(path, global_batch_size=3), make_trainer(tmp_path, max_steps=1))


def test_validation_has_every_sample_once_each_time(path: Path, expected: list[list[int]], tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, max_steps=6, limit_val_batches=1.0, val_check_interval=2, check_val_every_n_epoch=None
    )
    recorder = fit(make_module(path), trainer)
    assert recorder.trained == expected[:6]
    assert recorder.evaluated[0] == VAL[:2], "the sanity check"
    assert recorder.evaluated[1:] == [VAL, VAL, VAL]


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


def test_a_validation_split_that_is_declared_empty_is_passed_over(tmp_path: Path) -> None:
    module = make_module(write_texts(tmp_path / "numbers", 20, ratio="1,0,0"))
    recorder = fit(module, make_trainer(tmp_path, max_steps=4, limit_val_batches=1.0, limit_train_batches=2))
    assert len(recorder.trained) == 4
    assert recorder.evaluated == []


def test_another_blend_is_taken_over_if_the_module_says_so(path: Path, tmp_path: Path) -> None:
    fit(make_module(path), make_trainer(tmp_path, max_steps=4, **saving(tmp_path)))
    blend = write_blend(tmp_path / "blend.yaml", {str(path): 1, str(write_texts(tmp_path / "more", 20)): 1})
    with pytest.raises(StateError, match="strict_restore=False"):
        fit(make_module(blend), make_trainer(tmp_path, max_steps=6), ckpt_path=tmp_path / "step=4.ckpt")
    module = make_module(blend, strict_restore=False)
    assert len(fit(module, make_trainer(tmp_path, max_steps=6), ckpt_path=tmp_path / "step=4.ckpt").trained) == 2


def test_skipped_steps_leave_the_steps_of_the_trainer_consecutive(
    path: Path, expected: list[list[int]], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"global_batch_size": 2, "skip_steps": ["1-2", "5"]}
    wanted = [expected[number] for number in (0, 1, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17)]
    settings = {"accumulate_grad_batches": 2}
    trainer = make_trainer(tmp_path, max_steps=6, **settings, **saving(tmp_path))
    assert fit(make_module(path, **options), trainer).trained == wanted
    for step in (2, 4):
        resumed = make_module(path, **options)
        recorder = fit(
            resumed, make_trainer(tmp_path, max_steps=6, **settings), ckpt_path=tmp_path / f"step={step}.ckpt"
        )
        assert recorder.trained == wanted[2 * step :]
        assert resumed.init_global_step == step
