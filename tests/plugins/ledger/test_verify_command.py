"""The audit: what agrees is told to agree, one swapped sample is found."""

import json
import struct
import zlib
from pathlib import Path

import pytest
import torch

from bridge_data.loader.checkpoint import save_states
from bridge_data.order.cursor import Stream
from bridge_data.order.row import Ints
from bridge_data.plugins.ledger.ledger_files import RunLedger, decoded, encoded, ledger_file
from tests.cli.runner import run_command
from tests.plugins.ledger.test_ledger_files import run
from tests.prepared import write_texts


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("audit") / "texts", 333)


def train(data: Path, folder: Path, *, world_sizes: tuple[int, ...] = (1, 2), skip_every: int = 0) -> None:
    """A run of 40 micro-batches for each of the numbers of ranks, saved after each."""
    state = None
    for number, world_size in enumerate(world_sizes, 1):
        state = run(data, folder / "ledger", world_size, 40, state, skip_every=skip_every)
        save_states(folder / f"iter_{number:07d}", state, step=number, world_size=world_size)


def audit(*arguments: object) -> tuple[int, str]:
    result = run_command("checkpoint", "verify", *arguments)
    return result.exit_code, result.output


def swap(path: Path, number: int) -> None:
    """Let the first two samples of a micro-batch change places in a ledger file, checksums included."""
    content, at, done = path.read_bytes(), path.read_bytes().index(b"\n") + 1, b""
    done = content[:at]
    while at < len(content):
        length, _ = struct.unpack_from("<II", content, at)
        payload = content[at + 8 : at + 8 + length]
        at += 8 + length
        if payload[:1] == b"M":
            batches = dict(decoded(payload[1:]))
            if number in batches:
                first, second, others = batches[number][:32], batches[number][32:64], batches[number][64:]
                batches[number] = second + first + others
                payload = b"M" + encoded([*batches.items()])
        done += struct.pack("<II", len(payload), zlib.crc32(payload)) + payload
    path.write_bytes(done)


def test_a_run_agrees_with_its_ledger_and_with_its_data(data: Path, tmp_path: Path) -> None:
    train(data, tmp_path)
    code, output = audit(tmp_path, "--data", data)
    assert (code, "4 comparisons equal, 0 different" in output) == (0, True), output


def test_one_swapped_sample_is_found_with_the_first_checkpoint_that_has_it(data: Path, tmp_path: Path) -> None:
    train(data, tmp_path, world_sizes=(1, 1, 2))
    before = RunLedger(tmp_path / "ledger").micro_batch(50)
    swap(ledger_file(tmp_path / "ledger", 0), 50)
    assert RunLedger(tmp_path / "ledger").micro_batch(50) == [before[1], before[0], *before[2:]]
    folders = [str(tmp_path / f"iter_{number:07d}") for number in (1, 2, 3)]
    code, output = audit(tmp_path)
    assert code == 1 and f"the first to differ is {folders[1]}" in output
    assert "1 comparison equal, 2 different" in output
    code, output = audit(tmp_path, "--data", data, "--json")
    told = json.loads(output)
    assert (code, told["num_equal"], told["num_different"]) == (1, 4, 2)
    rows = [(one["checkpoint"], one["compared_with"], one["result"], one["reason"]) for one in told["comparisons"]]
    results = [("ledger", "equal"), *[("ledger", "different")] * 2, *[("data", "equal")] * 3]
    assert rows == [(folder, *result, None) for folder, result in zip(folders * 2, results, strict=True)]
    assert [one["num_micro_batches"] for one in told["comparisons"]] == [40, 80, 120] * 2
    states, found = ([one[name] for one in told["comparisons"]] for name in ("state", "found"))
    assert [state["samples"] for state in states] == [one["samples"] for one in found]
    assert states[0] == found[0] and states[1]["positioned"] != found[1]["positioned"]


def test_a_run_that_was_handed_out_another_order_than_that_of_its_data_is_found(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Stream.take_arrays

    def swapped(self: Stream, count: int) -> tuple[Ints, Ints]:
        epochs, indices = take(self, count)
        taken = self._taken
        if self.lane == 1 and taken - len(indices) <= 9 < taken:
            indices[9 - taken] ^= 1
        return epochs, indices

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "take_arrays", swapped)
        train(data, tmp_path)
    assert audit(tmp_path)[0] == 0  # state and ledger agree, but not with the data
    code, output = audit(tmp_path, "--data", data)
    assert code == 1, output
    assert f"the first to differ is {tmp_path / 'iter_0000001'}" in output


def test_checkpoints_of_lightning_are_audited_where_there_are_no_others(data: Path, tmp_path: Path) -> None:
    state = run(data, tmp_path / "ledger", 2, 40)
    torch.save({"global_step": 20, "MyDataModule": {"train_dataloader": state}}, tmp_path / "step=20.ckpt")
    code, output = audit(tmp_path)
    assert (code, "1 comparison equal, 0 different" in output) == (0, True), output


def test_filters_and_reshards_are_left_to_the_ledger(data: Path, tmp_path: Path) -> None:
    train(data, tmp_path, world_sizes=(1, 4), skip_every=7)
    code, output = audit(tmp_path, "--data", data)
    assert code == 0 and "2 comparisons equal, 0 different" in output, output
    assert "samples were left out" in output


@pytest.mark.parametrize("content", [None, b"", bytes(5_000)])  # the last two as a power failure leaves them
def test_a_ledger_that_lacks_micro_batches_is_told(data: Path, tmp_path: Path, content: bytes | None) -> None:
    train(data, tmp_path)
    file = ledger_file(tmp_path / "ledger", 1)
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    code, output = audit(tmp_path)
    assert code == 1 and "\nthe ledger lacks 20 micro-batches\n" in output, output
    last = json.loads(audit(tmp_path, "--json")[1])["comparisons"][-1]
    assert (last["result"], last["reason"], last["found"]) == ("lacking", "the ledger lacks 20 micro-batches", None)


def test_nothing_to_compare_is_an_error(data: Path, tmp_path: Path) -> None:
    code, output = audit(tmp_path)
    assert (code, "holds no data state" in output) == (1, True)
    save_states(tmp_path / "iter_0000001", run(data, None, 1, 8), step=1, world_size=1)
    code, output = audit(tmp_path)
    assert (code, "holds no ledger" in output) == (1, True)


def test_a_run_without_a_ledger_has_nothing_to_compare(data: Path, tmp_path: Path) -> None:
    save_states(tmp_path / "iter_0000001", run(data, None, 1, 8), step=1, world_size=1)
    code, output = audit(tmp_path, "--data", data)
    assert (code, "the run had no ledger_path when it saved it" in output) == (1, True), output


def test_states_of_several_settings_are_each_compared_with_their_own_order(data: Path, tmp_path: Path) -> None:
    for seed in (0, 7):
        state = run(data, tmp_path.parent / f"{tmp_path.name}_ledger_{seed}", 1, 40, seed=seed, skip_every=0)
        save_states(tmp_path / f"seed_{seed}", state, step=seed, world_size=1)
    code, output = audit(tmp_path, "--data", data)
    assert (code, "2 comparisons equal, 0 different" in output) == (0, True), output
