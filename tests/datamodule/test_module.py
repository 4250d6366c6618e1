"""Each argument of the DataModule has an effect."""

import itertools
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from bridge_data import (
    ConfigError,
    DefaultTaskEncoder,
    EnergonMultiModalDataModule,
    NoCachePool,
    StateError,
    TextSample,
    WorkerConfig,
    edataclass,
)
from bridge_data.encoders import PLAIN_CHAT_TEMPLATE, MultiModalSampleConfig, MultiModalTaskEncoder
from bridge_data.plan import EmptySplitError
from bridge_data.samples import Batch
from tests.datamodule.parts import NUM_TRAIN, NUM_VAL, draw, make_module
from tests.encoders.multimodal_parts import IMAGE, image_processor, make_tokenizer, png
from tests.later import hf
from tests.prepared import write_dataset, write_texts

CAPTIONING = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "png", "caption": "txt"},
}
VAL = list(range(NUM_TRAIN, NUM_TRAIN + NUM_VAL))


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captions of 1 to 4 words; the sequence of one has 10 tokens more."""
    samples = ({"__key__": f"{n:03d}", "png": png(n), "txt": "a red boat .".rsplit(" ", n % 4)[0]} for n in range(40))
    folder = tmp_path_factory.mktemp("captions")
    return write_dataset(folder, samples, per_shard=10, ratio="3,1,0", definition=CAPTIONING)


def make_default(captions: Path, **options: Any) -> EnergonMultiModalDataModule:
    config = MultiModalSampleConfig(patch_size=8)
    chosen = {"num_workers": 0, "multimodal_sample_config": config, **options}
    return EnergonMultiModalDataModule(captions, make_tokenizer(), image_processor(), **chosen)


def stream(module: EnergonMultiModalDataModule, count: int = 40) -> list[list[int]]:
    return draw(module.train_dataloader(), count)


# ----- the default encoder: tokenizer, image_processor, seq_length, multimodal_sample_config, decoder_seq_length ------


def test_the_default_encoder_is_made_of_tokenizer_and_image_processor(captions: Path) -> None:
    module = make_default(captions, micro_batch_size=2, global_batch_size=2)
    assert isinstance(module.task_encoder, MultiModalTaskEncoder)
    assert next(module.train_dataloader()).images.shape == (2, 3, 16, 16)
    large = hf.CLIPImageProcessor(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})
    config = MultiModalSampleConfig(patch_size=8, pad_to_max_length=True)
    plain = make_tokenizer(PLAIN_CHAT_TEMPLATE)
    options = {"multimodal_sample_config": config, "seq_length": 64, "num_workers": 0}
    batch = next(EnergonMultiModalDataModule(captions, plain, large, **options).train_dataloader())
    assert batch.images.shape == (1, 3, 24, 24)
    assert batch.tokens.shape == (1, 64)
    assert batch.tokens[0, :9].eq(IMAGE).all(), "no role in front of the image, which has 9 tokens"


def test_lengths_bound_sequences_packs_and_labels(captions: Path, path: Path) -> None:
    for length in (12, 13):
        assert next(make_default(captions, seq_length=length).train_dataloader()).tokens.shape[1] <= length
    pack = next(make_default(captions, seq_length=40, packing_buffer_size=10).train_dataloader())
    assert 26 < pack.tokens.shape[1] <= 40
    module = make_default(captions, decoder_seq_length=2, micro_batch_size=4, global_batch_size=4)
    batch = next(module.train_dataloader())
    assert batch.labels.shape == (4, 2) and batch.tokens.shape[1] > 2
    with pytest.raises(ConfigError, match="leave out decoder_seq_length"):
        make_default(captions, decoder_seq_length=2, packing_buffer_size=10)


def test_a_call_by_position_for_bridge_0_6_is_refused(captions: Path) -> None:
    with pytest.raises(ConfigError, match=r"image_processor=1024: .* pass seq_length and all that follows by name"):
        EnergonMultiModalDataModule(captions, None, 1024, 2, task_encoder=DefaultTaskEncoder())


# ----- path, task_encoder, validation_task_encoder --------------------------------------------------------------------


class Negating(DefaultTaskEncoder[Any, Any, Any, Any]):
    def encode_sample(self, sample: TextSample) -> TextSample:
        return TextSample.derive_from(sample, text=f"-{sample.text}")


def test_validation_has_the_encoder_of_training_or_its_own(path: Path) -> None:
    for options, val in (({}, 1), ({"validation_task_encoder": Negating()}, -1)):
        module = make_module(path, **options)
        assert draw(module.train_dataloader(), 1)[0][0] >= 0
        assert draw(module.val_dataloader(), 1) == [[val * VAL[0]]]
    module = make_module(path, task_encoder=Negating())
    assert draw(module.val_dataloader(), 1) == [[-VAL[0]]]


# ----- batch sizes ----------------------------------------------------------------------------------------------------


def test_the_global_batch_size_gives_the_micro_batches_of_a_step(path: Path) -> None:
    module = make_module(path, micro_batch_size=2, global_batch_size=16)
    assert {len(batch) for batch in stream(module)} == {2}
    assert draw(module.val_dataloader(), 1) == [VAL[:2]]
    ranks = {size: WorkerConfig(rank=0, world_size=size, num_workers=0) for size in (1, 2, 3, 4)}
    assert [module.num_micro_batches(ranks[size]) for size in (1, 2, 4)] == [8, 4, 2]
    with pytest.raises(ConfigError, match=r"global_batch_size=16 is not a multiple of .* 3 data-parallel ranks = 6"):
        module.num_micro_batches(ranks[3])
    groups = SimpleNamespace(dp=SimpleNamespace(rank=lambda: 0, size=lambda: 3))
    with pytest.raises(ConfigError, match="3 data-parallel ranks"):  # before the first read
        make_module(path, global_batch_size=4, pg_collection=groups).train_dataloader()


def test_without_a_global_batch_size_a_step_takes_a_micro_batch_of_each_rank(path: Path) -> None:
    for num_ranks in (1, 3):
        groups = SimpleNamespace(dp=SimpleNamespace(rank=lambda: 0, size=lambda n=num_ranks: n))
        module = make_module(path, micro_batch_size=2, pg_collection=groups)
        assert module.global_batch_size is None
        assert module.batch_schedule.global_batch_size == 2 * num_ranks
        assert module.num_micro_batches(WorkerConfig(rank=0, world_size=num_ranks, num_workers=0)) == 1
        assert len(draw(module.train_dataloader(), 2)[1]) == 2
    module.global_batch_size = 12  # as a DataModule derived from this one may do after __init__
    assert module.num_micro_batches(WorkerConfig(rank=0, world_size=3, num_workers=0)) == 2


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"micro_batch_size": 0}, "micro_batch_size=0"),
        ({"global_batch_size": 0}, "global_batch_size=0"),
        ({"micro_batch_size": 4, "global_batch_size": 1}, "global_batch_size=1.*multiple of micro_batch_size=4"),
        (
            {"rampup_batch_size": [1, 1, 4]},
            r"rampup_batch_size=\[1, 1, 4\] is a ramp to global_batch_size, which is None",
        ),
    ],
)
def test_batch_sizes_that_cannot_be_are_refused(path: Path, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_module(path, **sizes)


# ----- ranks, workers, loader -----------------------------------------------------------------------------------------


@pytest.mark.processes
def test_workers_are_as_many_as_asked_for(path: Path) -> None:
    reference = stream(make_module(path, num_lanes=2))
    module = make_module(path, num_workers=2, num_val_workers=0, num_lanes=2)
    train, val = module.build()
    assert val is not None
    try:
        assert train.dataloader.wait_for_workers()
        assert draw(train, 40) == reference
        assert not val.dataloader.wait_for_workers()
    finally:
        train.close()
    numbers = [loader.dataloader.dataset.worker_config.num_workers for loader in (train, val)]
    assert numbers == [2, 0]
    assert make_module(path, num_workers=2).num_val_workers == 2


def test_settings_reach_workers_data_and_loader(path: Path, tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [{}, {"seed": 1}, {"num_lanes": 4}, {"num_lanes": 1}]
    settings += [{"num_lanes": 1, "max_samples_per_sequence": 3}]
    settings += [{"num_lanes": 1, "max_samples_per_sequence": 1, "shuffle_buffer_size": 90}]
    orders = [stream(make_module(path, **chosen)) for chosen in settings]
    assert stream(make_module(path)) == orders[0]
    assert all(a != b for a, b in itertools.combinations(orders, 2))
    pool = NoCachePool()
    train = make_module(path, virtual_epoch_length=5, prefetch_factor=3, cache_pool=pool).train_dataloader()
    assert (len(train), train.dataloader.config.prefetch_factor) == (5, 3)
    assert train.dataloader.dataset.cache_pool is pool
    with pytest.raises(ConfigError, match="did you mean 'prefetch_factor'"):
        make_module(path, prefech_factor=3)
    with pytest.raises(ConfigError, match="shuffle_buffer_size=-1"):
        make_module(path, shuffle_buffer_size=-1).train_dataloader()
    with pytest.raises(ConfigError, match="no such folder or file"):
        make_module(tmp_path / "missing").train_dataloader()


@edataclass
class Pinned(Batch):
    number: torch.Tensor
    is_pinned: bool = False

    def pin_memory(self) -> "Pinned":
        return Pinned(__key__=self.__key__, number=self.number, is_pinned=True)


class ToPinned(DefaultTaskEncoder[Any, Any, Any, Any]):
    def batch(self, samples: list[TextSample]) -> Pinned:
        return Pinned(__key__=[s.__key__ for s in samples], number=torch.tensor([int(s.text) for s in samples]))


@pytest.mark.parametrize("asked", [True, False])
def test_batches_are_pinned_where_there_is_a_gpu(path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not next(make_module(path, task_encoder=ToPinned(), pin_memory=asked).train_dataloader()).is_pinned
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    module = make_module(path, task_encoder=ToPinned(), pin_memory=asked)
    assert next(module.train_dataloader()).is_pinned == asked
    assert next(module.val_dataloader()).is_pinned == asked


@pytest.mark.gpu
def test_pinned_batches_are_in_page_locked_memory(captions: Path) -> None:
    for asked in (True, False):
        batch = next(make_default(captions, pin_memory=asked).train_dataloader())
        assert batch.tokens.is_pinned() == batch.images.is_pinned() == asked
        assert batch.to("cuda", non_blocking=True).tokens.is_cuda


# ----- the loaders ----------------------------------------------------------------------------------------------------


def test_train_dataloader_is_the_same_object_on_every_call(path: Path) -> None:
    module = make_module(path)
    told = f"EnergonMultiModalDataModule('{path}', task_encoder=DefaultTaskEncoder)"
    assert str(module) == repr(module) == told, "which starts no loader"
    assert module.train_dataloader_object is None
    train = module.train_dataloader()
    assert module.train_dataloader() is train is module.train_dataloader_object
    val = module.val_dataloader()
    assert module.val_dataloader() is val is module.val_dataloader_object
    assert module.build() == (train, val)
    assert module.test_dataloader() is None


@pytest.mark.parametrize("size", [1, 2])
def test_an_overfit_run_on_two_samples_has_both_in_turn(tmp_path: Path, size: int) -> None:
    """With the number of lanes by default: the first run that everybody makes."""
    path = write_texts(tmp_path, 2, per_shard=1, ratio="1,0,0")
    train, val = make_module(path, micro_batch_size=size, shuffle_buffer_size=100).build()
    seen = [number for batch in draw(train, 20 // size) for number in batch]
    assert [sorted(seen[start : start + 2]) for start in range(0, 20, 2)] == 10 * [[0, 1]]
    assert val is None


def test_a_validation_split_that_is_declared_empty_gives_none(tmp_path: Path) -> None:
    path = write_texts(tmp_path, 20, ratio="1,0,0")
    for module in (make_module(path), make_module(path, multiple_validation_sets=True)):
        assert module.val_dataloader() is None
        assert module.build()[1] is None


def test_datasets_provider_gives_either_split(path: Path) -> None:
    module, config = make_module(path), WorkerConfig(rank=0, world_size=1, num_workers=0)
    assert module.datasets_provider(config).finite
    assert not module.datasets_provider(config, "train").finite
    with pytest.raises(EmptySplitError, match="split part 'test' is declared and has no samples"):
        module.datasets_provider(config, "test")
    with pytest.raises(ConfigError, match="expected 'train', 'val' or 'test'"):
        module.datasets_provider(config, "valid")  # type: ignore[arg-type]


# ----- state ----------------------------------------------------------------------------------------------------------


def test_a_state_goes_on_after_the_last_batch_and_names_its_step(path: Path) -> None:
    sizes = {"micro_batch_size": 2, "global_batch_size": 4}
    module = make_module(path, **sizes)
    expected = stream(make_module(path, **sizes), 20)
    assert (module.state_dict(), module.init_global_step) == ({}, 0)
    assert stream(module, 6) == expected[:6]
    state = module.state_dict()
    before, after = make_module(path, **sizes), make_module(path, **sizes)
    before.load_state_dict(state)
    assert before.state_dict() == state
    after.train_dataloader()
    after.load_state_dict(state)
    for resumed in (before, after):
        assert resumed.init_global_step == 3
        assert stream(resumed, 14) == expected[6:]
        assert resumed.init_global_step == 3
    after.load_state_dict({})


def test_a_state_goes_through_the_distributed_checkpoints_of_torch(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Which load into the state of what they load, in place: only entries that a new state has, too."""
    module = make_module(path)
    train = module.train_dataloader()
    expected = stream(make_module(path), 12)[6:]
    stream(module, 6)
    states = {"module": module, "train": train, "loader": train.dataloader}
    dcp.save({**states, "as_dict": train.save_state()}, checkpoint_id=tmp_path / "saved", no_dist=True)
    for name in states:
        again = make_module(path)
        loader = again.train_dataloader()
        new = {"module": again, "train": loader, "loader": loader.dataloader}
        dcp.load({name: new[name]}, checkpoint_id=tmp_path / "saved", no_dist=True)
        assert stream(again, 6) == expected, name
    assert "no position" not in caplog.text
    with caplog.at_level(logging.WARNING, "bridge_data"):
        dcp.load({"module": make_module(path)}, checkpoint_id=tmp_path / "saved", no_dist=True)
    assert "call train_dataloader() before it loads" in caplog.text
    loader = make_module(path).train_dataloader()
    state = {"as_dict": loader.save_state()}
    dcp.load(state, checkpoint_id=tmp_path / "saved", no_dist=True)
    with pytest.raises(StateError, match=r"lanes\.0: has a checksum, .* save and load the loader itself"):
        loader.restore_state(state["as_dict"])


def test_what_is_no_state_is_refused(path: Path) -> None:
    with pytest.raises(StateError, match="not a state of EnergonMultiModalDataModule"):
        make_module(path).load_state_dict({"consumed_samples": 5})
    with pytest.raises(StateError, match="not a loader state"):
        make_module(path).load_state_dict({"train_dataloader": {"energon": 1}})
    state = make_module(path)
    state.train_dataloader()
    other = make_module(path, seed=7)
    other.load_state_dict(state.state_dict())
    with pytest.raises(StateError, match="seed: the state has 0, this run has 7"):
        other.train_dataloader()


# ----- skip_steps -----------------------------------------------------------------------------------------------------


def test_steps_are_skipped_and_the_trainers_own_stay_consecutive(path: Path) -> None:
    options: dict[str, Any] = {"global_batch_size": 4, "micro_batch_size": 2}
    plain = stream(make_module(path, **options))
    edited: dict[str, Any] = {**options, "skip_steps": ["2-4", 7, "9"]}
    steps = [0, 1, 5, 6, 8, 10, 11, 12, 13, 14, 15]
    wanted = [plain[2 * step + place] for step in steps for place in (0, 1)]
    module = make_module(path, **edited)
    loader = module.train_dataloader()
    assert draw(loader, 12) == wanted[:12]
    state = module.state_dict()
    assert draw(loader, 10) == wanted[12:]
    assert loader.skipped == {"skip_steps": 5 * 2 * 2}
    for more in (edited, options):  # the state has the ranges
        resumed = make_module(path, **more)
        resumed.load_state_dict(state)
        assert draw(resumed.train_dataloader(), 10) == wanted[12:]
        assert (resumed.init_global_step, resumed.init_consumed_samples) == (6, 24)


def test_steps_count_with_the_ramp(path: Path) -> None:
    options: dict[str, Any] = {"global_batch_size": 6, "rampup_batch_size": [2, 2, 8]}
    plain = stream(make_module(path, **options))
    schedule = make_module(path, **options).batch_schedule
    assert [len(schedule.micro_batches(step)) for step in range(6)] == [2, 2, 4, 6, 6, 6]
    edited = stream(make_module(path, **options, skip_steps=["1-2"]), 12)
    assert edited == plain[:2] + plain[8:18]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"skip_steps": ["3"]},
            r"skip_steps 3 .*: without global_batch_size, the size of a step depends on the number",
        ),
        ({"skip_steps": "3-4", "global_batch_size": 2}, r"skip_steps='3-4': expected a list of steps"),
        ({"skip_steps": ["5-4"], "global_batch_size": 2}, r"skip_steps: '5-4': the last step comes before"),
        ({"skip_steps": ["3", "2-4"], "global_batch_size": 2}, r"skip_steps 2-4 and 3 overlap"),
        ({"skip_steps": ["3"], "global_batch_size": 2, "repeat": False}, "skip_steps 3 .* in endless training only"),
    ],
)
def test_steps_that_cannot_be_are_refused(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_module(path, **options).train_dataloader()


def test_a_run_that_resumes_after_the_start_of_a_skip_leaves_out_the_rest_and_tells_the_others(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = stream(make_module(path, global_batch_size=2), 40)
    module = make_module(path, global_batch_size=2)
    stream(module, 8)
    late = make_module(path, global_batch_size=2, skip_steps=["0", "3-5", "7"])
    late.load_state_dict(module.state_dict())
    caplog.set_level("INFO", "bridge_data")
    assert stream(late, 10) == plain[12:14] + plain[16:24]
    told = next(record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "0 to 1 of skip_steps 0" in told
    assert "6 to 7 of skip_steps 3-5" in told
    assert "skip_steps 7" not in told
    assert "skip_steps 7 (skip micro-batches" in caplog.text, "what is to come is logged"


def test_attributes_of_options_may_be_changed_until_the_loaders_are_made(path: Path) -> None:
    module = make_module(path, micro_batch_size=1, global_batch_size=8, num_workers=0)
    module.micro_batch_size, module.shuffle_buffer_size, module.num_val_workers = 4, None, 2
    expected = make_module(path, micro_batch_size=4, global_batch_size=8, num_workers=0, shuffle_buffer_size=None)
    assert stream(module, 3) == stream(expected, 3)
    assert (module.num_val_workers, module.options.trainer.num_val_workers) == (2, 2)
    with pytest.raises(ConfigError, match="micro_batch_size=0"):
        module.micro_batch_size = 0
