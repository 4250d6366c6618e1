"""What a machine does to a job: its file system fails, disks and shared memory are full, the kernel kills a worker, and
files belong to somebody else. Run by `make faults`, which says what it could not run, and why.
"""

import ctypes.util
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge_data import FileStoreCachePool
from bridge_data.task.stores import SystemFileStore
from tests.object_store import Bucket
from tests.prepared import write_texts

pytestmark = pytest.mark.machine

ROOT = Path(__file__).parents[2]
NOBODY = 65534
NUM_BATCHES = 100

is_root = os.geteuid() == 0
needs_root = pytest.mark.skipif(not is_root, reason="needs root, to mount and to be another user")
needs_fuse = pytest.mark.skipif(
    not (is_root and os.path.exists("/dev/fuse") and ctypes.util.find_library("fuse3")),
    reason="needs root, /dev/fuse and libfuse (apt install fuse3)",
)


WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
"""Before a command: root, but with no more rights to files of other users than anybody has."""


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """What `command` prints; it gets two minutes."""
    return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=120)


def job(data: Path, num_batches: int = NUM_BATCHES, **settings: object) -> list[object]:
    """The command of a job that reads `num_batches` batches of `data`."""
    options = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    return [sys.executable, "-m", "tests.faults.loader_job", data, num_batches, *options]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that everybody may enter."""
    path = Path("/var/tmp" if is_root else "/tmp") / f"bridge_data_faults_{uuid.uuid4().hex}"
    path.mkdir(mode=0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return write_texts(folder / "data", 600, per_shard=100)


@pytest.fixture(scope="module")
def expected(data: Path) -> str:
    done = run(*job(data, num_workers=0))
    assert done.stdout.count("\n") == NUM_BATCHES, done.stderr
    return done.stdout


@pytest.fixture
def faulty(data: Path, tmp_path: Path) -> Iterator[Path]:
    """The data through a file system that makes faults."""
    mount_point = tmp_path / "mounted"
    mount_point.mkdir()
    server = subprocess.Popen([sys.executable, "-m", "tests.faults.faulty_mount", data, mount_point], cwd=ROOT)
    try:
        deadline = time.monotonic() + 20
        while not mount_point.is_mount():
            assert server.poll() is None and time.monotonic() < deadline, "the file system was not mounted"
            time.sleep(0.05)
        yield mount_point
    finally:
        subprocess.run(["umount", "-l", mount_point], check=False)
        server.kill()
        server.wait()
        (data.parent / "faults.json").unlink(missing_ok=True)


def make_faults(data: Path, **fault: object) -> None:
    (data.parent / "faults.json").write_text(json.dumps(fault))


@needs_fuse
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("error", ["EIO", "ESTALE", "ETIMEDOUT"])
def test_reads_that_fail_now_and_then_change_nothing(
    data: Path, faulty: Path, expected: str, error: str, num_workers: int
) -> None:
    make_faults(data, error=error, every=20)
    done = run(*job(faulty, num_workers=num_workers))
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


@needs_fuse
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shard_that_cannot_be_read_ends_the_run_with_its_name(data: Path, faulty: Path, num_workers: int) -> None:
    make_faults(data, error="EIO", every=1, name="data-0003.tar")
    done = run(*job(faulty, num_workers=num_workers))
    assert done.returncode == 1
    assert f"DatasetError: {faulty}/data-0003.tar: cannot be read: Input/output error" in done.stderr


@needs_fuse
def test_a_file_system_that_hangs_is_told(data: Path, faulty: Path) -> None:
    """It hangs when workers read; where the trainer itself reads, before they are ready, nobody could tell."""
    command = job(faulty, step_s=0.1, watchdog_timeout_seconds=3, fail_on_timeout=True)
    with subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        for _ in range(NUM_BATCHES // 2):
            process.stdout.readline()
        make_faults(data, sleep_s=60, every=1)
        told = process.stderr.read().decode()
    assert process.returncode == 1
    assert "WorkerError" in told and "made no progress for 3" in told


@needs_root
def test_shared_memory_of_one_mebibyte_is_enough(data: Path) -> None:
    """Samples of 1 MiB, batches of 4."""
    expected = run(*job(data, 20, num_workers=0, mib=1))
    mounted = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    done = run("unshare", "--mount", "sh", "-c", mounted, "sh", *job(data, 20, mib=1))
    assert expected.stdout.count("\n") == 20
    assert (done.returncode, done.stdout) == (0, expected.stdout), done.stderr


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk with 64 KiB."""
    mount_point = tmp_path / "small"
    mount_point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", mount_point], check=True)
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", "-l", mount_point], check=True)


SAVE = """
import sys
from bridge_data import BridgeDataError, WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.loader.checkpoint import load_states, save_states
data, folder = sys.argv[1:]
dataset = get_train_dataset(data, worker_config=WorkerConfig(0, 1, 0), batch_size=4, shuffle_buffer_size=100,
                            max_samples_per_sequence=20)
loader = get_savable_loader(dataset)
iterator = iter(loader)
saved = 0
try:
    for step in range(1, 1000):
        next(iterator)
        state = loader.save_state_rank()
        save_states(f"{folder}/iter_{step:07d}", state, step=step, world_size=2)
        saved = step
except BridgeDataError as error:
    print(f"{type(error).__name__}: {error}")
assert saved > 0
load_states(f"{folder}/iter_{saved:07d}", step=saved)
try:
    load_states(f"{folder}/iter_{saved + 1:07d}", step=saved + 1)
except BridgeDataError as error:
    print(f"{type(error).__name__}: {error}")
"""


@needs_root
def test_a_checkpoint_on_a_full_disk_is_refused_and_the_one_before_it_restores(data: Path, full_disk: Path) -> None:
    done = run(sys.executable, "-c", SAVE, data, full_disk)
    assert done.returncode == 0, done.stderr
    told, refused = done.stdout.splitlines()
    assert "StateError" in told and "No space left on device" in told
    assert "StateError" in refused


@needs_root
def test_a_cache_on_a_full_disk_costs_time_only(full_disk: Path, tmp_path: Path) -> None:
    """Files of 40 KiB, of which the disk holds one."""
    (tmp_path / "files").mkdir()
    contents = {f"{number}.bin": bytes([number]) * 40_960 for number in range(10)}
    for name, content in contents.items():
        (tmp_path / "files" / name).write_bytes(content)
    store, pool = SystemFileStore(tmp_path / "files"), FileStoreCachePool(parent_cache_dir=full_disk)
    try:
        lazies = [pool.get_lazy(store, name) for name in contents]
        assert [lazy.get() for lazy in lazies] == list(contents.values())
    finally:
        pool.close()


@needs_root
def test_an_index_that_finds_no_space_names_the_folder_to_set(
    bucket: Bucket, full_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_texts(bucket.folder, 4_000, per_shard=2_000)
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(full_disk))
    done = run(*job(f"{bucket.url}"))
    assert done.returncode == 1
    assert "ConfigError" in done.stderr and "No space left on device; set BRIDGE_DATA_CACHE to a folder" in done.stderr


@pytest.fixture(scope="module")
def of_another(folder: Path) -> Path:
    """Data of another user, one of whose shards only he may read."""
    path = write_texts(folder / "closed", 200, per_shard=50)
    for file in (path, *path.rglob("*")):
        os.chown(file, NOBODY, NOBODY)
    return path


@needs_root
def test_data_of_another_user_is_read_and_nothing_is_written(of_another: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in of_another.rglob("*")}
    done = run(*WITHOUT_RIGHTS, *job(of_another))
    assert (done.returncode, done.stdout) == (0, run(*job(of_another)).stdout), done.stderr

    prepare = [sys.executable, "-m", "bridge_data.cli", "prepare", of_another, "--non-interactive"]
    refused = run(*WITHOUT_RIGHTS, *prepare, "--force-overwrite", "--split-ratio", "1,0,0")
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert f"{of_another}: cannot be written to: [Errno 13] Permission denied" in refused.stderr
    assert {path: path.stat().st_mtime_ns for path in of_another.rglob("*")} == before


@needs_root
def test_a_shard_of_another_user_that_may_not_be_read_is_named(of_another: Path) -> None:
    (of_another / "data-0002.tar").chmod(0o600)
    done = run(*WITHOUT_RIGHTS, *job(of_another))
    assert done.returncode == 1
    assert f"DatasetError: {of_another}/data-0002.tar: cannot be read: Permission denied" in done.stderr


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group whose processes may take 1200 MiB together; of either version of cgroups."""
    root = Path("/sys/fs/cgroup/memory")
    limits = {"memory.limit_in_bytes": str(1200 << 20)}
    if not root.is_dir():
        root, limits = Path("/sys/fs/cgroup"), {"memory.max": str(1200 << 20), "memory.swap.max": "0"}
    group = root / f"bridge_data_{uuid.uuid4().hex}"
    try:
        group.mkdir()
        for name, value in limits.items():
            (group / name).write_text(value)
    except OSError as error:
        pytest.skip(f"needs a control group of its own: {error}")
    try:
        yield group
    finally:
        deadline = time.monotonic() + 20
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        group.rmdir()


def in_group(group: Path, command: list[object]) -> subprocess.CompletedProcess[str]:
    return run("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command)


def hungry_job(data: Path, expected: str, **settings: object) -> list[object]:
    """A job one of whose last samples takes 2000 MiB; workers have started long before."""
    key = json.loads(expected.splitlines()[-10])[0][0]
    return job(data, hungry=key, hungry_mib=2000, step_s=0.1, **settings)


def test_a_worker_that_the_kernel_kills_for_memory_is_replaced(
    data: Path, expected: str, memory_group: Path, tmp_path: Path
) -> None:
    once = tmp_path / "once"
    done = in_group(memory_group, hungry_job(data, expected, hungry_once=str(once)))
    assert once.exists(), "the sample was not encoded"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    assert "SIGKILL" in done.stderr


def test_a_sample_that_always_takes_too_much_memory_is_named(data: Path, expected: str, memory_group: Path) -> None:
    key = json.loads(expected.splitlines()[-10])[0][0]
    done = in_group(memory_group, hungry_job(data, expected))
    assert done.returncode == 1
    assert "WorkerError" in done.stderr and key in done.stderr and "SIGKILL" in done.stderr
