"""Workers on Ray: on a cluster whose nodes die and join where Ray is installed (`make test-ray`); without it, what the
loader says and does."""

import contextlib
import itertools
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridge_data import RayWorkers, get_loader, get_savable_loader
from bridge_data.errors import ConfigError, WorkerError
from bridge_data.loader import pinning
from bridge_data.loader.lane_pool import LanePool
from bridge_data.plugins.ray import ray_batches
from bridge_data.run_options import LoaderConfig
from tests.loader import ray_job
from tests.loader.conftest import in_turn
from tests.loader.faults import Faults
from tests.loader.lane_pools import WorkersContract
from tests.loader.streams import Streams, config, names
from tests.loader.test_loader import some
from tests.loader.test_scripts import TRAINER
from tests.waiting import until

ROOT = Path(__file__).parents[3]
NUM_BATCHES = int(os.environ.get("BRIDGE_DATA_RAY_BATCHES", "200"))
"""Of the run in which nodes die and join; 5,000 take some minutes."""


class TestWithoutRay:
    @pytest.fixture(autouse=True)
    def _no_ray(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)

    @pytest.mark.processes
    def test_workers_start_on_this_machine_with_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        with (
            caplog.at_level(logging.WARNING, "bridge_data"),
            get_loader(Streams(config(2)), workers="ray") as loader,
        ):
            assert loader.wait_for_workers()
            assert some(loader, 12) == in_turn(12)
            assert len(loader._pool.processes()) == 2
        assert "pip install ray" in caplog.text

    def test_a_required_cluster_is_an_error(self) -> None:
        with pytest.raises(WorkerError, match="pip install"):
            get_loader(Streams(config(2)), workers=RayWorkers(required=True))

    @pytest.mark.parametrize("wrong", [{"adress": "x"}, {"num_cpus": 0}, {"resources": {"a": "b"}}])
    def test_wrong_options_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            LoaderConfig(workers={"pool": "ray", **wrong})
        right = LoaderConfig(workers={"pool": "ray", "num_cpus": 2})
        assert (
            right == LoaderConfig(workers=RayWorkers(num_cpus=2))
            and LoaderConfig(workers="ray").workers == RayWorkers()
        )


class Nodes:
    """A cluster whose head runs nothing; worker nodes have two CPUs each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._options: dict[str, Any] = {"object_store_memory": 100 << 20}
        soon = {"health_check_period_ms": 1000, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 2}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": soon} | self._options
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = []

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def join(self) -> None:
        self.nodes.append(self.cluster.add_node(num_cpus=2, **self._options))

    def kill(self) -> None:
        """Kill the oldest node."""
        self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray")
    found = Nodes()
    try:
        found.join()
        found.join()
        yield found
    finally:
        ray.shutdown()
        found.cluster.shutdown()


@pytest.mark.slow
@pytest.mark.processes
class TestPoolOnRay(WorkersContract):
    num_workers = 2

    @pytest.fixture(scope="class")
    @classmethod
    def pool(cls, dataset: Streams, nodes: Nodes) -> Iterator[LanePool]:
        cls.options = {"workers": RayWorkers(address=nodes.address)}
        with contextlib.closing(cls.opened(dataset)) as pool:
            yield pool

    def workers(self, pool: LanePool) -> list[int]:
        return living_actors()

    def lose_server(self, pool: LanePool) -> None:
        import ray

        ray.shutdown()

    def resources(self) -> tuple[set[Any], int, set[str]]:
        """Those of `pool` alone are left of the actors, soon; connections of this process come and go."""
        until(lambda: len(living_actors()) == self.num_workers, 60)
        return set(), 0, set()


@pytest.mark.slow
@pytest.mark.processes
class TestOnRay:
    def test_batches_and_states_are_those_of_local_workers(self, nodes: Nodes, tmp_path: Path) -> None:
        workers = RayWorkers(address=nodes.address, num_actors=2)
        with get_savable_loader(Streams(config(0)), workers=workers) as loader:
            assert loader.wait_for_workers()
            assert some(loader, 20) == in_turn(20)
            saved = loader.save_state_rank()
            assert some(loader, 5) == in_turn(5, start=20)
        with get_savable_loader(Streams(config(2))) as local:
            assert some(local, 20) == in_turn(20)
            assert local.save_state_rank() == saved
            local.restore_state_rank(saved)
            assert some(local, 20) == in_turn(20, start=20)

    @pytest.mark.parametrize(("is_near", "size"), [(True, 100_000), (False, 100_000), (False, 4_500_000)])
    def test_batches_may_be_written_and_kept_wherever_they_are_made(
        self, nodes: Nodes, monkeypatch: pytest.MonkeyPatch, is_near: bool, size: int
    ) -> None:
        """On this machine they are not copied; from another, large ones come through the object store."""
        monkeypatch.setattr(ray_batches, "is_on_this_machine", lambda handle: is_near)
        workers = RayWorkers(address=nodes.address, num_actors=2)
        with get_loader(Streams(config(0), size=size), workers=workers, max_shared_bytes=80 << 20) as loader:
            assert loader.wait_for_workers()
            kept = list(itertools.islice(loader, 9))
            for batch in kept:
                batch.tokens += 1
            assert some(loader, 9) == in_turn(9, start=9)
            assert is_shared(kept[0].tokens.data_ptr()) == is_near
        for batch in kept:
            batch.tokens -= 1
        assert names(kept) == in_turn(9)

    def test_errors_come_as_with_local_workers_and_actors_that_die_are_replaced(
        self, nodes: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        faults = Faults(tmp_path)
        faults.plan(1, 2, "SIGKILL")
        faults.plan(2, 4, "ValueError")
        faults.plan(0, 6, "AwkwardError")
        faults.plan(3, 8, "hang")
        workers = RayWorkers(address=nodes.address, num_actors=2)
        dataset = Streams(config(0), before_sample=faults)
        with get_loader(dataset, workers=workers, max_worker_restarts=2, sample_timeout_s=2) as loader:
            assert loader.wait_for_workers()
            assert some(loader, 26) == in_turn(26)
            with pytest.raises(ValueError, match="no such token") as caught:
                next(iter(loader))
            assert caught.value.__notes__[0].startswith("in a worker, lane 2:\nTraceback")
            assert some(loader, 10) == in_turn(10, start=26)
            with pytest.raises(WorkerError, match=r"(?s)lane 0:.*AwkwardError: shard_0/7: is damaged"):
                next(iter(loader))
            assert some(loader, 24) == in_turn(24, start=36)
            assert loader.skipped == {"encode_sample": 18}
            assert loader.metrics().worker_restarts == 2
        assert "lane 3, on sample (source=0, epoch=7, index=8)" in caplog.text
        until(lambda: not living_actors(), 30)

    def test_an_actor_that_always_dies_is_an_error_with_its_history(self, nodes: Nodes, tmp_path: Path) -> None:
        faults = Faults(tmp_path)
        faults.plan(1, 0, *["exit"] * 3)
        workers = RayWorkers(address=nodes.address, num_actors=1)
        with get_loader(Streams(config(0), before_sample=faults), workers=workers, max_worker_restarts=1) as loader:
            assert loader.wait_for_workers()
            with pytest.raises(WorkerError, match=r"(?s)worker 0 on .* is lost.*max_worker_restarts=1"):
                some(loader, 60)

    def test_a_loader_whose_process_is_disconnected_connects_again(self, nodes: Nodes) -> None:
        import ray

        with get_loader(Streams(config(0)), workers=RayWorkers(address=nodes.address, num_actors=2)) as loader:
            assert loader.wait_for_workers()
            assert some(loader, 10) == in_turn(10)
            ray.shutdown()
            assert some(loader, 10) == in_turn(10, start=10)
            assert loader.wait_for_workers()
            assert some(loader, 10) == in_turn(10, start=20)
            assert living_actors() and loader.metrics().worker_restarts == 1

    def test_classes_of_the_script_come_back_as_its_own(self, nodes: Nodes, tmp_path: Path) -> None:
        workers = {"pool": "ray", "address": nodes.address, "required": True}
        (tmp_path / "train.py").write_text(TRAINER.replace("size)))", f"size)), workers={workers!r})"))
        command, environment = [sys.executable, "train.py"], os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        printed = [line for line in done.stdout.splitlines() if "LaneActor" not in line]
        assert (done.returncode, printed[-1:]) == (0, ["done"]), done.stdout + done.stderr

    def test_a_pinning_thread_takes_the_batches(self, nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pinning, "can_pin", lambda: True)
        monkeypatch.setattr(pinning, "pinned", lambda batch: batch)
        workers = RayWorkers(address=nodes.address, num_actors=2)
        with get_savable_loader(Streams(config(0)), workers=workers, pin_memory=True) as loader:
            assert loader.wait_for_workers()
            assert some(loader, 10) == in_turn(10)
            assert isinstance(loader._pool, pinning.PinningPool)
            loader.restore_state_rank(loader.save_state_rank())
            assert some(loader, 10) == in_turn(10, start=10)
            for actor in living_actors():
                os.kill(actor, signal.SIGKILL)
            assert some(loader, 30) == in_turn(30, start=20)

    def test_nodes_that_die_and_join_change_the_rate_alone(self, nodes: Nodes, tmp_path: Path) -> None:
        """Two jobs on the same nodes, near to one of them, which goes on with local workers, on two ranks."""
        num, data = NUM_BATCHES, ray_job.write_images(tmp_path / "images")
        jobs = [Job(data, 0, 1, nodes.address, num), Job(data, 1, 2, f"afar:{nodes.address}", num // 2)]
        num_killed = 0
        while any(job.runs() for job in jobs):
            nodes.join()
            time.sleep(4)
            nodes.kill()
            num_killed += 1
        print(f"{num_killed} nodes killed over {num} and {num // 2} batches")
        found = [job.lines() for job in jobs]
        state = tmp_path / "state.json"
        state.write_text(found[0].pop())
        later = [Job(data, rank, 2, "local", 10, str(state)).lines()[:-1] for rank in range(2)]
        right = [
            [
                (made, ray_job.digest_of_state(state))
                for made, state in ray_job.batches(data, rank, world, "here", count)
            ]
            for rank, world, count in ((0, 1, num + 20), (1, 2, num // 2))
        ]
        assert found[0] == [" ".join(line) for line in right[0][:num]]
        assert found[1][:-1] == [" ".join(line) for line in right[1]]
        made = [[line.split()[0] for line in lines] for lines in later]
        assert [one for pair in zip(*made, strict=True) for one in pair] == [made for made, _ in right[0][num:]]

    def test_actors_end_with_a_trainer_that_is_killed(self, nodes: Nodes, tmp_path: Path) -> None:
        data = ray_job.write_images(tmp_path / "images")
        job = Job(data, 0, 1, nodes.address, 1_000_000)
        until(lambda: len(job.out.read_text().split()) > 20 if job.out.exists() else False, 60)
        assert len(living_actors()) == 2
        job.process.kill()
        until(lambda: not living_actors(), 60)


class Job:
    """A process that runs `ray_job`."""

    def __init__(self, data: Path, rank: int, world_size: int, workers: str, num: int, *state: str) -> None:
        self.out = data.parent / f"{rank}-{world_size}-{workers}"
        arguments = [str(data), str(rank), str(world_size), workers, str(num), str(self.out), *state]
        self.process = subprocess.Popen([sys.executable, "-m", "tests.loader.ray_job", *arguments], cwd=ROOT)

    def runs(self) -> bool:
        return self.process.poll() is None

    def lines(self) -> list[str]:
        """What it has written, once it has ended."""
        assert self.process.wait() == 0
        return self.out.read_text().splitlines()


def is_shared(address: int) -> bool:
    """Whether what is at this address is a buffer."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= address < end:
            return "memfd:bridge_data" in line
    raise AssertionError("nothing is there")


def living_actors() -> list[int]:
    """The processes of actors on this machine."""
    titles = ((process.pid, process.info["cmdline"]) for process in psutil.process_iter(["cmdline"]))
    return [pid for pid, title in titles if title and title[0].startswith("ray::LaneActor")]
