import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError, DatasetError, WorkerError
from bridge_data.prepare import scan_results
from bridge_data.prepare.executors import LocalProcesses, no_progress
from bridge_data.prepare.scan_results import SCANNED, ScanResults, ScanTask
from bridge_data.prepare.tars import PrepareConfig, scan_share
from tests.prepare.same_indexes import assert_same_indexes, copy_unprepared
from tests.shards.tars import prepare_by_ratio, write_shards, write_tar


def results_of(root: Path, names: list[str]) -> ScanResults:
    return ScanResults(root, names, None, digest=False)


def names_of(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("*.tar"))


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
    write_shards(tmp_path, num_shards=10)
    (tmp_path / "data-000003.tar").write_bytes(b"no tar")
    names = names_of(tmp_path)
    done: list[int] = []
    results = results_of(tmp_path, names)
    assert results.scan(LocalProcesses(num_workers), lambda now, total: done.append(now)) == 10
    assert done == list(range(1, 11))
    assert results.missing == ["data-000003.tar"] and "data-000003.tar" in results.errors[0]
    assert results.segment("data-000004.tar").keys() == [f"{number:06d}" for number in range(20, 25)]
    again = results_of(tmp_path, names)
    assert again.scan(LocalProcesses(1), no_progress) == 1  # the results of the others were kept


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


def test_many_small_shards_are_all_known(tmp_path: Path) -> None:
    names = [f"{number:03d}.tar" for number in range(150)]
    for name in names:
        write_tar(tmp_path / name, {f"{name[:3]}.txt": name[:3].encode()})
    (tmp_path / "070.tar").unlink()
    results = results_of(tmp_path, names)
    assert results.scan(LocalProcesses(2), no_progress) == 150
    assert results.missing == ["070.tar"]
    assert len(list((tmp_path / SCANNED).iterdir())) < 20
    assert [results.segment(name).keys() for name in ("000.tar", "149.tar")] == [["000"], ["149"]]


def test_a_result_counts_only_for_the_shard_that_it_was_made_of(tmp_path: Path) -> None:
    write_shards(tmp_path)
    names = names_of(tmp_path)
    results_of(tmp_path, names).scan(LocalProcesses(1), no_progress)
    assert results_of(tmp_path, names).missing == []
    os.utime(tmp_path / names[1], ns=(1, 1))
    assert results_of(tmp_path, names).missing == [names[1]]
    assert ScanResults(tmp_path, names, None, digest=True).missing == names  # there are no digests
    assert ScanResults(tmp_path, names, None, digest=False, rescan=True).missing == names


def test_half_a_result_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_shards(tmp_path)
    names = names_of(tmp_path)
    results_of(tmp_path, names).scan(LocalProcesses(1), no_progress)
    files = sorted((tmp_path / SCANNED).iterdir())
    files[0].write_bytes(files[0].read_bytes()[:-10])
    damaged = bytearray(files[1].read_bytes())
    damaged[130] ^= 1  # within a page
    files[1].write_bytes(damaged)
    assert len(results_of(tmp_path, names).missing) == 2
    assert "is damaged" in caplog.text
    assert prepare_by_ratio(tmp_path, "1,0,0").num_samples == 20


def test_notes_of_a_scan_are_told_by_who_merges(tmp_path: Path) -> None:
    write_shards(tmp_path)
    write_tar(tmp_path / "z.tar", {"1.txt": b"", "README": b""})
    for index in range(2):
        _, _, notes = scan_share(tmp_path, ScanTask(index, 2), PrepareConfig(num_workers=1))
        assert bool(notes) == (index == 0)
    (note,) = prepare_by_ratio(tmp_path, "1,0,0", merge=True).notes
    assert "1 members, such as 'README'" in note


def test_tasks_and_merge_give_what_one_preparation_gives(tmp_path: Path) -> None:
    write_shards(tmp_path / "one", num_shards=11)
    copy_unprepared(tmp_path / "one", tmp_path / "tasks")
    prepare_by_ratio(tmp_path / "one")
    config = PrepareConfig(num_workers=1)
    told = [scan_share(tmp_path / "tasks", ScanTask(index, 3), config)[:2] for index in (2, 0, 1, 1)]
    assert told == [(3, 3), (4, 4), (4, 4), (4, 0)]
    found = prepare_by_ratio(tmp_path / "tasks", merge=True)
    assert (found.num_scanned, found.num_samples) == (11, 55)
    assert_same_indexes(tmp_path / "one", tmp_path / "tasks")
    assert not (tmp_path / "tasks" / SCANNED).exists()


def test_a_merge_says_which_tasks_are_missing(tmp_path: Path) -> None:
    write_shards(tmp_path, num_shards=9)
    config = PrepareConfig(num_workers=1)
    with pytest.raises(DatasetError, match=r"9 of 9 shards are not scanned, such as data-000000\.tar: no task has"):
        prepare_by_ratio(tmp_path, merge=True)
    for index in (0, 3):
        scan_share(tmp_path, ScanTask(index, 4), config)
    with pytest.raises(DatasetError, match=r"4 of 9 shards .* tasks 1, 2 of 4 \(counted from 0\) have not finished"):
        prepare_by_ratio(tmp_path, merge=True)
    assert not (tmp_path / ".nv-meta").exists()
    for index in (1, 2):
        scan_share(tmp_path, ScanTask(index, 4), config)
    write_tar(tmp_path / "new.tar", {"new.txt": b"new"})
    with pytest.raises(DatasetError, match=r"1 of 10 shards .* new\.tar: they are new, or have changed since all 4"):
        prepare_by_ratio(tmp_path, merge=True)
    assert prepare_by_ratio(tmp_path).num_samples == 46  # scans what is missing


def test_a_task_that_finds_damage_has_not_finished(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "data-000001.tar").write_bytes(b"no tar")
    config = PrepareConfig(num_workers=1)
    scan_share(tmp_path, ScanTask(0, 2), config)
    with pytest.raises(DatasetError, match=r"data-000001\.tar: no readable tar header"):
        scan_share(tmp_path, ScanTask(1, 2), config)
    with pytest.raises(DatasetError, match=r"1 of 4 shards .* task 1 of 2"):
        prepare_by_ratio(tmp_path, merge=True)


def test_tasks_after_a_preparation_scan_what_is_new(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path)
    write_tar(tmp_path / "new.tar", {"new.txt": b"new"})
    config = PrepareConfig(num_workers=1)
    assert sum(scan_share(tmp_path, ScanTask(index, 2), config)[1] for index in range(2)) == 1
    assert prepare_by_ratio(tmp_path, merge=True).num_scanned == 1
    for index in range(2):
        scan_share(tmp_path, ScanTask(index, 2), PrepareConfig(num_workers=1, rescan=True))
    assert prepare_by_ratio(tmp_path, merge=True, rescan=True).num_scanned == 5


def test_wrong_tasks() -> None:
    for index, num_tasks in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ConfigError, match=r"task_index=|num_tasks="):
            ScanTask(index, num_tasks)
    with pytest.raises(ConfigError, match="leave merge out"):
        PrepareConfig(merge=True, fix_duplicates=True)


def test_a_data_set_is_not_prepared_while_a_task_scans_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path)
    told: list[str] = []
    scan_shard = scan_results.scan_shard

    def scan_and_prepare(*arguments: object, **settings: object) -> object:
        if not told:
            told.append("")
            with pytest.raises(DatasetError, match="another process is preparing it") as caught:
                prepare_by_ratio(tmp_path)
            told.append(str(caught.value))
            scan_share(tmp_path, ScanTask(1, 2), PrepareConfig(num_workers=1))  # another task may
        return scan_shard(*arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(scan_results, "scan_shard", scan_and_prepare)
    scan_share(tmp_path, ScanTask(0, 2), PrepareConfig(num_workers=1))
    assert len(told) == 2
    assert prepare_by_ratio(tmp_path, merge=True).num_scanned == 4


def killed_at(step: int, root: Path) -> int:
    """Prepare `root` in a child that is killed at call number `step` of those that scan, or change files."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    calls = 0

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def counting(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return counting

    try:
        scan_results.scan_shard = counted(scan_results.scan_shard)  # type: ignore[assignment]
        for name in ("replace", "unlink", "fsync"):
            setattr(os, name, counted(getattr(os, name)))
        prepare_by_ratio(root)
    finally:
        os._exit(0)


@pytest.mark.processes
def test_killed_twenty_times_and_resumed_the_files_are_the_same(tmp_path: Path) -> None:
    write_shards(tmp_path / "one", num_shards=400, samples_per_shard=2)
    copy_unprepared(tmp_path / "one", tmp_path / "killed")
    prepare_by_ratio(tmp_path / "one")
    left, rng = [400], random.Random(0)
    for _ in range(20):
        assert killed_at(rng.randint(2, 66), tmp_path / "killed") == -signal.SIGKILL
        left.append(len(results_of(tmp_path / "killed", names_of(tmp_path / "killed")).missing))
        assert left[-1] <= left[-2]  # nothing is scanned twice
    assert len(set(left)) > 3
    prepare_by_ratio(tmp_path / "killed")
    assert_same_indexes(tmp_path / "one", tmp_path / "killed")
    assert not [*(tmp_path / "killed").rglob(".*.tmp")] and not (tmp_path / "killed" / SCANNED).exists()
