"""What Bridge's `ConfigContainer.validate` checks and derives for its own dataset config, it does for ours."""

import copy
import dataclasses
import pickle
from typing import Any

import pytest
from megatron.bridge.data.builders import energon as builders
from megatron.bridge.data.builders.energon import HFEnergonTaskEncoderConfig
from megatron.bridge.data.utils import get_dataset_provider
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.models.transformer_config import _HYBRIDEP_PADDING_FIELDS
from megatron.bridge.training import config as training
from megatron.bridge.training.tokenizers.config import TokenizerConfig
from megatron.bridge.utils.instantiate_utils import InstantiationMode, instantiate
from megatron.core import num_microbatches_calculator

from bridge_data import ConfigError, DefaultTaskEncoder, EnergonDatasetConfig
from bridge_data.datamodule.batch_schedule import megatron_has_ramps
from bridge_data.encoders import FamilyConfig, HFTaskEncoder
from tests.bridge.hf_processors import make_processor
from tests.tiny_models.data import write_conversations

SEQ_LENGTH = 512


def make_dataset(**settings: Any) -> EnergonDatasetConfig:
    encoder = HFEnergonTaskEncoderConfig(hf_processor_path="org/model")
    chosen = {"path": "data", "seq_length": SEQ_LENGTH, "micro_batch_size": 2, "task_encoder": encoder}
    return EnergonDatasetConfig(**{**chosen, **settings})


def validated(
    monkeypatch: pytest.MonkeyPatch,
    dataset: EnergonDatasetConfig | None = None,
    *,
    model: dict[str, Any] | None = None,
    validation: dict[str, Any] | None = None,
    average_in_collective: bool = False,
    **train: Any,
) -> training.ConfigContainer:
    """The configuration of a run on eight ranks, checked by Bridge."""
    monkeypatch.setattr(training, "get_world_size_safe", lambda: 8)
    sizes = {"num_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "apply_rope_fusion": False}
    container = training.ConfigContainer(
        train=training.TrainingConfig(**{"global_batch_size": 16, "micro_batch_size": 2, "train_iters": 10, **train}),
        model=GPTModelProvider(seq_length=SEQ_LENGTH, **sizes, **(model or {})),
        optimizer=training.OptimizerConfig(lr=1e-4, use_distributed_optimizer=False),
        scheduler=training.SchedulerConfig(lr_decay_style="linear", lr_warmup_iters=0),
        dataset=make_dataset() if dataset is None else dataset,
        logger=training.LoggerConfig(),
        tokenizer=TokenizerConfig(),
        checkpoint=training.CheckpointConfig(ckpt_format="torch_dist"),
        dist=training.DistributedInitConfig(),
        ddp=training.DistributedDataParallelConfig(average_in_collective=average_in_collective),
        validation=training.ValidationConfig(**(validation or {})),
    )
    container.validate()
    return container


PARALLEL = {"context_parallel_size": 2, "calculate_per_token_loss": True}


def test_our_config_is_one_of_bridge_s_and_is_built_by_ours() -> None:
    config = make_dataset()
    assert isinstance(config, builders.EnergonDatasetConfig) and isinstance(config, EnergonDatasetConfig)
    assert type(config).__qualname__ == EnergonDatasetConfig.__qualname__
    assert get_dataset_provider(config).__module__ == "bridge_data.datamodule.bridge"
    theirs = builders.EnergonDatasetConfig(
        path="data", seq_length=8, micro_batch_size=1, task_encoder=config.task_encoder
    )
    assert get_dataset_provider(theirs) is builders.energon_train_valid_test_datasets_provider


def test_it_has_every_field_of_bridge_s_with_its_default() -> None:
    ours = {field.name: field for field in dataclasses.fields(EnergonDatasetConfig)}
    for field in dataclasses.fields(builders.EnergonDatasetConfig):
        assert field.name in ours
        if field.name not in {"pad_to_multiple_of", "task_encoder"}:
            assert (ours[field.name].default, ours[field.name].default_factory) == (
                field.default,
                field.default_factory,
            )
    assert make_dataset().pad_to_multiple_of == 128
    assert make_dataset(task_encoder=DefaultTaskEncoder()).pad_to_multiple_of == 1


def test_it_is_copied_pickled_and_replaced() -> None:
    config = make_dataset(num_workers=3)
    for again in (copy.deepcopy(config), pickle.loads(pickle.dumps(config)), dataclasses.replace(config)):
        assert again == config and type(again) is type(config)


def test_a_run_s_yaml_holds_it_and_brings_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    container = validated(monkeypatch, make_dataset(num_workers=3, dataset_kwargs={"seed": 3}))
    told = container.to_dict()["dataset"]
    assert told["_target_"] == "bridge_data.datamodule.bridge.EnergonDatasetConfig"
    again = instantiate(told, mode=InstantiationMode.STRICT)
    again.task_encoder.visual_keys = tuple(again.task_encoder.visual_keys)  # YAML has lists
    assert again == container.dataset


def test_micro_batch_size_is_compared_with_train(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"micro_batch_size must match train.micro_batch_size \(4 != 2\)"):
        validated(monkeypatch, make_dataset(micro_batch_size=4))


def test_micro_batch_size_is_compared_with_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"must match validation.eval_micro_batch_size \(2 != 1\)"):
        validated(monkeypatch, validation={"eval_micro_batch_size": 1, "eval_global_batch_size": 8})
    validated(
        monkeypatch,
        make_dataset(do_validation=False),
        validation={"eval_micro_batch_size": 1, "eval_global_batch_size": 8},
    )


def test_our_own_checks_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="path=None"):
        validated(monkeypatch, make_dataset(path=None))


def test_padding_is_raised_for_context_and_sequence_parallel_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = {**PARALLEL, "tensor_model_parallel_size": 4, "sequence_parallel": True}
    assert validated(monkeypatch, make_dataset(pad_to_multiple_of=3), model=model).dataset.pad_to_multiple_of == 24
    dataset = make_dataset(enable_in_batch_packing=True, defer_in_batch_packing_to_step=True)
    assert validated(monkeypatch, dataset, model=model).dataset.in_batch_packing_pad_to_multiple_of == 8


def test_an_encoder_of_ours_that_does_not_pad_is_refused_under_context_parallelism(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match=r"pad_to_multiple_of=4\): DefaultTaskEncoder .* in the encoder's own config"):
        validated(monkeypatch, make_dataset(task_encoder=DefaultTaskEncoder()), model=PARALLEL)


@dataclasses.dataclass
class PaddingEncoderConfig:
    """Settings of an encoder that pads its samples, and with `to_length` its rows."""

    multiple: int = 1
    to_length: bool = False

    def build(self, dataset: EnergonDatasetConfig, tokenizer: Any) -> HFTaskEncoder:
        config = FamilyConfig(layout="bridge", pad_to_multiple_of=self.multiple, pad_to_max_length=self.to_length)
        return HFTaskEncoder(make_processor("ministral3"), config, seq_length=dataset.seq_length)


@pytest.mark.parametrize("buffer", [None, 8])
@pytest.mark.parametrize("to_length", [False, True])
@pytest.mark.parametrize("multiple", [1, 2, 4, 8])
def test_lengths_that_context_parallel_ranks_cannot_share_are_refused_once_the_encoder_is_made(
    multiple: int, to_length: bool, buffer: int | None, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"path": data, "num_workers": 0, "micro_batch_size": 1, "max_samples_per_sequence": 100}
    encoder = PaddingEncoderConfig(multiple, to_length)
    dataset = make_dataset(**made, task_encoder=encoder, pad_to_max_length=to_length, packing_buffer_size=buffer)
    validated(monkeypatch, dataset, model=PARALLEL, micro_batch_size=1)
    tokenizer = make_processor("ministral3").tokenizer
    if multiple % 4 and (buffer or not to_length):
        with pytest.raises(
            ConfigError, match=rf"pad_to_multiple_of=4\): HFTaskEncoder pads to a multiple of {multiple}"
        ):
            get_dataset_provider(dataset)([8, 0, 0], dataset, tokenizer)
        return
    train, _, _ = get_dataset_provider(dataset)([8, 0, 0], dataset, tokenizer)
    for batch in (next(train) for _ in range(4)):
        bounds = [0, batch["input_ids"].shape[1]] if buffer is None else batch["cu_seqlens_q_padded"].tolist()
        assert not any(bound % 4 for bound in bounds)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_conversations(tmp_path_factory.mktemp("data") / "conversations"))


def test_sequences_that_context_parallel_ranks_cannot_share_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="seq_length must be divisible by the CP/SP collate padding multiple"):
        validated(monkeypatch, make_dataset(seq_length=510), model=PARALLEL)


def test_sequences_of_another_length_than_the_model_s_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="Sequence length in dataset config: 256"):
        validated(monkeypatch, make_dataset(seq_length=256))


def test_context_parallelism_wants_the_loss_per_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="calculate_per_token_loss must be True"):
        validated(monkeypatch, model={"context_parallel_size": 2, "calculate_per_token_loss": False})
    with pytest.raises(AssertionError, match="average_in_collective must be False"):
        validated(monkeypatch, model=PARALLEL, average_in_collective=True)


def test_pipeline_and_expert_parallelism_pad_to_the_full_length(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not validated(monkeypatch).dataset.pad_to_max_length
    model = {"pipeline_model_parallel_size": 2, "pipeline_dtype": "bf16"}
    assert validated(monkeypatch, model=model).dataset.pad_to_max_length


@pytest.mark.skipif(megatron_has_ramps(), reason="this megatron-core follows ramps")
def test_a_ramp_that_megatron_ignores_is_refused_where_the_loader_would_count_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = make_dataset(dataset_kwargs={"skip_steps": ["2-3"], "rampup_batch_size": [8, 8, 64]})
    with pytest.raises(ConfigError, match="rampup_batch_size: this megatron-core ignores it"):
        validated(monkeypatch, dataset, rampup_batch_size=[8, 8, 64])
    before = num_microbatches_calculator._GLOBAL_NUM_MICROBATCHES_CALCULATOR
    monkeypatch.setattr(num_microbatches_calculator, "_GLOBAL_NUM_MICROBATCHES_CALCULATOR", before)
    num_microbatches_calculator.destroy_num_microbatches_calculator()
    num_microbatches_calculator.init_num_microbatches_calculator(0, [8, 8, 64], 16, 2, 1)
    assert num_microbatches_calculator.get_num_microbatches() == 8  # those of 16 samples, not of 8


def test_in_batch_packing_makes_lengths_vary_between_pipeline_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"pipeline_model_parallel_size": 2, "pipeline_dtype": "bf16"}
    assert not validated(monkeypatch, model=model).model.variable_seq_lengths
    assert validated(monkeypatch, make_dataset(enable_in_batch_packing=True), model=model).model.variable_seq_lengths


def test_in_batch_packing_wants_several_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="micro_batch_size should be greater than 1"):
        validated(monkeypatch, make_dataset(enable_in_batch_packing=True, micro_batch_size=1), micro_batch_size=1)


def test_in_batch_packing_makes_experts_take_uneven_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "validate_flex_dispatcher_backend", lambda model: None)  # it asks the GPU's driver
    experts = {
        "num_moe_experts": 2,
        "expert_model_parallel_size": 2,
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep",
    }
    for is_packed in (False, True):
        model = validated(monkeypatch, make_dataset(enable_in_batch_packing=is_packed), model=experts).model
        assert any(getattr(model, name, False) for name in _HYBRIDEP_PADDING_FIELDS) == is_packed
