"""Tasks on Ray: on two nodes where Ray is installed (`make test-ray`), and the errors where it is not."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data.errors import ConfigError, DatasetError, SampleError, WorkerError
from bridge_data.plugins.doctor.lint import LintConfig, lint
from bridge_data.plugins.media.media import prepare_media
from bridge_data.plugins.media.media_rule import MediaRule
from bridge_data.plugins.ray.ray_tasks import RayTasks
from bridge_data.prepare import write
from bridge_data.prepare.executors import LocalProcesses, executor_named
from bridge_data.prepare.scan_results import ScanTask
from bridge_data.prepare.tars import PrepareConfig, scan_share
from tests.data.tars import prepare_by_ratio, write_shards, write_tar
from tests.prepare.files import picture
from tests.prepare.same_indexes import assert_same_indexes, copy_unprepared


def test_the_names_of_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert executor_named("local", 3) == LocalProcesses(3)
    assert executor_named("local", None).num_workers >= 1
    with pytest.raises(ConfigError, match="executor='slurm': expected one of local, ray, or the address"):
        executor_named("slurm", None)
    with pytest.raises(ConfigError, match="num_workers=0"):
        executor_named("local", 0)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="pip install ray"):
        executor_named("ray", None)


@pytest.fixture(scope="module")
def ray_nodes() -> Iterator[RayTasks]:
    """Tasks on a cluster of two nodes, with a core each."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        yield RayTasks(cluster.address)
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.processes
class TestTwoNodes:
    def test_results_come_in_order_from_both_nodes(self, ray_nodes: RayTasks, tmp_path: Path) -> None:
        def square(number: int) -> tuple[int, str]:
            import time

            import ray

            time.sleep(0.02)
            (tmp_path / str(number)).touch()
            return number * number, ray.get_runtime_context().get_node_id()

        assert ray_nodes.num_workers == 2
        found = list(ray_nodes.map(square, range(60), what="squared"))
        assert [number for number, _ in found] == [number * number for number in range(60)]
        assert len({node for _, node in found}) == 2
        with contextlib.closing(ray_nodes.map(square, range(1000, 2000), what="noted")) as results:
            assert next(results)[0] == 1_000_000
        assert list(ray_nodes.map(abs, [-1], what="waited")) == [1]
        assert len(list(tmp_path.iterdir())) < 80, "closing cancels what has not begun"

    def test_prepare_is_the_same_as_with_local_processes_and_tasks(self, ray_nodes: RayTasks, tmp_path: Path) -> None:
        write_shards(tmp_path / "local", num_shards=39)
        write_tar(tmp_path / "local/pictures.tar", {"a.png": picture()})
        for name in ("ray", "tasks"):
            copy_unprepared(tmp_path / "local", tmp_path / name)
        prepare_by_ratio(tmp_path / "local", num_workers=2)
        assert prepare_by_ratio(tmp_path / "ray", executor=ray_nodes).num_scanned == 40
        for index in range(3):
            scan_share(tmp_path / "tasks", ScanTask(index, 3), PrepareConfig(executor=ray_nodes))
        prepare_by_ratio(tmp_path / "tasks", merge=True)
        assert_same_indexes(tmp_path / "local", tmp_path / "tasks")
        executors: list[Any] = [LocalProcesses(2), ray_nodes]
        reports = [lint(tmp_path / "local", LintConfig(executor=executor)) for executor in executors]
        assert reports[0] == reports[1] and reports[0].num_samples == 196
        for name, executor in zip(("local", "ray"), executors, strict=True):
            assert prepare_media(tmp_path / name, MediaRule("EXTENSION"), executor=executor).num_stored == 1
        assert_same_indexes(tmp_path / "local", tmp_path / "ray")
        (tmp_path / "ray/pictures.tar").write_bytes(b"no tar")
        with pytest.raises(DatasetError, match=r"pictures\.tar: no readable tar header"):
            prepare_by_ratio(tmp_path / "ray", executor=ray_nodes)

    def test_a_function_of_the_user_writes_the_same_files(self, ray_nodes: RayTasks, tmp_path: Path) -> None:
        offset = 3

        def make(number: int) -> dict[str, object]:
            if number == 77:
                raise KeyError(number)
            return {"__key__": f"{number:04d}", "txt": str(number + offset)}

        for name, options in (("local", {"num_workers": 2}), ("ray", {"executor": ray_nodes})):
            assert write(make, tmp_path / name, items=range(70), max_samples=20, **options) == 70  # type: ignore[arg-type]
        tars = [{path.name: path.read_bytes() for path in (tmp_path / name).glob("*.tar")} for name in ("local", "ray")]
        assert tars[0] == tars[1] and len(tars[0]) == 4
        with pytest.raises(SampleError, match="item 77, 77: KeyError"):
            write(make, tmp_path / "fails", items=range(100), executor=ray_nodes)

    def test_a_worker_that_dies_is_replaced_and_one_that_always_dies_is_an_error(
        self, ray_nodes: RayTasks, tmp_path: Path
    ) -> None:
        def die_once(number: int) -> int:
            import os

            if number == 5 and not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os._exit(1)
            return number

        assert list(ray_nodes.map(die_once, range(10), what="counted")) == list(range(10))
        assert (tmp_path / "died").exists()
        with pytest.raises(WorkerError, match="a Ray task that counted could not be done"):
            list(ray_nodes.map(lambda number: os._exit(1), range(1), what="counted"))
        with pytest.raises(ZeroDivisionError):
            list(ray_nodes.map(lambda number: 1 // number, range(3), what="divided"))
