import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import (
    ConfigError,
    DatasetBuildContext,
    DefaultTaskEncoder,
    EnergonDatasetBuilder,
    EnergonDatasetConfig,
)
from bridge_data.datamodule.bridge import transformers_tokenizer
from recipes.demo.tokenizer import train_tokenizer
from tests.datamodule.parts import NUM_TRAIN, NUM_VAL, draw, make_module, take
from tests.datamodule.test_dataset_config import EncoderSettings
from tests.later import hf


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(["a few words", "0 1 2 3 4 5 6 7 8 9"], folder, 300)
    return folder


def make_config(path: Path, **settings: Any) -> EnergonDatasetConfig:
    chosen = {"seq_length": 16, "micro_batch_size": 1, "num_workers": 0, "task_encoder": DefaultTaskEncoder()}
    config = EnergonDatasetConfig(path=str(path), **{**chosen, **settings})
    config.finalize()
    return config


def build(config: EnergonDatasetConfig, **context: Any) -> tuple[Any, Any, None]:
    known = {"train_samples": 10, "valid_samples": 4, "test_samples": 0, **context}
    return EnergonDatasetBuilder(config).build(DatasetBuildContext(**known))


def test_it_builds_what_the_data_module_gives(path: Path) -> None:
    options = {"shuffle_buffer_size": 8, "max_samples_per_sequence": 4}
    config = make_config(path, **options, dataset_kwargs={"num_lanes": 2, "seed": 5})
    train, validation, test = build(config)
    module = make_module(path, **options, num_lanes=2, seed=5)
    assert draw(train, 20) == draw(module.train_dataloader(), 20)
    assert draw(validation, 5) == draw(module.val_dataloader(), 5)
    assert test is None
    assert iter(train) is train
    assert iter(validation) is validation
    assert train.dataloader.dataset.worker_config.num_workers == 0
    assert build(make_config(path), train_samples=0)[0] is None, "nothing that is not wanted is built"
    assert build(make_config(path), valid_samples=0)[1] is None
    assert build(make_config(path, do_validation=False))[1] is None


def test_a_config_has_the_metrics_of_the_training_loader_that_was_built_from_it(path: Path) -> None:
    config = make_config(path)
    with pytest.raises(ConfigError, match="no training loader has been built"):
        config.metrics()
    train, _, _ = config.build_datasets(DatasetBuildContext(train_samples=10, valid_samples=4))
    draw(train, 3)
    assert config.metrics().samples == train.metrics().samples == 3
    copied = copy.deepcopy(config)
    with pytest.raises(ConfigError, match="no training loader has been built"):
        copied.metrics()


@pytest.mark.parametrize(("drop_last", "expected"), [(True, [5, 5, 5, 5]), (False, [5, 5, 5, 5, 4])])
def test_drop_last_leaves_out_what_is_not_full_in_validation(path: Path, drop_last: bool, expected: list[int]) -> None:
    module = EnergonDatasetBuilder(make_config(path, micro_batch_size=5, drop_last=drop_last)).datamodule(
        DatasetBuildContext(train_samples=1, valid_samples=1)
    )
    assert NUM_VAL == 24
    validation = module.val_dataloader()
    validation.cyclic = False  # type: ignore[union-attr]
    assert [len(numbers) for numbers in take(validation, 9)] == expected  # type: ignore[arg-type]
    assert module.batch_schedule.global_batch_size == 5, "a micro-batch where Bridge says none"


def test_each_evaluation_begins_with_the_first_sample_after_training(path: Path) -> None:
    train, validation, _ = build(make_config(path))
    first = [[NUM_TRAIN], [NUM_TRAIN + 1], [NUM_TRAIN + 2]]
    expected = draw(make_module(path, max_samples_per_sequence=None, shuffle_buffer_size=100).train_dataloader(), 6)
    trained = []
    for _ in range(3):
        trained += draw(train, 2)
        assert draw(validation, 3) == first
    assert trained == expected, "and training goes on as if there had been none"
    assert draw(validation, 1) == [[NUM_TRAIN + 3]], "it cannot know of one that follows another"
    _, validation, _ = build(make_config(path, dataset_kwargs={"eval_batches": 3}))
    assert draw(validation, 6) == 2 * first


def test_without_a_task_encoder_the_run_s_tokenizer_makes_one(path: Path, tokenizer_folder: Path) -> None:
    from megatron.core.tokenizers import MegatronTokenizer

    tokenizer = hf.AutoTokenizer.from_pretrained(tokenizer_folder, local_files_only=True)
    config = make_config(path, task_encoder=None, pad_to_max_length=True, pad_to_multiple_of=8)
    train, _, _ = build(config, tokenizer=tokenizer)
    assert next(train).tokens.shape == (1, 16)
    shorter, _, _ = build(make_config(path, task_encoder=None), tokenizer=tokenizer)
    assert next(shorter).tokens.shape[1] < 16
    with pytest.raises(ConfigError, match="expected a tokenizer of transformers"):
        build(make_config(path, task_encoder=None))
    of_core = MegatronTokenizer.from_pretrained(str(tokenizer_folder), metadata_path={"library": "huggingface"})
    assert transformers_tokenizer(of_core).is_fast

    class Recording(EncoderSettings):
        def build(self, dataset: EnergonDatasetConfig, tokenizer: Any) -> DefaultTaskEncoder[Any, Any, Any, Any]:
            self.asked = (dataset.seq_length, dataset.pad_to_max_length, tokenizer)
            return DefaultTaskEncoder()

    settings = Recording()
    build(make_config(path, task_encoder=settings, pad_to_max_length=True), tokenizer=(own := object()))
    assert settings.asked == (16, True, own)
    with pytest.raises(ConfigError, match=r"pad_to_multiple_of=8\): DefaultTaskEncoder pads to a multiple of 1"):
        build(make_config(path, task_encoder=settings, pad_to_multiple_of=8))


def test_a_saved_state_is_plain_data_as_bridge_s_reader_demands(path: Path, tmp_path: Path) -> None:
    train, _, _ = build(make_config(path))
    draw(train, 3)
    torch.save({"dataloader_state_dict": train.save_state()}, tmp_path / "state.pt")
    expected = draw(train, 3)
    again, _, _ = build(make_config(path))
    again.restore_state(torch.load(tmp_path / "state.pt", weights_only=True)["dataloader_state_dict"])
    assert draw(again, 3) == expected
