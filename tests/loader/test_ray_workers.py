"""Workers on Ray: on a cluster whose nodes die and join where Ray is installed (`make test-ray`); without it, what the
loader says and does."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data import RayWorkers, get_loader, get_savable_loader
from bridge_data.errors import ConfigError, WorkerError
from bridge_data.run_options import LoaderConfig
from tests.loader.conftest import in_turn
from tests.loader.faults import Faults
from tests.loader.streams import Streams, config, names
from tests.loader.test_loader import some


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
            assert len(loader._lanes.processes()) == 2
        assert 'pip install "bridge-data[ray]"' in caplog.text

    def test_a_required_cluster_is_an_error(self) -> None:
        with pytest.raises(WorkerError, match="pip install"):
            get_loader(Streams(config(2)), workers=RayWorkers(required=True))

    @pytest.mark.parametrize("wrong", ["slurm", 3, {"adress": "x"}, {"num_cpus": 0}, {"resources": {"a": "b"}}])
    def test_wrong_options_are_refused(self, wrong: Any) -> None:
        with pytest.raises(ConfigError):
            LoaderConfig(workers=wrong)
        assert LoaderConfig(workers={"num_cpus": 2}) == LoaderConfig(workers=RayWorkers(num_cpus=2))  # type: ignore[arg-type]


class Nodes:
    """A cluster whose head runs nothing; worker nodes have two CPUs each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._options: dict[str, Any] = {"object_store_memory": 100 << 20}
        head = {"num_cpus": 0, "include_dashboard": False} | self._options
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
