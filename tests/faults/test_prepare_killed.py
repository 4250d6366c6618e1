"""`prepare` killed, run twice at once, on a full disk and in a folder that may not be written: nothing half-written is
ever taken for whole, and the next run completes."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bridge_data.data import ShardReader, open_shards
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plugins.doctor.lint import LintConfig, lint
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import PrepareConfig, prepare
from tests.data.tars import write_tar
from tests.prepare.killed import in_child, killed_at

NUM_SHARDS, SAMPLES = 12, 30

RATIOS = {"a": "6,6,0", "b": "2,10,0"}
"""Two preparations, told apart by their split and the part of their field."""

PARTS = {"a": "txt", "b": "text"}

pytestmark = pytest.mark.processes


def shard(number: int, samples: int = SAMPLES) -> dict[str, bytes]:
    keys = [f"{number:02d}{sample:04d}" for sample in range(samples)]
    return {f"{key}.{part}": f"{key} {part}".encode() for key in keys for part in ("text", "txt")}


def write_folder(folder: Path, samples: int = SAMPLES) -> Path:
    """A folder of shards."""
    for number in range(NUM_SHARDS):
        write_tar(folder / f"in/{number:02d}.tar", shard(number, samples))
    return folder


def definition(name: str) -> dict[str, object]:
    return {
        "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
        "field_map": {"text": PARTS[name]},
    }


def prepare_as(folder: Path, name: str) -> None:
    """Prepare `folder` as `name` says."""
    split = partial(split_by_ratio, ratio=parse_ratio(RATIOS[name]))
    config = PrepareConfig(num_workers=1, rescan=True)
    prepare(folder, split, config, definitions={"dataset.yaml": definition(name)})


def state_of(folder: Path) -> str:
    """`a` or `b`, if the data set is wholly as this one prepares it; else the error that says that it is not whole."""
    try:
        parts = {part: open_shards(folder, part) for part in ("train", "val")}
    except (ConfigError, DatasetError) as error:
        return str(error)
    sizes = {part: len(shards.names) for part, shards in parts.items()}
    (name,) = (name for name, ratio in RATIOS.items() if ratio == f"{sizes['train']},{sizes['val']},0")
    assert f"text: {PARTS[name]}\n" in (folder / ".nv-meta/dataset.yaml").read_text()
    assert lint(folder, LintConfig(num_workers=1)).counts == {}
    return name


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / ".nv-meta").iterdir()}


def timed(action: Callable[[], object], seconds: float) -> None:
    """Do this, and end this process without a word after a time, as SIGKILL would."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    action()


@pytest.mark.parametrize("num_moments", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_at_random_moments(num_moments: int, tmp_path: Path) -> None:
    folder, rng = write_folder(tmp_path), random.Random(0)
    started = time.monotonic()
    prepare_as(folder, "a")
    seconds = time.monotonic() - started  # about: the machine may be busier, or less busy, from now on
    seen = {"killed": 0, "a": 0, "b": 0, "refused": 0}
    for moment in range(num_moments):
        if moment % 10 == 0:
            shutil.rmtree(folder / ".nv-meta")  # the first preparation
        name = rng.choice("ab")
        status = in_child(partial(timed, partial(prepare_as, folder, name), rng.uniform(0.001, 1.3 * seconds)))
        assert status in (0, -signal.SIGALRM)
        seen["killed"] += status != 0
        seconds *= 1.25 if status != 0 else 0.8
        state = state_of(folder) if (folder / ".nv-meta").exists() else "not prepared"
        assert state == name or status != 0
        seen[state if state in RATIOS else "refused"] += 1
        assert state in RATIOS or "bridge-data prepare" in state or state == "not prepared"
    assert seen["killed"] > num_moments // 5 and seen["a"] and seen["b"] and (seen["refused"] or num_moments < 100)
    prepare_as(folder, "b")
    assert state_of(folder) == "b"
    assert not [path.name for path in folder.rglob(".*.tmp")]


def test_killed_at_every_step_of_the_commit(tmp_path: Path) -> None:
    """Random moments seldom meet the milliseconds in which files are replaced."""
    folder = write_folder(tmp_path / "set", 3)
    prepare_as(folder, "a")
    states = []
    for step in range(100):
        status = in_child(partial(killed_at, step, partial(prepare_as, folder, "b")))
        states.append(state_of(folder))
        if status == 0:
            break
        assert status == -signal.SIGKILL
        prepare_as(folder, "a")
        assert state_of(folder) == "a" and not [*folder.rglob(".*.tmp")]
    refused = [state for state in states if state not in RATIOS]
    assert len(refused) >= 5 and all("was until that was interrupted" in state for state in refused)
    assert states == ["a"] * states.count("a") + refused + ["b"] * states.count("b")
    assert states.count("a") > 5 and states[-1] == "b"


def command(folder: Path, name: str, *flags: str) -> list[str]:
    field_map = f'{{"text": "{PARTS[name]}"}}'
    run = [sys.executable, "-m", "bridge_data.cli", "prepare", str(folder), "--non-interactive", "--no-progress"]
    flags = (*flags, "--force-overwrite", "--rescan", "--sample-type", "TextSample", "--field-map", field_map)
    return [*run, "--split-ratio", RATIOS[name], *flags]


@pytest.mark.slow
def test_the_command_killed_at_a_hundred_random_moments(tmp_path: Path) -> None:
    """With processes of its own, which end with it."""
    folder, rng = write_folder(tmp_path, 400), random.Random(1)
    started = time.monotonic()
    subprocess.run(command(folder, "a", "--num-workers", "2"), check=True, capture_output=True)
    seconds = time.monotonic() - started
    num_killed = 0
    for _ in range(100):
        name = rng.choice("ab")
        with subprocess.Popen(
            command(folder, name, "--num-workers", "2"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as run:
            try:
                run.wait(rng.uniform(0.3, 1.1) * seconds)
            except subprocess.TimeoutExpired:
                run.kill()
            assert run.stderr is not None
            assert b"Traceback" not in run.stderr.read()  # also waits for the processes of the run
            assert run.wait() in (0, -signal.SIGKILL)
            num_killed += run.returncode != 0
        state = state_of(folder)
        assert state in RATIOS or "bridge-data prepare" in state
        assert run.returncode != 0 or state == name
    assert num_killed > 50
    subprocess.run(command(folder, "b"), check=True, capture_output=True)
    assert state_of(folder) == "b" and not [*folder.rglob(".*.tmp")]


def test_two_at_once_give_one_or_the_other(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, 400)
    for _ in range(2):
        runs = {name: subprocess.Popen(command(folder, name), stderr=subprocess.PIPE, text=True) for name in RATIOS}
        ended = {name: (run.communicate()[1], run.returncode) for name, run in runs.items()}
        won = {name for name, (_, status) in ended.items() if status == 0}
        assert won and state_of(folder) in won
        for name in RATIOS.keys() - won:
            assert "another process is preparing it" in ended[name][0]


def limited(num_bytes: int, action: Callable[[], object]) -> None:
    """Do this where no file can grow beyond this size, as if the disk were full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
    action()


def test_no_space_leaves_what_was_there(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set")
    limits = [0, 100, 300, 2_000, 10_000, 40_000]
    for limit in limits:
        for path in folder.rglob("*.tar.idx"):
            path.unlink()
        assert in_child(partial(limited, limit, partial(prepare_as, folder, "a"))) == 1, limit
        assert not (folder / ".nv-meta").exists() and not [*folder.rglob(".*.tmp")]
    prepare_as(folder, "a")
    before = contents(folder)
    for limit in limits:
        assert in_child(partial(limited, limit, partial(prepare_as, folder, "b"))) == 1
        assert contents(folder) == before and state_of(folder) == "a"


def test_a_full_file_system(tmp_path: Path) -> None:
    """A tmpfs too small for the index."""
    folder = tmp_path / "set"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a file system: {mounted.stderr.strip()}")
    try:
        for number in range(8):
            write_tar(folder / f"{number}.tar", shard(number))
        with open(folder / "ballast", "wb") as file:
            file.write(bytes(shutil.disk_usage(folder).free - 65_536))
        with pytest.raises(DatasetError, match=r"cannot be written to: .*(No space left|full)"):
            prepare_as(folder, "a")
        assert not (folder / ".nv-meta").exists()
        (folder / "ballast").unlink()
        prepare_as(folder, "a")
        assert lint(folder, LintConfig(num_workers=1)).counts == {}
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_folder_that_may_not_be_written() -> None:
    """As another user where this one may write anywhere."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_folder(Path(scratch) / "set", 3)
        os.chmod(scratch, 0o755)
        for path in (folder, folder / "in"):
            path.chmod(0o555)
        reading, writing = os.pipe()

        def told() -> None:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            try:
                prepare_as(folder, "a")
            except DatasetError as error:
                os.write(writing, str(error).encode())
                raise

        assert in_child(told) == 1
        os.close(writing)
        with open(reading) as pipe:
            assert f"{folder}: cannot be written to: [Errno 13] Permission denied" in pipe.read()
        folder.chmod(0o755)
        (folder / "in").chmod(0o755)
        assert not (folder / ".nv-meta").exists()


def test_what_was_prepared_is_read_while_it_is_prepared_again(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, 3)
    prepare_as(folder, "a")
    reader = ShardReader(open_shards(folder, "train"))
    texts = [reader.read(number).parts["txt"] for number in range(len(reader))]
    prepare_as(folder, "b")
    assert [reader.read(number).parts["txt"] for number in range(len(reader))] == texts
