import os
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bridge_data.errors import ConfigError, DatasetError, WorkerError
from bridge_data.prepare import scan_results
from bridge_data.prepare.executors import LocalProcesses, no_progress
from bridge_data.prepare.scan_results import SCANNED, ScanResults, ScanTask
from bridge_data.prepare.tars import PrepareConfig, scan_share
from tests.data.tars import prepare_by_ratio, write_shards, write_tar
from tests.prepare.killed import in_child, killed_at
from tests.prepare.same_indexes import assert_same_indexes, copy_unprepared


def results_of(root: Path, names: list[str]) -> ScanResults:
    return ScanResults(root, names, None, digest=False)


def names_of(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("*.tar"))


ALONE = PrepareConfig(num_workers=1)


SCAN_IN_PROCESSES = """
import os, sys
from pathlib import Path
from bridge_data.prepare import scan_results
from bridge_data.prepare.executors import LocalProcesses, no_progress
scan_shard = scan_results.scan_shard
def told(root, name, **settings):
    Path(root, name + ".pid").write_text(str(os.getpid()))
    if os.environ.get("DIE") == name:
        os.kill(os.getpid(), 9)
    return scan_shard(root, name, **settings)
scan_results.scan_shard = told
root = Path(sys.argv[1])
names = sorted(path.name for path in root.glob("*.tar"))
results = scan_results.ScanResults(root, names, None, digest=False)
assert results.scan(LocalProcesses(3), no_progress) == len(names) and not results.missing
assert os.getpid() not in {int(Path(root, name + ".pid").read_text()) for name in names}
"""


@pytest.mark.processes
def test_processes_do_the_work(tmp_path: Path) -> None:
    write_shards(tmp_path, num_shards=12)
    command = [sys.executable, "-c", SCAN_IN_PROCESSES, str(tmp_path)]
    died = subprocess.run(
        command, env=os.environ | {"DIE": "data-000004.tar"}, capture_output=True, text=True, check=False
    )
    assert f"{WorkerError.__name__}: a process that scanned shards of {tmp_path} was killed" in died.stderr
    assert results_of(tmp_path, names_of(tmp_path)).missing  # that shard, at least
    for path in (tmp_path / SCANNED).iterdir():
        path.unlink()
    with subprocess.Popen(command) as program:
        assert program.wait() == 0
    workers = {path.read_text() for path in tmp_path.glob("*.pid")}  # one may do it all where a core is busy
    assert workers and str(program.pid) not in workers


@pytest.mark.parametrize("num_workers", [1, 4])
def test_faults_are_collected_and_the_others_are_known(tmp_path: Path, num_workers: int) -> None:
    names = [f"{number:03d}.tar" for number in range(150)]
    for name in names:
        write_tar(tmp_path / name, {f"{name[:3]}.txt": name[:3].encode()})
    (tmp_path / "070.tar").unlink()
    (tmp_path / "071.tar").write_bytes(b"no tar")
    done: list[int] = []
    results = results_of(tmp_path, names)
    assert results.scan(LocalProcesses(num_workers), lambda now, total: done.append(now)) == 150
    assert done == list(range(1, 151))
    assert results.missing == ["070.tar", "071.tar"] and any("071.tar" in error for error in results.errors)
    assert len(list((tmp_path / SCANNED).iterdir())) < 50
    assert [results.segment(name).keys() for name in ("000.tar", "149.tar")] == [["000"], ["149"]]
    assert results_of(tmp_path, names).scan(LocalProcesses(1), no_progress) == 2  # the results of the others were kept


@pytest.mark.parametrize("num_workers", [1, 3])
def test_shards_come_in_order_up_to_one_that_cannot_be_used(tmp_path: Path, num_workers: int) -> None:
    write_shards(tmp_path, num_shards=10)
    names = names_of(tmp_path)
    results_of(tmp_path, [names[0], *names[4:6]]).scan(LocalProcesses(1), no_progress)
    (tmp_path / names[7]).write_bytes(b"no tar")
    results = results_of(tmp_path, names)
    known = []
    for name in results.scan_in_order(LocalProcesses(num_workers), no_progress):
        assert len(results.segment(name)) == 5
        known.append(name)
    assert known == names[:7]
    assert results.missing == [names[7]]
    assert list(results_of(tmp_path, names[:7]).scan_in_order(LocalProcesses(num_workers), no_progress)) == names[:7]


def test_a_result_counts_if_it_is_whole_and_for_the_shard_that_it_was_made_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_shards(tmp_path)
    names = names_of(tmp_path)
    results_of(tmp_path, names).scan(LocalProcesses(1), no_progress)
    assert results_of(tmp_path, names).missing == []
    assert ScanResults(tmp_path, names, None, digest=True).missing == names  # there are no digests
    assert ScanResults(tmp_path, names, None, digest=False, rescan=True).missing == names
    os.utime(tmp_path / names[1], ns=(1, 1))
    assert results_of(tmp_path, names).missing == [names[1]]
    files = sorted((tmp_path / SCANNED).iterdir())
    files[0].write_bytes(files[0].read_bytes()[:-10])
    damaged = bytearray(files[-1].read_bytes())
    damaged[130] ^= 1  # within a page
    files[-1].write_bytes(damaged)
    assert len(results_of(tmp_path, names).missing) >= 2 and "is damaged" in caplog.text
    assert prepare_by_ratio(tmp_path, "1,0,0").num_samples == 20


def test_tasks_and_merge_give_what_one_preparation_gives(tmp_path: Path) -> None:
    write_shards(tmp_path / "one", num_shards=11)
    write_tar(tmp_path / "one/z.tar", {"1.txt": b"", "README": b""})
    copy_unprepared(tmp_path / "one", tmp_path / "tasks")
    prepare_by_ratio(tmp_path / "one")
    told = [scan_share(tmp_path / "tasks", ScanTask(index, 3), ALONE) for index in (2, 0, 1, 1)]
    assert [(scanned, own) for scanned, own, _ in told] == [(4, 4), (4, 4), (4, 4), (4, 0)]
    found = prepare_by_ratio(tmp_path / "tasks", merge=True)
    assert (found.num_scanned, found.num_samples) == (12, 56)
    (note,) = found.notes
    assert "1 members, such as 'README'" in note
    assert_same_indexes(tmp_path / "one", tmp_path / "tasks")
    assert not (tmp_path / "tasks" / SCANNED).exists()
    write_tar(tmp_path / "tasks/new.tar", {"new.txt": b"new"})
    for rescan, num_scanned in ((False, 1), (True, 13)):
        config = PrepareConfig(num_workers=1, rescan=rescan)
        assert sum(scan_share(tmp_path / "tasks", ScanTask(index, 2), config)[1] for index in range(2)) == num_scanned
        assert prepare_by_ratio(tmp_path / "tasks", merge=True, rescan=rescan).num_scanned == num_scanned


def test_a_merge_says_which_tasks_are_missing_or_have_found_damage(tmp_path: Path) -> None:
    write_shards(tmp_path, num_shards=9)
    names = names_of(tmp_path)
    whole = (tmp_path / names[1]).read_bytes()

    def refused(told: str) -> None:
        with pytest.raises(DatasetError, match=told):
            prepare_by_ratio(tmp_path, merge=True)
        assert not (tmp_path / ".nv-meta").exists()

    refused(r"9 of 9 shards are not scanned, such as data-000000\.tar: no task has")
    for index in (0, 3):
        scan_share(tmp_path, ScanTask(index, 4), ALONE)
    refused(r"4 of 9 shards .* tasks 1, 2 of 4 \(counted from 0\) have not finished")
    (tmp_path / names[1]).write_bytes(b"no tar")
    with pytest.raises(DatasetError, match=r"data-000001\.tar: no readable tar header"):
        scan_share(tmp_path, ScanTask(1, 4), ALONE)
    refused(r"tasks 1, 2 of 4")
    (tmp_path / names[1]).write_bytes(whole)
    for index in (1, 2):
        scan_share(tmp_path, ScanTask(index, 4), ALONE)
    write_tar(tmp_path / "new.tar", {"new.txt": b"new"})
    refused(r"1 of 10 shards .* new\.tar: they are new, or have changed since all 4")
    assert prepare_by_ratio(tmp_path).num_samples == 46  # scans what is missing
    for settings in ({"index": 2, "num_tasks": 2}, {"index": -1, "num_tasks": 2}, {"index": 0, "num_tasks": 0}):
        with pytest.raises(ConfigError, match=r"task_index=|num_tasks="):
            ScanTask(*settings.values())
    with pytest.raises(ConfigError, match="leave merge out"):
        PrepareConfig(merge=True, fix_duplicates=True)


def test_a_data_set_is_not_prepared_while_a_task_scans_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path)
    scan_shard = scan_results.scan_shard

    def scan_and_prepare(*arguments: Any, **settings: Any) -> object:
        monkeypatch.setattr(scan_results, "scan_shard", scan_shard)
        with pytest.raises(DatasetError, match="another process is preparing it"):
            prepare_by_ratio(tmp_path)
        scan_share(tmp_path, ScanTask(1, 2), ALONE)  # another task may
        return scan_shard(*arguments, **settings)

    monkeypatch.setattr(scan_results, "scan_shard", scan_and_prepare)
    scan_share(tmp_path, ScanTask(0, 2), ALONE)
    assert scan_results.scan_shard is scan_shard, "it was called"
    assert prepare_by_ratio(tmp_path, merge=True).num_scanned == 4


def counting_scans(step: int, root: Path) -> None:
    """Prepare `root`, and be killed at call number `step` of those that scan, or change files."""
    killed_at(step, partial(prepare_by_ratio, root), (scan_results, "scan_shard"))


@pytest.mark.slow
@pytest.mark.processes
def test_killed_twenty_times_and_resumed_the_files_are_the_same(tmp_path: Path) -> None:
    write_shards(tmp_path / "one", num_shards=400, samples_per_shard=2)
    copy_unprepared(tmp_path / "one", tmp_path / "killed")
    prepare_by_ratio(tmp_path / "one")
    left, rng = [400], random.Random(0)
    for _ in range(20):
        assert in_child(partial(counting_scans, rng.randint(2, 66), tmp_path / "killed")) == -signal.SIGKILL
        left.append(len(results_of(tmp_path / "killed", names_of(tmp_path / "killed")).missing))
        assert left[-1] <= left[-2]  # nothing is scanned twice
    assert len(set(left)) > 3
    prepare_by_ratio(tmp_path / "killed")
    assert_same_indexes(tmp_path / "one", tmp_path / "killed")
    assert not [*(tmp_path / "killed").rglob(".*.tmp")] and not (tmp_path / "killed" / SCANNED).exists()
