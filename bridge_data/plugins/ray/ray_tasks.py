"""Tasks on a Ray cluster whose machines see the data under the same paths: an `Executor` of what prepares data.

Ray pickles the function, and retries a task whose worker or node dies, a few times, elsewhere.
"""

import functools
from collections.abc import Callable, Generator, Iterable
from typing import Any

from bridge_data.errors import ConfigError, WorkerError
from bridge_data.extensions import needed_package
from bridge_data.options import check_integer
from bridge_data.prepare.executors import Argument, Result, in_order

MAX_RETRIES = 3
"""Maximum retries of a task whose worker died."""


class RayTasks:
    """Workers of the Ray cluster at `address`, such as `10.0.0.1:6379` or `ray://10.0.0.1:10001`.

    Without an address: the cluster that this process has joined, else the one that `$RAY_ADDRESS` names or that runs on
    this machine, else a Ray that is started and ends with this process. `num_workers` tasks run at a time; None: one on
    each core of the cluster.

    Raises:
        ConfigError: if Ray is not installed, or there is no cluster at `address`.
    """

    def __init__(self, address: str | None = None, num_workers: int | None = None) -> None:
        if num_workers is not None:
            check_integer("num_workers", num_workers, 1)
        ray = _library()
        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ConfigError(f"no Ray cluster at {address or 'this machine'}: {error}") from error
        self.num_workers = num_workers or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def map(
        self, function: Callable[[Argument], Result], arguments: Iterable[Argument], *, what: str
    ) -> Generator[Result, None, None]:
        """See `Executor`."""
        ray = _library()
        task = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_do_on_ray)
        submit = functools.partial(task.remote, ray.put(function))
        try:
            yield from in_order(submit, ray.get, ray.cancel, arguments, 2 * self.num_workers)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            raise WorkerError(f"a Ray task that {what} could not be done: {error}") from error


def _do_on_ray(function: Callable[[Any], Any], argument: Any) -> Any:
    return function(argument)


def _library() -> Any:
    return needed_package("ray", "running tasks on Ray")
