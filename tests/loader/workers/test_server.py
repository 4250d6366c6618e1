"""However a trainer ends, nothing of it is left."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bridge_data.child_process import SINGLE_THREADED
from tests.prepared import write_texts
from tests.waiting import open_files

ROOT = Path(__file__).parents[3]

TRAINERS = """
# One process that imports what is slow to import, and forks a trainer for each start method that it is given.
import itertools, os, signal, sys
from bridge_data import WorkerConfig, get_train_dataset
from bridge_data.loader import get_loader
from bridge_data.child_process import die_with_parent

def data():
    if "tensors" in method:
        from tests.loader.streams import Streams, config
        return Streams(config(1, 1))  # whose batches are in shared memory
    return get_train_dataset(
        f"{folder}/texts", worker_config=WorkerConfig(0, 1, 1), batch_size=4,
        shuffle_buffer_size=None, max_samples_per_sequence=None,
    )

folder, *methods = sys.argv[1:]
trainers = []
for number, method in enumerate(methods):
    if (pid := os.fork()) == 0:
        die_with_parent(os.getppid())  # a test that fails leaves none behind
        break
    trainers.append(pid)
else:
    for pid in trainers:
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    sys.exit()

os.setsid()  # Ctrl-C reaches all processes of the group
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background of a shell ignores
os.dup2(os.open(f"{folder}/errors-{number}", os.O_WRONLY | os.O_CREAT), 2)
loader = get_loader(data(), start_method=method.partition(" ")[0])
assert loader.wait_for_workers()
kept = list(itertools.islice(loader, 8))
with open(f"{folder}/ready-{number}", "w") as ready:
    ready.write(str(os.getpid()))
with open(f"{folder}/command-{number}") as command:
    what = command.read()
if what == "raise":
    raise RuntimeError("the trainer failed")
if what == "go on":
    for batch in loader:
        pass
"""

ENDINGS = [
    ("server", "raise", None, 1),
    ("server", "go on", signal.SIGINT, -signal.SIGINT),
    ("server tensors", "go on", signal.SIGKILL, -signal.SIGKILL),
    ("spawn", "go on", signal.SIGKILL, -signal.SIGKILL),
    ("server", "return", None, 0),
    ("server", "go on", signal.SIGTERM, -signal.SIGTERM),
]


@pytest.mark.processes
def test_no_process_and_no_file_is_left_however_the_trainer_ends(tmp_path: Path) -> None:
    for number in range(len(ENDINGS)):
        os.mkfifo(tmp_path / f"ready-{number}")
        os.mkfifo(tmp_path / f"command-{number}")
    write_texts(tmp_path / "texts", 40)
    methods = [method for method, *_ in ENDINGS]
    trainers = subprocess.Popen(
        [sys.executable, "-c", TRAINERS, str(tmp_path), *methods],
        cwd=ROOT,
        env=os.environ | SINGLE_THREADED,
        stdout=subprocess.PIPE,
        text=True,
    )
    for number, (_, command, sent, _) in enumerate(ENDINGS):
        trainer = psutil.Process(int((tmp_path / f"ready-{number}").read_text()))
        children = trainer.children(recursive=True)
        assert len(children) == 2
        assert [shared_files(process.pid) for process in (trainer, *children)] == [[]] * 3
        ends = [os.pidfd_open(child.pid) for child in children]
        (tmp_path / f"command-{number}").write_text(command)
        if sent == signal.SIGINT:
            os.killpg(trainer.pid, sent)
        elif sent is not None:
            trainer.send_signal(sent)
        for end in ends:
            assert select.select([end], [], [], 60)[0], f"a process outlived its trainer: {ENDINGS[number]}"
            os.close(end)
    codes = trainers.communicate(timeout=30)[0].split()
    assert codes == [str(int(code)) for *_, code in ENDINGS]
    errors = [(tmp_path / f"errors-{number}").read_text() for number in range(len(ENDINGS))]
    assert [text.count("Traceback") for text in errors] == [1, 1, 0, 0, 0, 0], errors
    told = [text for text in errors if "KeyboardInterrupt" not in text and "trainer failed" not in text]
    assert {line.partition(" ")[0] for line in "".join(told).splitlines()} <= {"waiting"}, "on a slow machine alone"


def shared_files(pid: int) -> list[str]:
    """Files of shared memory that have a name, and so could be left behind."""
    mapped = Path(f"/proc/{pid}/maps").read_text().split()
    return [name for name in (*open_files(pid), *mapped) if name.startswith("/dev/shm")]


IMPORTS = """
import itertools, sys
import psutil
from bridge_data import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset

class Lengths(DefaultTaskEncoder):
    def encode_sample(self, sample):
        sample.text = len(sample.text)
        return sample

def have_torch():
    children = psutil.Process().children(recursive=True)
    return {child.pid: any("libtorch" in area.path for area in child.memory_maps()) for child in children}

def start(encoder):
    dataset = get_train_dataset(
        sys.argv[1], worker_config=WorkerConfig(0, 1, 2), batch_size=4, task_encoder=encoder,
        shuffle_buffer_size=None, max_samples_per_sequence=None,
    )
    loader = get_savable_loader(dataset)
    assert loader.wait_for_workers()
    return loader, list(itertools.islice(loader, 6))

texts, of_texts = start(DefaultTaskEncoder())
before = have_torch()
assert len(before) == 3 and not any(before.values()), before
lengths, of_lengths = start(Lengths())
after = have_torch()
(server,) = psutil.Process().children()
assert after[server.pid], "each worker would import torch by itself"
assert sum(after.values()) == 3 and len(after) == 5, after
assert [list(map(len, batch.text)) for batch in of_texts] == [batch.text for batch in of_lengths]
"""


@pytest.mark.processes
def test_torch_is_imported_once_and_only_where_data_may_need_it(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "data", 60, lambda number: "x" * number)
    subprocess.run([sys.executable, "-c", IMPORTS, str(folder)], cwd=ROOT, check=True, timeout=120)


IMPORTING = """
import os
from types import SimpleNamespace
from bridge_data.loader.workers import server
server._import_for_workers(["pyarrow", "late", "quiet", "busy"], SimpleNamespace(write=lambda text: None))
server.worker = SimpleNamespace(main=lambda *descriptors: os._exit(0))
os.waitpid(server._fork_worker(-1, -1), 0)
"""


@pytest.mark.processes
def test_a_module_that_starts_a_thread_before_workers_are_forked_is_named_but_for_pyarrow(tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text("")
    (tmp_path / "busy.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    # As jemalloc's, which has the name of the process until it has one of its own.
    (tmp_path / "late.py").write_text(
        "import ctypes, threading, time\n"
        "run = lambda: (time.sleep(0.05), ctypes.CDLL(None).prctl(15, b'jemalloc_bg_thd'), time.sleep(60))\n"
        "threading.Thread(target=run, daemon=True).start()\n"
    )
    environment = os.environ | SINGLE_THREADED | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", IMPORTING], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stderr.count("started a thread") == 1, done.stderr
    assert "importing busy started a thread" in done.stderr
    assert "DeprecationWarning" not in done.stderr, "Python tells the same of each worker, and does not name the module"
