"""What goes wrong before or in the first samples of a loader with workers: a hang, a crash or an exception of a hook,
and a module that hangs, crashes or fails when it is imported. Hooks never run in the trainer."""

import dataclasses
import errno
import gc
import itertools
import json
import logging
import os
import random
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import bridge_data
from bridge_data import (
    DefaultTaskEncoder,
    TextSample,
    WorkerConfig,
    WorkerError,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from bridge_data.loader import SavableDataLoader
from bridge_data.loader.workers import worker_pool
from bridge_data.loader.workers.launch import EarlyServer
from bridge_data.loader.workers.messages import Channel
from tests.prepared import write_texts
from tests.waiting import until

NUM_SAMPLES = 48
RUNS = 200
FAULTS = "hang", "SIGSEGV", "ValueError"
USES = "training", "validation", "restored"

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("worker_server")]


@dataclasses.dataclass
class Faulty(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Has done to it, once, what the file with the name of a sample's text says; knows the process that made it."""

    folder: Path
    trainer: int = dataclasses.field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        super().__init__()

    @stateless
    def encode_sample(self, sample: TextSample) -> TextSample:
        assert os.getpid() != self.trainer or not self.folder.exists(), "a hook runs in the trainer"
        fault = self.folder / sample.text
        if fault.exists():
            action = fault.read_text()
            if action != "ValueError":  # which is of the sample: any worker meets it
                fault.unlink()
            if action == "hang":
                threading.Event().wait()
            if action == "SIGSEGV":
                os.kill(os.getpid(), signal.SIGSEGV)
            raise ValueError(f"no token for {sample.text}")
        return sample


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("starts") / "data", NUM_SAMPLES, per_shard=8, ratio="2,1,0")


def open_loader(data: Path, use: str, encoder: Any, num_workers: int, **options: Any) -> SavableDataLoader:
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_lanes=6)
    if use == "validation":
        dataset = get_val_dataset(data, worker_config=config, batch_size=2, task_encoder=encoder)
    else:
        shuffle = {"shuffle_buffer_size": 8, "max_samples_per_sequence": 4}
        dataset = get_train_dataset(data, worker_config=config, batch_size=2, task_encoder=encoder, **shuffle)
    return get_savable_loader(dataset, **options)


def texts(loader: SavableDataLoader, num: int = 12) -> list[list[str]]:
    return [batch.text for batch in itertools.islice(loader, num)]


def check_run(data: Path, folder: Path, use: str, fault: str, at: int, num_workers: int) -> None:
    """The stream with a fault at one of the first samples is that of a run in one process; an exception leaves its
    sample out, and is counted."""
    with open_loader(data, use, Faulty(folder / "none"), 0) as whole:
        state = None
        if use == "restored":
            texts(whole, 5)
            state = json.loads(json.dumps(whole.save_state_rank()))
        sound = texts(whole)
    sample = [text for batch in sound for text in batch][at]
    faults = folder / "faults"
    faults.mkdir()
    (faults / sample).write_text(fault)
    expected, skipped = sound, {}
    if fault == "ValueError":
        with open_loader(data, use, Faulty(faults, trainer=0), 0) as alone:
            if state is not None:
                alone.restore_state_rank(state)
            expected, skipped = texts(alone), dict(alone.skipped)
        assert skipped["encode_sample"]
    watchdog: dict[str, Any] = {"watchdog_timeout_seconds": 1.5} if fault == "hang" else {}
    with open_loader(data, use, Faulty(faults), num_workers, **watchdog) as loader:
        if state is not None:
            loader.restore_state_rank(state)
        assert texts(loader) == expected
        assert dict(loader.skipped) == skipped
        num_restarts = loader.metrics().worker_restarts
        assert num_restarts == (fault != "ValueError") or (fault == "hang" and num_restarts), "more on a slow machine"


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_first_sample_leaves_the_stream_as_it_is(
    data: Path, tmp_path: Path, use: str, fault: str, request: pytest.FixtureRequest
) -> None:
    num_workers = 1 + (USES.index(use) + FAULTS.index(fault)) % 3
    check_run(data, tmp_path, use, fault, 0, num_workers)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(RUNS))
def test_any_fault_in_the_first_samples_leaves_the_stream_as_it_is(data: Path, tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    use, fault = chosen.choice(USES), chosen.choice(FAULTS)
    check_run(data, tmp_path, use, fault, chosen.randrange(5), chosen.randint(1, 3))


def test_a_fault_that_comes_again_ends_the_run_with_the_name_of_the_sample(data: Path, tmp_path: Path) -> None:
    encoder = Faulty(tmp_path)
    with open_loader(data, "training", Faulty(tmp_path / "none"), 0) as whole:
        first = texts(whole, 1)[0][0]
    (tmp_path / first).write_text("SIGSEGV")
    with (
        open_loader(data, "training", encoder, 2, max_worker_restarts=0) as loader,
        pytest.raises(WorkerError, match=rf"SIGSEGV(.|\n)*{int(first):06d}"),
    ):
        next(iter(loader))


IN_A_WORKER = """
import os, signal, threading
from bridge_data import DefaultTaskEncoder
if os.getpid() != int(os.environ["TRAINER"]):
    {}

class Imported(DefaultTaskEncoder):
    pass
"""
IMPORTS = {
    "hangs": ("threading.Event().wait()", "has not started after 2 s: .*hangs_{}"),
    "crashes": ("os.kill(os.getpid(), signal.SIGSEGV)", "crashes_{}"),
    "fails": ("raise ImportError('no such driver')", "no such driver"),
    "tells": ("open(f'{__file__}.{os.getppid()}', 'w').close()", ""),
}


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes an encoder of a module that does this to a worker which imports it, of a server of its own."""
    monkeypatch.setenv("TRAINER", str(os.getpid()))
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str, number: int) -> Any:
        module = f"{name}_{number}"
        (tmp_path / f"{module}.py").write_text(IN_A_WORKER.format(IMPORTS[name][0]))
        return __import__(module).Imported()

    yield make
    for name in [name for name in sys.modules if name.split("_")[0] in IMPORTS]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "method"), [("hangs", "server"), *itertools.product(("crashes", "fails"), ("server", "spawn"))]
)
def test_a_module_that_a_worker_cannot_import_is_an_error_before_the_first_batch(
    data: Path, imported: Any, name: str, method: str
) -> None:
    use, timeout_s = USES[list(IMPORTS).index(name)], 2 if name == "hangs" else 300
    encoder = imported(name, len(method))
    options = {"worker_start_timeout_s": timeout_s, "max_worker_restarts": 1, "start_method": method}
    with open_loader(data, use, DefaultTaskEncoder(), 1, start_method=method) as other:
        assert other.wait_for_workers()  # the server, which both share, is there
        with (
            open_loader(data, use, encoder, 1, **options) as loader,
            pytest.raises(WorkerError, match=IMPORTS[name][1].format(len(method))),
        ):
            next(iter(loader))


@pytest.mark.parametrize("name", ["fails", "hangs"])
def test_what_validation_cannot_import_is_an_error_before_the_first_step(
    data: Path, imported: Any, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a slow start waits for is logged before."""
    monkeypatch.setattr(worker_pool, "_SLOW_START_S", 0.2)
    options = {"worker_start_timeout_s": 2} if name == "hangs" else {}
    encoders = {"task_encoder": DefaultTaskEncoder(), "validation_task_encoder": imported(name, 1)}
    with open_loader(data, "training", DefaultTaskEncoder(), 1) as other:
        assert other.wait_for_workers()  # the server is there
        module = bridge_data.EnergonMultiModalDataModule(
            str(data), num_workers=1, pin_memory=False, **encoders, **options
        )
        train, _ = module.build()
        with caplog.at_level(logging.WARNING, "bridge_data"), pytest.raises(WorkerError) as caught:
            next(train)
    assert re.search(IMPORTS[name][1].format(1), str(caught.value))
    assert name == "fails" or "hangs_1" in caplog.text


def test_what_workers_need_for_an_encoder_is_imported_before_there_is_a_loader(
    data: Path, tmp_path: Path, imported: Any
) -> None:
    module = bridge_data.EnergonMultiModalDataModule(
        str(data), num_workers=1, pin_memory=False, task_encoder=imported("tells", 1)
    )
    by_server = tmp_path / f"tells_1.py.{os.getpid()}"
    until(by_server.exists, 60)
    train, _ = module.build()
    assert [*by_server.parent.glob("tells_1.py.*")] == [by_server], "once"
    assert next(train).text


def test_modules_that_each_process_has_of_its_own_are_not_asked_for(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(EarlyServer, "prepare", lambda _, modules: asked.extend(modules))
    encoder = type("OfAScript", (DefaultTaskEncoder,), {"__module__": "__main__"})()
    encoder.number, encoder.path = 3, data
    bridge_data.EnergonMultiModalDataModule(str(data), num_workers=1, pin_memory=False, task_encoder=encoder)
    assert type(data).__module__ in asked and not {"__main__", "builtins"} & {*asked}


def test_if_that_hangs_the_first_batch_is_an_error_that_names_the_module(data: Path, imported: Any) -> None:
    options = {"num_workers": 1, "pin_memory": False, "worker_start_timeout_s": 2}
    train, _ = bridge_data.EnergonMultiModalDataModule(str(data), task_encoder=imported("hangs", 2), **options).build()
    with pytest.raises(WorkerError, match=IMPORTS["hangs"][1].format(2)):
        next(train)


def too_many() -> Any:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_loader_that_cannot_start_leaves_nothing_behind(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_DATA_TEST_OF", "a failed start")  # a server of its own
    before = {*psutil.Process().children(recursive=True)}
    gc.collect()
    num_descriptors, pair = len(os.listdir("/proc/self/fd")), Channel.pair
    for num_made in range(6):  # channels: of two peers, of the loader, of its server, and of its two workers
        pairs = iter([pair] * num_made)
        monkeypatch.setattr(Channel, "pair", staticmethod(lambda pairs=pairs: next(pairs, too_many)()))
        with pytest.raises(OSError, match="Too many open files"):
            open_loader(data, "training", DefaultTaskEncoder(), 2)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= num_descriptors
        until(lambda: before.issuperset(psutil.Process().children(recursive=True)))
