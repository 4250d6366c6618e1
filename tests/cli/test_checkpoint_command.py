import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data.loader.checkpoint import load_states, rank_file, save_states
from bridge_data.order.state import LoaderState
from tests.cli.conftest import Run
from tests.loader.checkpoint.states import make_state, rank_states


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of step 10 by 4 ranks."""
    save_states(tmp_path / "saved", rank_states(4), step=10, world_size=4)
    return tmp_path / "saved"


def lines(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def test_info_shows_what_a_folder_or_file_holds(run: Run, saved: Path, tmp_path: Path) -> None:
    result = run("checkpoint", "info", saved)
    assert result.exit_code == 0
    shown = lines(result.stdout)
    assert shown[1][:6] == ["saved", "at", "step", "10", "by", "4"]
    assert "order        shuffled, seed 0, batch_size 4, packing_buffer_size 4\n" in result.stdout
    for row in (
        ["position", "80", "micro-batches", "of", "the", "job", "handed", "out"],
        ["lanes", "all", "8"],
        ["photos/train", "25.0%", "100", "7", "10", "0"],
        ["pages/train", "75.0%", "50", "30", "0", "0"],
        ["7", "10", "50", "4", "0"],
        ["together", "80", "400", "32", "0"],
    ):
        assert row in shown
    assert ["6", "more", "60", "300", "24", "0"] in lines(run("checkpoint", "info", saved, "--limit", 2).stdout)
    of_rank = run("checkpoint", "info", rank_file(saved, 1)).stdout
    assert "lanes        2 of 8: not the whole state\n" in of_rank
    assert ["together", "20", "100", "8", "0"] in lines(of_rank)
    torch.save(make_state(), tmp_path / "merged.pt")
    merged = run("checkpoint", "info", tmp_path / "merged.pt").stdout
    assert "saved        at an unknown step, " in merged and "lanes        all 8\n" in merged


def test_info_as_json(run: Run, saved: Path) -> None:
    result = run("checkpoint", "info", saved, "--json", "--limit", 2)
    told = json.loads(result.stdout)
    assert (result.exit_code, told["path"], told["step"], told["world_size"]) == (0, str(saved), 10, 4)
    assert told["num_bytes"] == sum(file.stat().st_size for file in saved.glob("*.pt"))
    assert (told["num_files"], told["num_micro_batches"], told["next_micro_batch"]) == (4, 80, 80)
    assert (told["edits"], told["forgotten"], told["num_lanes"], told["lanes_of_generations"]) == (None, [], 8, [8])
    assert (told["order"], told["settings"]["batch_size"], told["settings"]["seed"]) == ("shuffled", 4, 0)
    photos, pages = told["sources"]
    assert photos == {
        "label": "photos/train",
        "weight": 0.25,
        "chunk_size": 100,
        "samples_taken": [7, 7],
        "epochs": [10, 10],
        "inbox": 0,
    }
    assert (pages["label"], pages["weight"]) == ("pages/train", 0.75)
    numbers = {"micro_batches": 10, "draws": 50, "pending": 4, "inbox": 0}
    assert told["lanes"] == [{"lane": lane, **numbers} for lane in range(8)]
    run("checkpoint", "skip", saved, "--steps", "12..14", *STEPS)
    edited = json.loads(run("checkpoint", "info", saved, "--json").stdout)
    assert edited["edits"] == [{"first": 96, "stop": 120, "times": 0}]


def test_info_shows_the_versions_of_the_lists_of_forgotten_samples(run: Run, tmp_path: Path) -> None:
    state = LoaderState.from_dict(make_state())
    changes = [[0, {"aa": [[1, "0" * 16]]}], [40, {"aa": [[2, "1" * 16]]}]]
    state.extras = {"withheld": {"version": 1, "data": changes}}
    torch.save(state.to_dict(), tmp_path / "merged.pt")
    told = json.loads(run("checkpoint", "info", tmp_path / "merged.pt", "--json").stdout)
    assert told["forgotten"] == [
        {"from_micro_batch": slot, "lists": [{"source": "photos/train", "versions": [version]}]}
        for slot, version in ((0, 1), (40, 2))
    ]
    assert (
        "forgotten    from micro-batch 0 on: version 1 of the list of photos/train\n"
        "             from micro-batch 40 on: version 2 of the list of photos/train\n"
    ) in run("checkpoint", "info", tmp_path / "merged.pt").stdout


def test_diff_names_what_differs_but_not_who_saved_it(run: Run, saved: Path, tmp_path: Path) -> None:
    torch.save(make_state(), tmp_path / "merged.pt")
    result = run("checkpoint", "diff", saved, tmp_path / "merged.pt")
    assert (result.exit_code, result.stdout) == (0, "the same state: 8 lanes after 80 micro-batches\n")
    assert "A was saved at step 10 by 4 ranks, " in result.stderr
    assert json.loads(run("checkpoint", "diff", saved, saved, "--json").stdout)["differences"] == []
    save_states(tmp_path / "later", make_state(step=11, batch_size=8), step=11, world_size=2)
    both = ("checkpoint", "diff", saved, tmp_path / "later", "--limit", 1)
    result = run(*both)
    shown = lines(result.stdout)
    rows = [
        ["batch_size", "4", "8"],
        ["micro-batches", "handed", "out", "80", "88"],
        ["lane", "0:", "draws", "50", "55"],
    ]
    assert result.exit_code == 1 and all(row in shown for row in rows)
    assert shown[-1] == ["and", "7", "more", "lanes"]
    result = run(*both, "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (1, "")
    about = [(one["path"], one["step"], one["world_size"]) for one in told["states"]]
    assert about == [(str(saved), 10, 4), (str(tmp_path / "later"), 11, 2)]
    of_job = {"source": None, "lane": None}
    assert {"item": "batch_size", "first": 4, "second": 8, **of_job} in told["differences"]
    assert {"item": "num_micro_batches", "first": 80, "second": 88, **of_job} in told["differences"]
    draws = [one for one in told["differences"] if one["item"] == "draws"]
    assert draws == [{"item": "draws", "first": 50, "second": 55, "source": None, "lane": lane} for lane in range(8)]


@pytest.mark.parametrize("world_size", [2, 3])
def test_redist_writes_files_for_other_ranks(run: Run, saved: Path, tmp_path: Path, world_size: int) -> None:
    target = tmp_path / "new"
    result = run("checkpoint", "redist", saved, target, "--world-size", world_size)
    told = "all 8 lanes in that of rank 0"
    assert (result.exit_code, result.stdout) == (0, f"{target}: step 10, {world_size} files, {told}\n")
    assert ("resharded when restored" in result.stderr) == (world_size == 3)
    assert len(os.listdir(target)) == world_size
    assert load_states(target, step=10) == make_state()
    torch.save(make_state(), tmp_path / "merged.pt")
    merged = ("checkpoint", "redist", tmp_path / "merged.pt", tmp_path / "of merged", "--world-size", 2, "--step", 7)
    assert run(*merged).exit_code == 0 and load_states(tmp_path / "of merged", step=7) == make_state()


def test_the_files_of_all_ranks_are_taken_also_in_several_folders_as_energons_commands_take_them(
    run: Run, saved: Path, tmp_path: Path
) -> None:
    files, whole = sorted(saved.glob("*.pt")), load_states(saved)
    assert len(files) == 4
    assert run("checkpoint", "info", *files).stdout == run("checkpoint", "info", saved).stdout
    assert run("checkpoint", "redist", *files, tmp_path / "two", "--world-size", 2).exit_code == 0
    assert load_states(tmp_path / "two") == whole and len(list((tmp_path / "two").glob("*.pt"))) == 2
    moved = [tmp_path / str(number) / file.name for number, file in enumerate(files)]
    for file, target in zip(files, moved, strict=True):
        target.parent.mkdir()
        file.rename(target)
    assert run("checkpoint", "redist", *moved, tmp_path / "one", "--world-size", 1).exit_code == 0
    assert load_states(tmp_path / "one") == whole


STEPS = ["--global-batch-size", 32]
"""Eight micro-batches of 4 a step; `saved` is after ten of these."""


def test_skip_records_the_steps_in_place_and_info_shows_them(run: Run, saved: Path) -> None:
    before = load_states(saved, step=10)
    done = run("checkpoint", "skip", saved, "--steps", "12..14", "--steps", "20", *STEPS)
    assert done.exit_code == 0, done.stderr
    assert (
        "skip_steps 12-14 (skip micro-batches 96 to 119), skip_steps 20 (skip micro-batches 160 to 167)" in done.stdout
    )
    assert run("checkpoint", "skip", saved, "--steps", "10", *STEPS).exit_code == 0
    after = load_states(saved, step=10)
    assert after["skips"] == [[80, 88], [96, 120], [160, 168]]
    assert after["micro_batch_index"] == 88
    del after["skips"], after["checksums"], before["checksums"]
    assert after == {**before, "micro_batch_index": 88}
    shown = run("checkpoint", "info", saved).stdout
    assert "micro-batch 88 of the run without skips\n" in shown
    assert "skip micro-batches 80 to 87, skip micro-batches 96 to 119, skip micro-batches 160 to 167\n" in shown


def test_of_steps_in_the_middle_of_which_the_state_is_skip_records_the_rest(run: Run, saved: Path) -> None:
    done = run("checkpoint", "skip", saved, "--steps", "9..12", *STEPS)
    told = done.stderr.replace("\n", " ")
    assert done.exit_code == 0 and "not skipped: before the position of the state" in told, told
    assert "micro-batches 72 to 79 of skip_steps 9-12" in told
    assert load_states(saved)["skips"] == [[80, 104]]


def test_skip_writes_another_folder_or_file(run: Run, saved: Path, tmp_path: Path) -> None:
    content = {p.name: p.read_bytes() for p in saved.iterdir()}
    assert run("checkpoint", "skip", saved, "--steps", "12", *STEPS, "--out", tmp_path / "other").exit_code == 0
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == content
    assert load_states(tmp_path / "other", step=10)["skips"] == [[96, 104]]
    for name, made in (("bare.pt", make_state()), ("wrapped.pt", {"dataloader_state_dict": make_state(), "step": 3})):
        torch.save(made, tmp_path / name)
        assert run("checkpoint", "skip", tmp_path / name, "--steps", "12", *STEPS).exit_code == 0
        written = torch.load(tmp_path / name, weights_only=True)
        assert written.get("step") == made.get("step")
        assert written.get("dataloader_state_dict", written)["skips"] == [[96, 104]]
    differences = run("checkpoint", "diff", saved, tmp_path / "other")
    assert ["skipped", "–", "skip", "micro-batches", "96", "to", "103"] in lines(differences.stdout)


def test_skip_takes_the_steps_of_a_config_with_its_ramp(run: Run, saved: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        "data: {path: data, num_lanes: 8, micro_batch_size: 4, global_batch_size: 32, seed: 0,\n"
        "  packing_buffer_size: 4, rampup_batch_size: [16, 16, 64], shuffle_buffer_size: 100,\n"
        "  max_samples_per_sequence: 100}\n"
    )
    assert run("checkpoint", "skip", saved, "--steps", "20", "--config", config).exit_code == 0
    assert load_states(saved)["skips"] == [[144, 152]]


def test_a_state_in_a_dict_of_ones_own_is_found_by_its_key(run: Run, tmp_path: Path) -> None:
    state, weights = make_state(), torch.arange(3)
    torch.save({"model": {"w": weights}, "data": {"train": state}}, tmp_path / "job.pt")
    torch.save(state, tmp_path / "bare.pt")
    key = ("--key", "data.train")
    assert run("checkpoint", "diff", tmp_path / "job.pt", tmp_path / "job.pt", *key).exit_code == 0
    shown = json.loads(run("checkpoint", "info", tmp_path / "job.pt", *key, "--json").stdout)
    alone = json.loads(run("checkpoint", "info", tmp_path / "bare.pt", "--json").stdout)
    names = {"path", "num_bytes"}
    assert {**shown, **dict.fromkeys(names)} == {**alone, **dict.fromkeys(names)}
    step = ("--step", 10, "--world-size", 2)
    assert run("checkpoint", "redist", tmp_path / "job.pt", tmp_path / "two", *key, *step).exit_code == 0
    assert load_states(tmp_path / "two") == state
    assert run("checkpoint", "skip", tmp_path / "job.pt", *key, "--steps", "12", *STEPS).exit_code == 0
    written = torch.load(tmp_path / "job.pt", weights_only=True)
    assert written["data"]["train"]["skips"] == [[96, 104]] and torch.equal(written["model"]["w"], weights)


@pytest.fixture
def files(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of many kinds beside `saved`, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("sharded", "iter_0000010"):
        (tmp_path / name).mkdir()
    (tmp_path / "sharded/__0_0.distcp").touch()
    (tmp_path / "file").write_text("something else")
    torch.save(make_state(), tmp_path / "merged.pt")
    torch.save({"model": torch.zeros(3), "data": make_state()}, tmp_path / "job.pt")
    for name in ("a.ckpt", "renamed.pt"):
        lightning_file(tmp_path / name)
    for rank, state in enumerate(rank_states(4)):
        more = {"tokens": 7} if rank == 2 else {}
        torch.save({"dataloader_state_dict": state, **more}, rank_file(tmp_path / "iter_0000010", rank))
    return tmp_path


REFUSALS = {
    "info no": "error: no: no such file or folder",
    "info file": "error: file: cannot be read as a data",
    "redist saved/train_dataloader_dprank001.pt new --world-size 2": "lacks lanes [0, 2, 3, 4, 6, 7] of 8",
    "redist merged.pt new --world-size 2": "does not say its step; give --step",
    "redist saved new --world-size 2 --step 11": "--step 11: saved says that it is of step 10",
    "redist saved iter_0000010 --world-size 2": "holds a data state already",
    "skip saved --steps 7..9 --global-batch-size 32": (
        "nothing to skip: before the position of the state, which cannot be skipped: micro-batches 56 to 79"
    ),
    "skip saved --steps 12": "what is a step? Give --config of the run, or --global-batch-size",
    "skip saved --steps 14..12 --global-batch-size 32": "the last step comes before the first",
    "skip saved --steps 12 --steps 12..13 --global-batch-size 32": "skip_steps 12 and 12-13 overlap",
    "skip saved --steps 15 --global-batch-size 24": "4 data-parallel ranks cannot share the",
    "skip saved/train_dataloader_dprank001.pt --steps 12 --global-batch-size 32": "the state lacks lanes",
    "skip saved/train_dataloader_dprank000.pt --steps 12 --global-batch-size 32": (
        "is a part of a checkpoint: give the folder"
    ),
    "skip saved --steps 12 --global-batch-size 32 --out iter_0000010": (
        "holds a data state already; give another folder"
    ),
    "skip a.ckpt --steps 12 --global-batch-size 32 --out b.pt": "give a name with '.ckpt'",
    "skip merged.pt --steps 12 --global-batch-size 32 --out b.ckpt": "give a name with '.pt'",
    "skip job.pt --steps 12 --global-batch-size 32": (
        "['data'], among other things: give `bridge-data checkpoint` --key data"
    ),
    "info job.pt --key dat": "job.pt: has no key 'dat'; there is model, data",
    "info job.pt --key model.a": "has no key 'a'; it is no dict",
    "info saved --key data": "saved: is a folder, and has no key",
    "skip renamed.pt --steps 12 --global-batch-size 32": (
        "state in ['EnergonMultiModalDataModule']['train_dataloader'], among other things"
    ),
    "skip sharded --steps 12 --global-batch-size 32": "megatron.core.dist_checkpointing is read by load_sharded_state",
    "skip iter_0000010 --steps 12 --global-batch-size 32": "dprank002.pt: holds ['tokens'] beside the data state",
}


@pytest.mark.parametrize("command", REFUSALS)
def test_what_cannot_be_is_refused_and_changes_no_file(run: Run, files: Path, command: str) -> None:
    def snapshot() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in files.rglob("*") if path.is_file()}

    before = snapshot()
    refused = run("checkpoint", *command.split())
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert REFUSALS[command] in refused.stderr.replace("\n", " "), refused.stderr
    assert snapshot() == before


def test_what_others_keep_beside_the_state_stays_where_the_state_is_written_elsewhere(run: Run, files: Path) -> None:
    assert run("checkpoint", "skip", "iter_0000010", "--steps", "12", *STEPS, "--out", "new").exit_code == 0
    assert torch.load(rank_file(files / "iter_0000010", 2), weights_only=True)["tokens"] == 7
    torch.save({"dataloader_state_dict": rank_states(4)[2]}, rank_file(files / "iter_0000010", 2))
    assert run("checkpoint", "skip", "iter_0000010", "--steps", "12", *STEPS).exit_code == 0
    assert load_states(files / "iter_0000010", step=10) == load_states(files / "new")


def lightning_file(file: Path) -> dict[str, Any]:
    """Write a checkpoint of Lightning; what is in it beside the state of the data."""
    others = {"global_step": 10, "state_dict": {"weight": torch.arange(1000.0)}, "callbacks": {"Other": {"seen": 3}}}
    torch.save({**others, "EnergonMultiModalDataModule": {"train_dataloader": make_state()}}, file)
    return others


def test_skip_changes_nothing_but_the_data_state_in_a_checkpoint_of_lightning(run: Run, tmp_path: Path) -> None:
    file, other = tmp_path / "step=10.ckpt", tmp_path / "other.ckpt"
    others = lightning_file(file)
    before = file.read_bytes()
    for arguments in (["--steps", "12", "--out", other], ["--steps", "12"], ["--steps", "10"]):
        done = run("checkpoint", "skip", file, *arguments, *STEPS)
        assert (done.exit_code, done.stderr) == (0, "")
        assert (file.read_bytes() == before) == ("--out" in arguments)
    for path, ranges in ((file, [[80, 88], [96, 104]]), (other, [[96, 104]])):
        written = torch.load(path, weights_only=True)
        state = written.pop("EnergonMultiModalDataModule")["train_dataloader"]
        assert state.pop("skips") == ranges
        unchanged = make_state()
        del state["checksums"], unchanged["checksums"], state["micro_batch_index"], unchanged["micro_batch_index"]
        assert state == unchanged
        assert torch.equal(written["state_dict"].pop("weight"), torch.arange(1000.0))
        assert written == {**others, "state_dict": {}}
