"""Runs a module on several gloo ranks, as torchrun would, but imports what is heavy once and forks the ranks from it:
a rank then starts in milliseconds, not seconds. The exit status is that of the first rank that fails.

    python -m tests.ranks NUM_RANKS MODULE ARGUMENTS...
"""

import importlib
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable


def fork_ranks(num_ranks: int, work: Callable[[], None]) -> int:
    """Do `work` in so many forked ranks of one job; the exit status of the first that fails, else 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(num_ranks))
    running = set()
    for rank in range(num_ranks):
        pid = os.fork()
        if not pid:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            _end(work)
        running.add(pid)
    failed = 0
    while running:
        pid, status = os.wait()
        running.discard(pid)
        if status and not failed:
            failed = os.waitstatus_to_exitcode(status)
            for other in running:  # they wait for the one that failed
                os.kill(other, signal.SIGKILL)
    return failed


def _end(work: Callable[[], None]) -> None:
    """Do `work`, and end this process."""
    status = 0
    try:
        work()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> int:
    """Run the module that the command line names."""
    num_ranks, module = int(sys.argv[1]), sys.argv[2]
    importlib.import_module(module)  # and with it all that the ranks import
    sys.argv = [module, *sys.argv[3:]]

    def run_module() -> None:
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    return fork_ranks(num_ranks, run_module)


if __name__ == "__main__":
    sys.exit(main())
