import collections
import json
import resource
import signal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data.datamodule.sharded_state import load_sharded_state, sharded_state
from bridge_data.errors import StateError
from bridge_data.loader.checkpoint import load_states, read_checkpoint
from bridge_data.loader.checkpoint.lightning_file import write_lightning
from bridge_data.order.state import LoaderState, merge_states
from bridge_data.runs.saved_files import read_states
from tests.loader.checkpoint.gloo_ranks import MORE, STEPS, STEPS_OF_SOME
from tests.loader.checkpoint.states import make_state
from tests.prepared import write_texts
from tests.ranks import run_job


def saved(file: Path, **content: object) -> Path:
    """A checkpoint as Lightning lays it out."""
    weights = {"weight": torch.zeros(1000)}
    data = {"EnergonMultiModalDataModule": {"train_dataloader": make_state(), "micro_batches_in_epoch": 8}}
    torch.save({"global_step": 10, "state_dict": weights, **data, **content}, file)
    return file


def test_the_state_in_a_checkpoint_of_lightning_is_read(tmp_path: Path) -> None:
    found = read_checkpoint(saved(tmp_path / "step=10.ckpt"))
    assert (found.step, found.world_size, found.state.to_dict()) == (10, None, make_state())
    saved(tmp_path / "step=20.ckpt", global_step=20)
    assert [one.step for one in read_states([tmp_path])] == [10, 20]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"EnergonMultiModalDataModule": {}}, "has no state of the data: it was saved without the DataModule"),
        ({"EnergonMultiModalDataModule": {"train_dataloader": {"version": 99}}}, r"a\.ckpt: .*version"),
        ({"AnotherModule": {"train_dataloader": {}}}, "has the states of 2 DataModules, expected one"),
        ({"hyper_parameters": Fraction(1, 2)}, "holds objects .* which are not loaded"),
    ],
)
def test_what_has_no_state_to_read_is_refused(tmp_path: Path, content: dict[str, object], message: str) -> None:
    with pytest.raises(StateError, match=message):
        read_checkpoint(saved(tmp_path / "a.ckpt", **content))


LATER = LoaderState.from_dict(make_state(step=11))


def contents(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


@pytest.mark.parametrize("name", ["step=10.ckpt", "other.ckpt"])
def test_a_state_is_written_beside_all_else_in_the_file(tmp_path: Path, name: str) -> None:
    weight = torch.nn.Parameter(torch.randn(50, 20))
    tied = {"embedding": weight, "head": weight, "row": weight.detach()[3], "half": torch.randn(9).bfloat16()}
    moments = {"state": {0: {"step": torch.tensor(7.0), "exp_avg": torch.randn(50, 20)}}, "param_groups": [{"lr": 0.1}]}
    others = {
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": None, "kth_best_model_path": ""}},
        "hyper_parameters": collections.OrderedDict(width=8, path="x"),
        "loops": {"fit_loop": {"epoch_progress": {"current": {"ready": 1}}}},
    }
    file = saved(tmp_path / "step=10.ckpt", state_dict=tied, optimizer_states=[moments], **others)
    before = contents(file)
    write_lightning(file, LATER, tmp_path / name)

    after = contents(tmp_path / name)
    assert list(after) == list(before)
    of_module = {"train_dataloader": LATER.to_dict(), "micro_batches_in_epoch": 8}
    assert after["EnergonMultiModalDataModule"] == of_module
    assert {key: after[key] for key in others} == others
    for key, tensor in before["state_dict"].items():
        assert torch.equal(after["state_dict"][key], tensor)
        assert (after["state_dict"][key].dtype, type(after["state_dict"][key])) == (tensor.dtype, type(tensor))
    shared = {after["state_dict"][key].untyped_storage().data_ptr() for key in ("embedding", "head", "row")}
    assert len(shared) == 1, "tensors that share memory still do"
    assert str(after["optimizer_states"]) == str([moments])
    assert read_checkpoint(tmp_path / name).step == 10
    if name != file.name:
        assert contents(file)["EnergonMultiModalDataModule"]["train_dataloader"] == make_state()


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.ckpt")
    before, (soft, hard) = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(StateError, match=r"a\.ckpt: was not written, and is unchanged: .*File too large"):
            write_lightning(file, LATER, file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the ranks of `gloo_ranks` left."""
    folder = tmp_path_factory.mktemp("ranks")
    write_texts(folder / "texts", 600)
    status, output = run_job("tests.loader.checkpoint.gloo_ranks", str(folder))
    assert status == 0, output[-5_000:]
    return folder


def results(folder: Path, name: str, world_size: int) -> list[dict[str, Any]]:
    """What each rank reported."""
    return [json.loads((folder / f"{name}-{world_size}-{rank}.json").read_text()) for rank in range(world_size)]


def in_order(ranks: list[dict[str, Any]], name: str) -> list[list[str]]:
    """The micro-batches of the job."""
    return [batch for batches in zip(*(rank[name] for rank in ranks), strict=True) for batch in batches]


@pytest.mark.processes
def test_a_rank_at_another_step_fails_the_save_on_all(folder: Path) -> None:
    messages = {rank["refusal"] for rank in results(folder, "save", 4)}
    assert len(messages) == 1
    message = messages.pop()
    assert "data-parallel rank 2" in message and "micro_batch_index 12" in message and "28" in message
    assert not (folder / "failed").exists()


@pytest.mark.processes
def test_ranks_of_which_some_have_no_more_batches_are_saved_at_the_same_step(folder: Path) -> None:
    states = [rank["ending"] for rank in results(folder, "save", 4)]
    assert len({(state["micro_batch_index"], state.get("ended", False)) for state in states}) == 2, "some have ended"
    assert load_states(folder / "ending", step=STEPS_OF_SOME) == merge_states(states)


@pytest.mark.processes
def test_what_holds_no_whole_sharded_state_is_refused(folder: Path) -> None:
    messages = results(folder, "refuse", 1)[0]
    assert "is not a checkpoint of megatron.core.dist_checkpointing" in messages["texts"]
    assert "expected objects named 'train_dataloader'" in messages["model-only"]
    assert "without those of ranks [1]" in messages["half"]


@pytest.mark.processes
def test_outside_a_distributed_run_it_says_how_to_have_one(tmp_path: Path) -> None:
    for attempt in (lambda: sharded_state(make_state()), lambda: load_sharded_state(tmp_path)):
        with pytest.raises(StateError, match=r"needs a process group, even for one process: .*init_process_group"):
            attempt()


@pytest.mark.processes
def test_all_forms_load_at_any_data_parallel_size_and_the_run_goes_on(folder: Path) -> None:
    before, expected = (in_order(results(folder, "save", 4), name) for name in ("before", "after"))
    assert (len(before), len(expected)) == (4 * STEPS, 4 * MORE)
    after = {}
    for world_size in (1, 2, 3):
        ranks = results(folder, "load", world_size)
        assert [rank["equal"] for rank in ranks] == [True] * world_size
        after[world_size] = in_order(ranks, "after")
    assert after[1] == after[2] == expected
    keys = collections.Counter(key for batch in before + after[3] for key in batch)
    assert set(keys.values()) == {1}, "three ranks share the lanes anew and repeat nothing"


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.ckpt")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(StateError, match=r"a\.ckpt: cannot be read as a checkpoint of Lightning"):
        read_checkpoint(file)
