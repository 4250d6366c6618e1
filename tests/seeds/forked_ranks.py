"""`python -m tests.seeds.forked_ranks SCRIPT N`: run a script as N ranks, forked from one process that has imported
torch already, since eight imports at once would take most of a test's time."""

import contextlib
import os
import runpy
import signal
import socket
import sys
import traceback

import torch.distributed

import bridge_data.loader.server  # noqa: F401  with everything that workers need


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _run_rank(script: str, rank: int, num_ranks: int, port: int) -> int:
    place = {"RANK": rank, "WORLD_SIZE": num_ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    try:
        with contextlib.suppress(SystemExit):  # the script's way to say that it has seen enough
            runpy.run_path(script, run_name="__main__")
        torch.distributed.barrier()  # rank 0 keeps the store of the others
        torch.distributed.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> int:
    """Fork the ranks and wait for them; 1 if one of them failed."""
    script, num_ranks, port = sys.argv[1], int(sys.argv[2]), _free_port()
    running = set()
    for rank in range(num_ranks):
        child = os.fork()
        if child == 0:
            status = _run_rank(script, rank, num_ranks, port)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        running.add(child)
    failed = False
    while running:
        child, status = os.wait()
        running.discard(child)
        if status and not failed:
            failed = True
            for other in running:  # they wait for the one that failed
                os.kill(other, signal.SIGKILL)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
