"""The DataModule under `LightningCLI`: its arguments, their nested settings and its task encoder out of YAML."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.cli import LightningCLI

from bridge_data import (
    ConfigError,
    DefaultTaskEncoder,
    EnergonMultiModalDataModule,
    Memo,
    NoCachePool,
    RayWorkers,
    TextSample,
)
from bridge_data.encoders import (
    ConversationTemplateConfig,
    FamilyConfig,
    ImageLimits,
    ImageToken,
    Llava,
    MultiModalSampleConfig,
    MultiModalTaskEncoder,
)
from bridge_data.encoders.encoder_config import SamplePolicies
from bridge_data.errors import log_exception
from bridge_data.keywords import DataModuleKeywords
from tests.datamodule.lightning_parts import VAL, Recorder
from tests.datamodule.parts import draw, make_module
from tests.encoders.multimodal_parts import image_processor, make_tokenizer

TRAINER = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
TRAINER |= {"enable_checkpointing": False, "max_steps": 4, "num_sanity_val_steps": 0}


class Adding(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Adds to its numbers."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.number = number

    def encode_sample(self, sample: TextSample) -> TextSample:
        return TextSample.derive_from(sample, text=str(int(sample.text) + self.number))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    make_tokenizer().save_pretrained(folder)
    image_processor().save_pretrained(folder)
    return folder


def run(file: Path, data: dict[str, Any], *arguments: str, command: str | None = None) -> LightningCLI:
    file.write_text(yaml.safe_dump({"trainer": {**TRAINER, "default_root_dir": str(file.parent)}, "data": data}))
    given = [*([command] if command else []), "--config", str(file), *arguments]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LightningCLI(Recorder, EnergonMultiModalDataModule, args=given, run=command is not None)


@pytest.mark.processes
def test_a_run_out_of_yaml_is_that_of_the_same_arguments(path: Path, tmp_path: Path) -> None:
    encoder = {"class_path": "tests.datamodule.test_lightning_cli.Adding", "init_args": {"number": 1000}}
    data = {"path": str(path), "task_encoder": encoder, "num_workers": 0, "shuffle_buffer_size": 8, "seed": 3}
    expected = draw(make_module(path, seed=3, num_lanes=2).train_dataloader(), 6)
    overrides = ["--data.num_lanes=2", "--data.task_encoder.number=2000", "--trainer.max_steps=6"]
    ran = run(tmp_path / "run.yaml", data, *overrides, command="fit")
    assert ran.model.trained == [[number + 2000 for number in batch] for batch in expected]

    saved = (tmp_path / "config.yaml").read_text()
    assert "prefetch_factor" not in saved, "what was not given is not written: it stays the default"
    (tmp_path / "again").mkdir()
    again = run(tmp_path / "again" / "run.yaml", yaml.safe_load(saved)["data"], "--trainer.max_steps=6", command="fit")
    assert again.model.trained == ran.model.trained
    (tmp_path / "validated").mkdir()
    validated = run(tmp_path / "validated" / "run.yaml", data, command="validate")
    assert validated.model.evaluated == [[[number + 1000] for [number] in VAL]]


def test_all_further_settings_are_arguments(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path / "run.yaml", {"path": str(path)}, "--help")
    shown = capsys.readouterr().out
    assert [name for name in DataModuleKeywords.__annotations__ if f"--data.{name}" not in shown] == []
    data = {
        "path": str(path),
        "task_encoder": {"class_path": "bridge_data.DefaultTaskEncoder"},
        "cache_pool": {"class_path": "bridge_data.NoCachePool"},
        "memo": {"folder": "/dev/shm/run", "version": "1", "max_bytes": 5},
        "global_error_handler": "bridge_data.errors.log_exception",
        "trusted_modules": ["mine", "yours"],
        "share": "replicate",
        "sample_timeout_s": 2.5,
        "workers": {"pool": "ray", "num_cpus": 2, "resources": {"decoding": 1}},
        "shuffle_over_epochs_multiplier": None,
        "multiple_validation_sets": True,
    }
    options = run(tmp_path / "run.yaml", data, "--data.ends=even").datamodule.options
    assert isinstance(options.loader.cache_pool, NoCachePool)
    assert options.loader.memo == Memo("/dev/shm/run", version="1", max_bytes=5)
    assert (options.loader.sample_timeout_s, options.loader.ends) == (2.5, "even")
    assert options.loader.workers == RayWorkers(num_cpus=2, resources={"decoding": 1})
    assert options.data.shuffle_over_epochs_multiplier is None
    assert options.data.trusted_modules == ["mine", "yours"]
    assert options.worker.global_error_handler is log_exception
    assert options.trainer.multiple_validation_sets


def test_encoders_are_made_of_parts_by_name_and_nested_settings(path: Path, parts: Path, tmp_path: Path) -> None:
    config = {
        "patch_size": 8,
        "image_token": {"token_str": "<image>", "token_id": 3},
        "conversation_template_config": {"system": "a boat", "roles": ["one", "two"]},
        "policies": {"overlong": "skip"},
    }
    expected = MultiModalSampleConfig(
        patch_size=4,
        image_token=ImageToken(token_id=3),
        conversation_template_config=ConversationTemplateConfig(system="a boat", roles=("one", "two")),
        policies=SamplePolicies(overlong="skip", empty_answer="error"),
    )
    overrides = ["patch_size=4", "policies.empty_answer=error"]
    data = {"path": str(path), "tokenizer": str(parts), "image_processor": str(parts), "seq_length": 99}
    module = run(
        tmp_path / "run.yaml",
        {**data, "multimodal_sample_config": config},
        *(f"--data.multimodal_sample_config.{override}" for override in overrides),
    ).datamodule
    assert (module.task_encoder.config, module.task_encoder.seq_length) == (expected, 99)
    assert module.tokenizer.get_vocab() == make_tokenizer().get_vocab()

    encoder = {
        "class_path": "bridge_data.MultiModalTaskEncoder",
        "init_args": {
            "tokenizer": str(parts),
            "image_processor": {"class_path": "transformers.CLIPImageProcessor", "init_args": {"size": 8}},
            "multimodal_sample_config": {"tokens_per_image": 5},
        },
    }
    module = run(tmp_path / "run.yaml", {"path": str(path), "task_encoder": encoder}).datamodule
    assert isinstance(module.task_encoder, MultiModalTaskEncoder)
    assert module.task_encoder.config == MultiModalSampleConfig(tokens_per_image=5)
    assert module.task_encoder.image_processor.size == {"shortest_edge": 8}
    processor = {"class_path": "transformers.CLIPImageProcessor", "init_args": {"crop_size": 16}}
    encoder = {
        "class_path": "bridge_data.encoders.FamilyTaskEncoder",
        "init_args": {
            "tokenizer": str(parts),
            "family": {
                "class_path": "bridge_data.encoders.Llava",
                "init_args": {"image_processor": processor, "patch_size": 8},
            },
            "config": {"images": {"max_pixels": 900}, "policies": {"overlong": "skip"}, "packer": "best_fit"},
        },
    }
    made = run(tmp_path / "run.yaml", {"path": str(path), "task_encoder": encoder}).datamodule.task_encoder
    assert isinstance(made.family, Llava)
    assert made.family.image_processor.crop_size == {"height": 16, "width": 16}
    expected = FamilyConfig(
        images=ImageLimits(max_pixels=900), policies=SamplePolicies(overlong="skip"), packer="best_fit"
    )
    assert made.config == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.prefech_factor=3"], "data.prefech_factor"),
        (["--data.ends=odd"], "Expected a typing.Literal['uneven', 'even']. Got value: odd"),
        (["--data.num_lanes=many"], "data.num_lanes"),
        (["--data.multimodal_sample_config.patch_sise=3"], "'patch_sise' is not accepted"),
        (["--data.multimodal_sample_config.policies.overlong=cut"], "'truncate', 'split', 'skip', 'error'"),
        (["--data.task_encoder=Missing"], "Missing"),
    ],
)
def test_wrong_arguments_are_named(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path / "run.yaml", {"path": str(path)}, *arguments)
    assert message in capsys.readouterr().err


def test_values_that_cannot_be_are_refused_in_our_own_words(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a tokenizer of transformers"):
        run(tmp_path / "run.yaml", {"path": str(path)})
    with pytest.raises(ValueError, match=r"MultiModalSampleConfig\(patch_size=0\): expected at least 1"):
        run(tmp_path / "run.yaml", {"path": str(path)}, "--data.multimodal_sample_config.patch_size=0")
