"""Bridge's DataModule, task encoders and forward step, over data that this package reads."""

import importlib
import inspect
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset as wds
from megatron.bridge.data.base import DatasetBuildContext
from megatron.bridge.data.builders import energon as builders
from megatron.bridge.data.energon import base_energon_datamodule as theirs
from megatron.bridge.data.energon.hf_task_encoder import HFTaskEncoder
from megatron.bridge.data.energon.prepare import prepare_webdataset
from megatron.bridge.data.energon.task_encoder_utils import ChatMLSample
from megatron.bridge.data.utils import get_dataset_provider
from megatron.bridge.diffusion.data.flux.flux_energon_datamodule import FluxDatasetConfig
from megatron.bridge.diffusion.data.flux.flux_taskencoder import FluxTaskEncoder
from megatron.bridge.diffusion.data.wan.wan_energon_datamodule import WanDatasetConfig
from megatron.bridge.diffusion.data.wan.wan_taskencoder import WanTaskEncoder
from megatron.bridge.training.utils.visual_inputs import GenericVisualInputs
from megatron.bridge.training.vlm_step import get_batch_from_iterator
from megatron.core import parallel_state
from megatron.core.rerun_state_machine import RerunDataIterator

from bridge_data import (
    DefaultTaskEncoder,
    EnergonDataloader,
    EnergonDatasetBuilder,
    EnergonDatasetConfig,
    EnergonMultiModalDataModule,
    SampleDecoder,
)
from tests.datamodule.parts import NUM_TRAIN, draw, make_module, write_numbers
from tests.peer.media import picture
from tests.prepared import CRUDE, write_dataset

MODULES = [
    "data.builders.energon",
    "data.energon.base_energon_datamodule",
    "data.energon.hf_task_encoder",
    "data.energon.metadata",
    "data.energon.nemotron_omni_task_encoder",
    "data.energon.prepare",
    "data.energon.task_encoder_utils",
    "data.loaders",
    "data.utils",
    "diffusion.data.common.diffusion_energon_datamodule",
    "diffusion.data.common.diffusion_sample",
    "diffusion.data.common.diffusion_task_encoder_with_sp",
    "diffusion.data.flux.flux_energon_datamodule",
    "diffusion.data.flux.flux_taskencoder",
    "diffusion.data.wan.wan_energon_datamodule",
    "diffusion.data.wan.wan_taskencoder",
    "models.qwen_vl.data.energon",
    "recipes.qwen_vl",
    "training.checkpointing",
    "training.config",
    "training.setup",
    "training.train",
    "training.vlm_step",
]

OPTIONS: dict[str, Any] = {"num_workers": 0, "shuffle_buffer_size": 8}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("numbers"))


@pytest.mark.parametrize("module", MODULES)
def test_everything_of_bridge_that_touches_the_data_is_imported_on_a_cpu(module: str) -> None:
    importlib.import_module(f"megatron.bridge.{module}")


# ----- the DataModule -------------------------------------------------------------------------------------------------


def test_bridge_s_data_module_trains_on_what_ours_trains_on_and_resumes(numbers: Path) -> None:
    def make() -> Any:
        return theirs.EnergonMultiModalDataModule(str(numbers), None, task_encoder=DefaultTaskEncoder(), **OPTIONS)

    loader = make().train_dataloader()
    expected = draw(make_module(numbers, num_lanes=1).train_dataloader(), 40)  # one a worker, as in Energon
    assert draw(loader, 20) == expected[:20]
    state = loader.save_state()
    again = make().train_dataloader()
    again.restore_state(state)
    assert draw(again, 20) == expected[20:]


def test_ours_takes_every_keyword_of_bridge_s_and_the_positions_of_its_documentation(numbers: Path) -> None:
    parameters = inspect.signature(theirs.EnergonMultiModalDataModule).parameters
    own = inspect.signature(EnergonMultiModalDataModule).parameters
    assert parameters.keys() - {"kwargs"} <= own.keys()
    given = {"path": str(numbers), "tokenizer": None, "task_encoder": DefaultTaskEncoder()}
    defaults = {
        name: parameter.default
        for name, parameter in parameters.items()
        if name not in given and parameter.default is not parameter.empty
    }
    module = EnergonMultiModalDataModule(**given, **{**defaults, "num_workers": 0})
    train, validation = module.build()
    assert len(draw(train, 2)) == len(draw(validation, 2)) == 2
    assert [*own][:6] == ["path", "tokenizer", "image_processor", "seq_length", "micro_batch_size", "global_batch_size"]


def test_where_bridge_slips_ours_differs(numbers: Path) -> None:
    """A second call gives the raw loader there, and validation is shuffled and endless."""
    bridge = theirs.EnergonMultiModalDataModule(str(numbers), None, task_encoder=DefaultTaskEncoder(), **OPTIONS)
    assert type(bridge.train_dataloader()) is not type(bridge.train_dataloader())
    in_order = [[NUM_TRAIN + number] for number in range(6)]
    assert draw(bridge.val_dataloader(), 6) != in_order
    ours = make_module(numbers)
    assert ours.train_dataloader() is ours.train_dataloader()
    assert draw(ours.val_dataloader(), 6) == in_order


# ----- conversations --------------------------------------------------------------------------------------------------

CHATML = """
__module__: megatron.bridge.data.energon.task_encoder_utils
__class__: ChatMLWebdataset
field_map: {conversation: json, imgs: png}
"""


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight questions about a picture, prepared by Bridge's own function."""
    folder = tmp_path_factory.mktemp("conversations")
    with wds.ShardWriter(str(folder / "train-%04d.tar"), maxcount=4, verbose=0) as sink:
        for number in range(8):
            turns = [
                {"role": "user", "content": f"<image> What is {number}?"},
                {"role": "assistant", "content": "A number." * (number + 1)},
            ]
            sink.write({"__key__": f"{number:03d}", "json": json.dumps(turns).encode(), "png": picture(number)})
    prepare_webdataset(folder, {"train": "train-.*"}, num_workers=1)
    (folder / ".nv-meta/dataset.yaml").write_text(CHATML)
    return folder


def collate(examples: list[dict[str, Any]], processor: Any, *, sequence_length: int, **settings: Any) -> dict[str, Any]:
    """Letters as tokens, padded to the full length; the pictures' sums as pixels."""
    texts = ["".join(str(turn["content"]) for turn in example["conversation"]) for example in examples]
    tokens = torch.zeros(len(texts), sequence_length, dtype=torch.int64)
    for row, text in enumerate(texts):
        letters = text.encode()[:sequence_length]
        tokens[row, : len(letters)] = torch.tensor(list(letters))
    positions = torch.arange(sequence_length).expand_as(tokens)
    visual = GenericVisualInputs(pixel_values=torch.ones(len(texts), 3))
    return {
        "input_ids": tokens,
        "labels": tokens.roll(-1, 1),
        "loss_mask": (tokens > 0).float(),
        "position_ids": positions,
        "visual_inputs": visual,
    }


def test_chatml_data_of_bridge_s_own_class_are_read(conversations: Path) -> None:
    """Their dataset.yaml names it, and it is trusted."""
    seen = []

    class Keeping(DefaultTaskEncoder[Any, Any, Any, Any]):
        def encode_sample(self, sample: Any) -> Any:
            seen.append(sample)
            return sample

    next(make_module(conversations, task_encoder=Keeping()).train_dataloader())
    assert type(seen[0]) is ChatMLSample
    assert seen[0].conversation[0]["role"] == "user"
    assert seen[0].imgs.shape[-3] == 3


def test_bridge_s_forward_step_takes_the_batches_of_its_hf_encoder(
    conversations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, **_: self)  # there is no CUDA
    encoder = HFTaskEncoder(processor=None, seq_length=64, collate_fn=collate)
    module = theirs.EnergonMultiModalDataModule(
        str(conversations), None, 64, 2, task_encoder=encoder, num_workers=0, shuffle_buffer_size=8
    )
    expected = next(module.train_dataloader())
    module.train_dataloader_object = None
    iterator = RerunDataIterator(module.train_dataloader())
    batch = get_batch_from_iterator(iterator, is_first_pp_stage=True, is_last_pp_stage=True)
    assert batch["input_ids"].shape == (2, 64)
    assert torch.equal(batch["input_ids"], expected["input_ids"])
    assert torch.equal(batch["loss_mask"], expected["loss_mask"])
    assert batch["visual_inputs"].pixel_values.shape == (2, 3)
    middle = get_batch_from_iterator(iterator, is_first_pp_stage=False, is_last_pp_stage=False)
    assert middle["labels"] is None and middle["visual_inputs"].pixel_values is None


def test_a_task_encoder_config_of_bridge_goes_into_our_dataset_config(
    conversations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Qwen3VLProcessor:
        """By its name Bridge chooses how to collate; a real one needs a hub."""

    monkeypatch.setattr(builders.AutoProcessor, "from_pretrained", lambda *_, **__: Qwen3VLProcessor())
    config = EnergonDatasetConfig(
        path=str(conversations),
        seq_length=64,
        micro_batch_size=2,
        num_workers=0,
        task_encoder=builders.HFEnergonTaskEncoderConfig(hf_processor_path="org/model", min_pixels=16),
        pad_to_max_length=True,
    )
    config.finalize()
    encoder = EnergonDatasetBuilder(config).datamodule(DatasetBuildContext(8, 0, 0)).task_encoder
    assert isinstance(encoder, HFTaskEncoder)
    settings = (encoder.seq_length, encoder.min_pixels, encoder.pad_to_max_length, encoder.pad_to_multiple_of)
    assert settings == (64, 16, True, 128)
    train, _, _ = get_dataset_provider(config)([8, 0, 0], config)
    assert isinstance(train, EnergonDataloader)


# ----- diffusion ------------------------------------------------------------------------------------------------------


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@pytest.fixture
def one_rank_with_pickles(monkeypatch: pytest.MonkeyPatch) -> None:
    """No context parallelism, and a decoder that reads the pickles in the diffusion data that Bridge prepares.

    The second is an edit that a user has to make: nothing is unpickled here unless it is asked for.
    """
    monkeypatch.setattr(parallel_state, "get_context_parallel_world_size", lambda: 1)
    for encoder in (FluxTaskEncoder, WanTaskEncoder):
        monkeypatch.setattr(encoder, "decoder", SampleDecoder(handlers={"pickle": pickle.loads}))


@pytest.mark.usefixtures("one_rank_with_pickles")
def test_flux_trains_on_our_data(tmp_path: Path) -> None:
    samples = (
        {
            "__key__": f"{number:03d}",
            "pth": saved(torch.full((16, 8, 8), number / 10)),
            "pickle": pickle.dumps({"prompt_embeds": torch.ones(7, 32), "pooled_prompt_embeds": torch.ones(768)}),
            "json": b'{"image_height": 64, "image_width": 64}',
        }
        for number in range(8)
    )
    write_dataset(tmp_path, samples, per_shard=4, definition=CRUDE)
    config = FluxDatasetConfig(path=str(tmp_path), seq_length=64, micro_batch_size=2, num_workers=0)
    train, validation, _ = config.build_datasets(DatasetBuildContext(8, 8, 8))
    batch = next(train)
    assert batch["latents"].shape == (2, 16, 8, 8)
    assert batch["prompt_embeds"].shape[:2] == (2, 512)
    assert next(validation)["latents"].shape == (2, 16, 8, 8)


@pytest.mark.usefixtures("one_rank_with_pickles")
def test_wan_trains_on_packs_of_our_data(tmp_path: Path) -> None:
    samples = (
        {
            "__key__": f"{number:03d}",
            "pth": saved(torch.full((16, 2, 8, 8), number / 10)),
            "pickle": pickle.dumps(torch.ones(7, 32)),
            "json": b'{"fps": 8}',
        }
        for number in range(8)
    )
    write_dataset(tmp_path, samples, per_shard=4, ratio="1,1,0", definition=CRUDE)
    config = WanDatasetConfig(path=str(tmp_path), seq_length=128, packing_buffer_size=4, num_workers=0)
    train, validation, _ = config.build_datasets(DatasetBuildContext(8, 8, 8))
    batch = next(iter(train))
    assert batch["video_latents"].shape[0] > 0
    assert int(batch["seq_len_q"].sum()) <= 128
    assert next(iter(validation))["video_latents"].shape[0] > 0
