"""Each kind of pool of the core keeps the contract of `LanePool`, and so does one of another package, which is found by
its entry point: no line of ours is changed for it. That of Ray workers is in `tests/plugins/ray`."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data import get_loader
from bridge_data.errors import ConfigError
from bridge_data.loader.lane_pool import LanePool
from bridge_data.run_options import LoaderConfig
from tests.loader.conftest import in_turn
from tests.loader.lane_pools import LanePoolContract, WorkersContract
from tests.loader.streams import Streams, config, names
from tests.loader.thread_pool import ThreadPool, ThreadWorkers


class TestThisProcess(LanePoolContract):
    pass


@pytest.mark.processes
class TestOneWorker(WorkersContract):
    num_workers = 1

    @pytest.mark.slow
    def test_so_are_all_if_what_starts_them_is_lost(self, pool: LanePool, dataset: Streams) -> None:
        """Found as for three, in one loop over the workers."""
        super().test_so_are_all_if_what_starts_them_is_lost(pool, dataset)


@pytest.mark.processes
class TestThreeWorkers(WorkersContract):
    num_workers = 3


@pytest.mark.processes
class TestThreeWorkersWhoseBatchesAThreadPins(WorkersContract):
    num_workers = 3

    @staticmethod
    def pin(batch: Any) -> Any:
        if batch is not None:  # that of a micro-batch that is skipped
            batch.tokens = batch.tokens.clone()
        return batch


ENTRY_POINT = """
[bridge_data.pools]
a thread = tests.loader.thread_pool:ThreadWorkers
"""


class TestThatOfAnotherPackage(LanePoolContract):
    options = {"workers": {"pool": "a thread", "num_ahead": 3}}  # noqa: RUF012

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _installed(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        installed: Path = tmp_path_factory.mktemp("site") / "thread_pool-1.0.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: thread-pool\nVersion: 1.0\n")
        (installed / "entry_points.txt").write_text(ENTRY_POINT)
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(installed.parent))
            importlib.invalidate_caches()
            yield

    def test_it_is_found_by_its_name_and_its_options(self) -> None:
        assert LoaderConfig(**self.options).workers == ThreadWorkers(num_ahead=3)
        for workers in ("a thread", {"pool": "a thread"}, ThreadWorkers()):
            with get_loader(Streams(config(0)), workers=workers) as loader:
                assert names(batch for _, batch in zip(range(20), loader, strict=False)) == in_turn(20)
                assert isinstance(loader._pool, ThreadPool)

    @pytest.mark.parametrize(
        ("wrong", "named"),
        [
            ("slurm", "'slurm'"),
            (3, "workers=3"),
            ({"num_ahead": 2}, "pool"),
            ({"pool": "a thread", "num_ahed": 2}, "num_ahead"),
            ({"pool": "a thread", "num_ahead": 0}, "num_ahead=0"),
        ],
    )
    def test_wrong_options_are_refused(self, wrong: Any, named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            LoaderConfig(workers=wrong)
