"""Kill processes that save over a checkpoint: `python -m tests.loader.checkpoint.killed_saves HOW FOLDER`.

HOW is "by_one" (`save_states`, killed before each call to the file system) or "by_ranks" (`save_rank_state` of two
gloo ranks, each of them killed so). After each kill the folder must hold the old checkpoint or the new one. Prints how
often it was the one and the other, and how often copies for other ranks were still those of the old one. A program of
its own, because it forks.
"""

import collections
import contextlib
import datetime
import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from bridge_data.loader.checkpoint import rank_file, read_checkpoint, save_rank_state, save_states
from tests.loader.checkpoint.states import make_state

NUM_RANKS = 4
CALLS = frozenset({"open", "os.rename", "os.remove", "os.mkdir"})


def die_before_call(number: int, folder: Path) -> None:
    """End this process, as by SIGKILL, before its call number `number` to the file system in `folder`."""
    calls = 0

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal calls
        if event in CALLS and str(arguments[0]).startswith(str(folder)):
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1

    sys.addaudithook(audit)


def forked(act: Callable[[], None]) -> int:
    """A child process that does this and ends."""
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(Exception):
            act()
            code = 0
        os._exit(code)
    return child


def was_killed(child: int) -> bool:
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


class Found:
    """What was there after each kill."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts: collections.Counter[str] = collections.Counter()

    def check(self, least: int, most: int | None = None) -> int:
        """See that a whole checkpoint of step `least` to `most` is there; its step."""
        checkpoint = read_checkpoint(self.folder)
        step = checkpoint.step
        assert step is not None and least <= step <= (most or step), (step, least, most)
        assert checkpoint.state.to_dict() == make_state(step=step)
        files = self.folder.glob(f"{rank_file(self.folder, 0).name[:-6]}*")
        self.counts["unfinished"] += any(read_checkpoint(file).step == least for file in files) and step > least
        self.counts["old" if step == least else "new"] += 1
        return step


def by_one(found: Found) -> None:
    for old, new in ((2, 4), (4, 2)):
        killed, number = True, 0
        while killed:
            save_states(found.folder, make_state(step=10), step=10, world_size=old)
            killed = was_killed(forked(functools.partial(save_one, number, new, found.folder)))
            assert found.check(10, 20) == 20 or killed
            number += 1


def save_one(number: int, world_size: int, folder: Path) -> None:
    die_before_call(number, folder)
    save_states(folder, make_state(step=20), step=20, world_size=world_size)


def by_ranks(found: Found) -> None:
    for victim in range(2):
        killed, number = True, 0
        while killed:
            save_states(found.folder, make_state(step=10), step=10, world_size=4)
            ranks = [forked(functools.partial(save_of, rank, victim, number, found.folder)) for rank in range(2)]
            ended = [was_killed(rank) for rank in ranks]
            killed = ended[victim]
            assert found.check(10, 20) == 20 or killed
            number += 1


def save_of(rank: int, victim: int, number: int, folder: Path) -> None:
    """One of two ranks; `victim` dies."""
    meet, limit = folder.with_name(f"meet_{victim}_{number}"), datetime.timedelta(seconds=20)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2, timeout=limit)
    if rank == victim:
        die_before_call(number, folder)
    save_rank_state(folder, make_state(*range(rank, 8, 2) if rank else (), step=20), step=20)


def main(how: str, folder: Path) -> None:
    folder = folder / "checkpoint"
    found = Found(folder)
    {"by_one": by_one, "by_ranks": by_ranks}[how](found)
    save_states(folder, make_state(), step=10, world_size=NUM_RANKS)
    assert len(os.listdir(folder)) == NUM_RANKS, "something of the killed saves is left"
    counts = found.counts
    print(f"{counts['old']} old, {counts['new']} new, {counts['unfinished']} with older files beside it")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
