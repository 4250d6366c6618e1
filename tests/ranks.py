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


def main() -> int:
    num_ranks, module = int(sys.argv[1]), sys.argv[2]
    importlib.import_module(module)  # and with it all that the ranks import
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(num_ranks))
    ranks = set()
    for rank in range(num_ranks):
        if not (pid := os.fork()):
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            sys.argv = [module, *sys.argv[3:]]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return 0
        ranks.add(pid)
    while ranks:
        pid, status = os.wait()
        ranks.discard(pid)
        if code := os.waitstatus_to_exitcode(status):
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
