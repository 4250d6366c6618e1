"""`python -m tests.seeds.forked_ranks SCRIPT N`: run a script as N ranks, forked from one process that has imported
torch already, since eight imports at once would take most of a test's time."""

import contextlib
import runpy
import sys

import torch.distributed

import bridge_data.loader.workers.server  # noqa: F401  with everything that workers need
from tests.ranks import fork_ranks


def run_script() -> None:
    """Be one rank."""
    with contextlib.suppress(SystemExit):  # the script's way to say that it has seen enough
        runpy.run_path(sys.argv[1], run_name="__main__")
    torch.distributed.barrier()  # rank 0 keeps the store of the others
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(fork_ranks(int(sys.argv[2]), run_script))
