"""Ledger files: what is in them after resumes on any number of ranks, and after a crash."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bridge_data import get_savable_loader
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.order.cursor import SampleKey
from bridge_data.order.state import LoaderState, merge_states
from bridge_data.plugins.ledger import ledger
from bridge_data.plugins.ledger.ledger_files import RunLedger, ledger_file, ledger_paths
from bridge_data.plugins.ledger.ledger_sums import LedgerSums
from tests.prepared import train_dataset, write_texts
from tests.properties.jobs import Encoder

NUM_LANES = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("ledger") / "texts", 333)


def make_loader(data: Path, ranks: tuple[int, int], folder: Path | None, **settings: Any) -> Any:
    rank, world_size = ranks
    skip_every = settings.pop("skip_every", 7)
    encoder = Encoder(skip_every=skip_every, num_parts=2 if skip_every else 1)
    shuffling = {"shuffle_buffer_size": 50, "max_samples_per_sequence": 20}
    settings = {"num_lanes": NUM_LANES, "batch_size": 3, "task_encoder": encoder, **shuffling} | settings
    dataset = train_dataset(data, rank=rank, world_size=world_size, **settings)
    return get_savable_loader(dataset, ledger_path=folder)


def run(data: Path, folder: Path | None, world_size: int, num: int, state: Any = None, **settings: Any) -> Any:
    """The state of all ranks after `num` micro-batches of the job, from `state` on."""
    states = []
    for rank in range(world_size):
        with make_loader(data, (rank, world_size), folder, **settings) as loader:
            if state is not None:
                loader.restore_state_rank(state)
            for _ in zip(range(num // world_size), loader, strict=False):
                pass
            states.append(json.loads(json.dumps(loader.save_state_rank())))
    return merge_states(states)


def sums_of(state: dict[str, Any]) -> LedgerSums | None:
    return ledger.sums_of(LoaderState.from_dict(state))


def check(folder: Path, state: dict[str, Any]) -> None:
    """Check that the ledger has each micro-batch once, and the sums of the state."""
    found, numbers = LedgerSums(), []
    for (_, number), one in RunLedger(folder).sums():
        found = found.plus(one)
        numbers.append(number)
    assert sorted(numbers) == list(range(state["micro_batch_index"]))
    assert found == sums_of(state)


@pytest.mark.parametrize("packing", [None, 20])
def test_a_resume_from_an_earlier_step_supersedes_what_came_after_on_any_number_of_ranks(
    data: Path, tmp_path: Path, packing: int | None
) -> None:
    folder = tmp_path / "ledger"
    check(folder, run(data, folder, 4, 80, packing_buffer_size=packing))
    early = run(data, folder, 2, 40, packing_buffer_size=packing)  # a new run
    check(folder, early)
    check(folder, run(data, folder, 8, 40, early, packing_buffer_size=packing))
    later = run(data, folder, 1, 11, early, packing_buffer_size=packing)
    check(folder, later)
    check(folder, run(data, folder, 3, 30, later, num_lanes=None, packing_buffer_size=packing))  # a reshard
    assert sorted(ledger_paths(folder)) == list(range(8))


def test_the_samples_of_a_micro_batch_are_those_in_its_restore_key(data: Path, tmp_path: Path) -> None:
    with get_savable_loader(train_dataset(data, num_lanes=2), ledger_path=tmp_path) as loader:
        keys = [batch.__restore_key__ for _, batch in zip(range(30), loader, strict=False)]
    ledger = RunLedger(tmp_path)
    for _, number, _, *samples in keys:
        assert ledger.micro_batch(number) == [SampleKey(*sample) for sample in samples]
    with pytest.raises(ConfigError, match="does not have micro-batch 30"):
        ledger.micro_batch(30)


def test_a_ledger_that_is_open_reads_what_is_added_and_begins_anew_where_the_file_was_replaced_or_cut(
    data: Path, tmp_path: Path
) -> None:
    state = run(data, tmp_path / "whole", 1, 12, skip_every=0)
    run(data, tmp_path / "whole", 1, 12, state, skip_every=0)
    content = ledger_file(tmp_path / "whole", 0).read_bytes()
    (tmp_path / "now").mkdir()
    file = ledger_file(tmp_path / "now", 0)
    file.write_bytes(b"")
    ledger, lasts = RunLedger(tmp_path / "now"), set()
    for end in range(len(content) + 1):
        assert ledger.update() == (end > 0), end
        lasts.add(ledger.last)
        with file.open("ab") as stream:
            stream.write(content[end : end + 1])
    assert lasts == {None, (0, 11), (0, 23)} and list(ledger) == list(RunLedger(tmp_path / "whole"))
    os.truncate(file, len(content) - 1)
    assert ledger.update() and ledger.last == (0, 11)
    run(data, tmp_path / "other", 1, 5, skip_every=0)
    os.replace(ledger_file(tmp_path / "other", 0), file)
    assert ledger.update() and ledger.last == (0, 4)
    file.unlink()
    with pytest.raises(ConfigError, match="holds no ledger"):
        ledger.update()


@pytest.mark.processes
def test_workers_send_the_same_references(data: Path, tmp_path: Path) -> None:
    alone = run(data, tmp_path / "alone", 1, 60, packing_buffer_size=20)
    with make_loader(data, (0, 1), tmp_path / "workers", packing_buffer_size=20, num_workers=2) as loader:
        assert loader.wait_for_workers(60)
        for _ in zip(range(60), loader, strict=False):
            pass
        state = loader.save_state_rank()
    assert sums_of(state) == sums_of(alone)
    check(tmp_path / "workers", state)


def test_a_record_that_was_cut_short_is_cut_off_and_written_again(data: Path, tmp_path: Path) -> None:
    early = run(data, tmp_path, 1, 20)
    path = ledger_file(tmp_path, 0)
    whole = path.read_bytes()
    run(data, tmp_path, 1, 20, early)
    for length in range(len(whole) + 1, path.stat().st_size, 37):
        os.truncate(path, length)
        RunLedger(tmp_path)
        check(tmp_path, run(data, tmp_path, 1, 25, early))


@pytest.mark.parametrize("tail", [b"\0" * 5, b"\0" * 10_000, b"\xff" * 300, b"\0" * 4096 + b"B" * 4096])
def test_what_a_power_failure_leaves_behind_the_last_record_does_not_count(
    data: Path, tmp_path: Path, tail: bytes
) -> None:
    saved = run(data, tmp_path, 2, 20)
    with ledger_file(tmp_path, 1).open("ab") as file:
        file.write(tail)
    check(tmp_path, saved)
    check(tmp_path, run(data, tmp_path, 2, 20, saved))


@pytest.mark.parametrize("content", [b"", b"bridge_d", b"\0" * 3, b"\0" * 9_000])
def test_a_file_that_a_power_failure_emptied_lacks_what_it_had_and_goes_on(
    data: Path, tmp_path: Path, content: bytes
) -> None:
    saved = run(data, tmp_path, 2, 20)
    ledger_file(tmp_path, 1).write_bytes(content)
    assert sorted(number for number, _ in RunLedger(tmp_path)) == list(range(0, 20, 2))
    run(data, tmp_path, 2, 20, saved)
    assert sorted(number for number, _ in RunLedger(tmp_path)) == [*range(0, 20, 2), *range(20, 40)]


def test_what_may_be_many_records_is_not_searched_without_end(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path, 1, 20)
    with ledger_file(tmp_path, 0).open("ab") as file:
        file.write(b"\xff\xff\xff\xff" + b"\0\0\x10\0____B" * 400_000)  # each as long as a mebibyte, of 5 in all
    begun_s = time.monotonic()
    with pytest.raises(DatasetError, match="is damaged, and more come after it"):
        RunLedger(tmp_path)
    assert time.monotonic() - begun_s < 30


def test_damage_before_whole_records_is_said_and_set_aside_by_a_run_that_goes_on(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = ledger_file(tmp_path, 0)
    early = run(data, tmp_path, 1, 20)
    end = path.stat().st_size
    saved = run(data, tmp_path, 1, 20, early)
    run(data, tmp_path, 1, 10, saved)
    for at, replaced in ((end, b"\xff\xff"), (end, b"\0" * 8), (end + 60, b"?")):  # in its head: as if it were longer
        content = bytearray(path.read_bytes())
        content[at : at + len(replaced)] = replaced
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=f"the record at byte {end} is damaged.*truncate -s {end} ledger_dp"):
            RunLedger(tmp_path)
        gone_on = run(data, tmp_path, 1, 12, early)
        assert f"the record at byte {end} is damaged" in caplog.text
        check(tmp_path, gone_on)
        assert path.with_name(f"{path.name}.damaged-at-{end}").read_bytes() == content
        caplog.clear()
        run(data, tmp_path, 1, 10, run(data, tmp_path, 1, 20, early))


def test_a_folder_without_a_ledger_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ConfigError, match="holds no ledger"):
            RunLedger(folder)


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.plugins.ledger.test_ledger_files import make_loader
loader = make_loader(Path(sys.argv[1]), (0, 1), Path(sys.argv[2]))
for number, _ in enumerate(loader):
    if number == 30:
        print(__import__("json").dumps(loader.save_state_rank()), flush=True)
    if number == 47:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.processes
def test_after_a_kill_the_ledger_has_what_was_saved_and_goes_on(data: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, data, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    saved = json.loads(done.stdout)
    check(tmp_path, saved)
    resumed = run(data, tmp_path, 2, 40, saved)
    check(tmp_path, resumed)
    assert sums_of(resumed) == sums_of(run(data, tmp_path / "alone", 1, 71))
