"""Children of this process that fail, or are killed between two steps."""

import os
import signal
import sys
from collections.abc import Callable

from bridge_data.errors import DatasetError


def in_child(action: Callable[[], object]) -> int:
    """The status of a forked child that does this: 0, 1 after an error of ours, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        status = 2
        sys.modules.pop("lance", None)  # it forks, whatever tests before it have read
        try:
            action()
            status = 0
        except DatasetError:
            status = 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_at(step: int, action: Callable[[], object], *others: tuple[object, str]) -> None:
    """Do this, and kill this process at its call number `step` of those that change files, or of other functions."""
    calls = 0

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def counting(*arguments: object, **options: object) -> object:
            nonlocal calls
            if calls == step:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
            return call(*arguments, **options)

        return counting

    for holder, name in ((os, "replace"), (os, "unlink"), (os, "fsync"), *others):
        setattr(holder, name, counted(getattr(holder, name)))
    action()
