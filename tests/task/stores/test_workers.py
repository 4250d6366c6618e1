"""Cache pools in loaders: batches and states do not depend on them, and nothing outlives a run."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge_data import FileStoreCachePool, NoCachePool, get_loader
from bridge_data.plugins.caches.cache_folder import CacheFolder
from tests.task.stores.cached_job import Packer, data
from tests.task.stores.media import write_job

NUM = 30


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def expected(job: Path) -> list[Any]:
    """The batches without a cache."""
    return take(get_loader(data(job, 0)), NUM)


def take(loader: Any, num: int) -> list[Any]:
    return list(itertools.islice(loader, num))


@pytest.mark.parametrize("settings", [{}, {"max_cache_size_gbytes": 1e-6}, {"method": "pickle"}, {"num_workers": 1}])
def test_batches_are_the_same_with_any_pool(
    job: Path, expected: list[Any], tmp_path: Path, settings: dict[str, Any]
) -> None:
    pool = FileStoreCachePool(parent_cache_dir=tmp_path, **settings)
    assert take(get_loader(data(job, 0), cache_pool=pool), NUM) == expected
    assert take(get_loader(data(job, 0), cache_pool=NoCachePool()), NUM) == expected
    assert any(len(pack["__key__"]) > 1 for (pack,) in expected)
    assert all(pack["files"] for (pack,) in expected)
    pool.close()
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_fetches_again_what_was_pending(job: Path, expected: list[Any], tmp_path: Path) -> None:
    """The state holds no lazies and no content: in another process, with an empty cache, the batches go on."""
    pool = FileStoreCachePool(parent_cache_dir=tmp_path / "first")
    loader = get_loader(data(job, 0), cache_pool=pool)
    for at in range(0, NUM - 5, 4):
        state = json.loads(json.dumps(loader.save_state_rank()))
        other = FileStoreCachePool(parent_cache_dir=tmp_path / "second")
        resumed = get_loader(data(job, 0), cache_pool=other)
        resumed.restore_state_rank(state)
        assert take(resumed, 5) == expected[at : at + 5]
        other.close()
        take(loader, 4)
    pool.close()


class Deadly(Packer):
    """Kills the first worker that has half an entry on disk, with another one reserved and one put away."""

    def __init__(self, done: Path) -> None:
        super().__init__()
        self.trainer, self.done = os.getpid(), done

    def cook_crude_sample(self, sample: Any, *rest: Any) -> Any:
        if os.getpid() != self.trainer and not self.done.exists():
            store = CacheFolder._store

            def write_half(folder: CacheFolder, descriptor: int, content: Any) -> bool:
                if os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")).endswith(".part"):
                    folder._reserve(descriptor, 1000)
                    os.pwrite(descriptor, b"half of it", 0)
                    self.done.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return store(folder, descriptor, content)

            CacheFolder._store = write_half  # type: ignore[method-assign]
            self.keep = self.cache.to_cache("private", "x")
        return super().cook_crude_sample(sample, *rest)


@pytest.mark.processes
def test_a_worker_killed_in_the_middle_of_a_write_changes_nothing(
    job: Path, expected: list[Any], tmp_path: Path
) -> None:
    dataset = data(job, 2)
    dataset.task_encoder = Deadly(tmp_path / "done")
    pool = FileStoreCachePool(parent_cache_dir=tmp_path / "cache")
    with get_loader(dataset, cache_pool=pool) as loader:
        assert loader.wait_for_workers()
        assert take(loader, NUM) == expected
    assert (tmp_path / "done").exists()
    pool.close()
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.processes
@pytest.mark.parametrize("how", [pytest.param("ended", marks=pytest.mark.slow), "killed"])
def test_nothing_outlives_a_run_but_what_the_next_one_removes(job: Path, tmp_path: Path, how: str) -> None:
    cache = tmp_path / "cache"
    command = [sys.executable, "-m", "tests.task.stores.cached_job", str(job), str(cache), how]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3], timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("20", 0 if how == "ended" else -signal.SIGKILL), done.stderr
    if how == "ended":
        assert list(cache.iterdir()) == []
        return
    (folder,) = cache.iterdir()
    assert len(list((folder / "entries").iterdir())) > 0
    for _ in range(1000):  # the workers die with the trainer, but a moment after it
        pool = FileStoreCachePool(parent_cache_dir=cache)
        left = list((folder / "entries").iterdir())
        pool.close()
        if not left:
            break
    assert list(cache.iterdir()) == []
