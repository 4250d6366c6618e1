"""The signal with which a scheduler asks the job to save and exit, before it takes a machine away.

Receives a signal on any rank. Returns after each step whether any rank has received it: all ranks see it after the same
step, so they save the same step.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from bridge_data.errors import ConfigError
from bridge_data.later import torch


def signal_number(name: str) -> signal.Signals:
    """The signal named `name`, such as "SIGTERM".

    Raises:
        ConfigError: if it does not exist, or cannot be caught.
    """
    try:
        number = signal.Signals[name]
    except KeyError:
        raise ConfigError(f"exit_signal={name!r}: expected the name of a signal, such as 'SIGTERM'") from None
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise ConfigError(f"exit_signal={name!r}: no process can catch it; use 'SIGTERM' or 'SIGUSR1'")
    return number


class ExitSignal:
    """A context in which the signal is recorded instead of ending the process. `name=None` leaves signals alone.

    Raises:
        ConfigError: on entry outside the main thread: Python delivers signals to the main thread only.
    """

    def __init__(self, name: str | None, device: "torch.device") -> None:
        self._number = None if name is None else signal_number(name)
        self._device = device
        self._received = False
        self._handler_before: Any = None

    def __enter__(self) -> Self:
        if self._number is not None:
            if threading.current_thread() is not threading.main_thread():
                raise ConfigError(f"exit_signal={self._number.name!r} is only caught in the main thread; train there")
            self._handler_before = signal.signal(self._number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._number is not None:
            signal.signal(self._number, self._handler_before or signal.SIG_DFL)

    def received(self) -> bool:
        """Whether any rank has received the signal; a collective call."""
        if self._number is None:
            return False
        flag = torch.tensor([int(self._received)], dtype=torch.int32, device=self._device)
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        return bool(flag.item())

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._received = True
