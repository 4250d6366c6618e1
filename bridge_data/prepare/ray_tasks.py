"""Tasks on a Ray cluster: an `Executor` whose workers are on any machines that see the data under the same paths.

Enters: a function and arguments, which are pickled by Ray. Leaves: the results in order. A task whose worker or node
dies is done again elsewhere, a few times.
"""

import importlib
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

from bridge_data.errors import ConfigError, WorkerError
from bridge_data.options import check_integer
from bridge_data.prepare.processes import Executor, LocalProcesses, usual_workers

Argument = TypeVar("Argument")
Result = TypeVar("Result")

MAX_RETRIES = 3
"""How often a task is done again whose worker has died."""

LOCAL, RAY = "local", "ray"


class RayTasks:
    """Workers of the Ray cluster at `address`, such as `10.0.0.1:6379` or `ray://10.0.0.1:10001`.

    Without an address it is the cluster that this process has joined, the one that `$RAY_ADDRESS` names or that runs on
    this machine, or else a Ray that is started for as long as this process runs. `num_workers` tasks run at a time;
    None: one on each core of the cluster.

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
        shared = ray.put(function)
        task = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_do)
        remaining = iter(arguments)
        waiting: deque[Any] = deque()
        try:
            waiting.extend(task.remote(shared, one) for one in itertools.islice(remaining, 2 * self.num_workers))
            while waiting:
                result = ray.get(waiting[0])
                waiting.popleft()
                waiting.extend(task.remote(shared, one) for one in itertools.islice(remaining, 1))
                yield result
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            raise WorkerError(f"a Ray task that {what} could not be done: {error}") from error
        finally:
            for one in waiting:
                ray.cancel(one)


def _do(function: Callable[[Any], Any], argument: Any) -> Any:
    return function(argument)


def _library() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ConfigError('tasks on Ray need a package: pip install "bridge-data[ray]"') from None


def executor_named(name: str, num_workers: int | None) -> Executor:
    """The executor that a command is told: `local`, `ray`, or the address of a Ray cluster; with a worker for each
    core, of this machine at most 16, if `num_workers` is None.

    Raises:
        ConfigError: if it is none of these, or cannot be used.
    """
    if name == LOCAL:
        return LocalProcesses(usual_workers() if num_workers is None else num_workers)
    if name != RAY and ":" not in name:
        raise ConfigError(f"executor={name!r}: expected local, ray, or the address of a Ray cluster, HOST:PORT")
    return RayTasks(None if name == RAY else name, num_workers)
