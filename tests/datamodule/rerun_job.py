"""Megatron's rerun machine over a training loader, for `test_jobs.py`: what each run of each step draws, as JSON.

rerun_job DATA FILE
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from recipes.demo import cpu_shim

NORMAL, WRONG, ALSO_WRONG = 1.0, 99.0, 98.0


def main(data: str, file: str) -> None:
    cpu_shim.install()
    from megatron.core import rerun_state_machine
    from megatron.core.rerun_state_machine import RerunDataIterator, RerunMode, get_rerun_state_machine

    from tests.datamodule.parts import draw, make_module

    def step(iterator: Any, *results: float) -> list[Any]:
        """The draws of each run of a step whose runs have these results, and whether to save and exit."""
        machine, runs, left = get_rerun_state_machine(), [], list(results)
        while machine.should_run_forward_backward(iterator):
            runs.append(draw(iterator, 2))
            machine.validate_result(
                torch.tensor(left.pop(0)), lambda result: bool(result > 10), "too large", fatal=results[-1] == WRONG
            )
        assert not left
        return [runs, machine.should_checkpoint_and_exit()[:2]]

    logging.disable(logging.WARNING)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rerun_state_machine.initialize_rerun_state_machine(mode=RerunMode.VALIDATE_RESULTS)
    train = make_module(data).train_dataloader()
    iterator = RerunDataIterator(train)
    steps = [step(iterator, NORMAL), step(iterator, WRONG, ALSO_WRONG), step(iterator, NORMAL)]
    boundary = iterator.iterable.save_state()
    steps.append(step(iterator, WRONG, WRONG))
    saved = [iterator.iterable.save_state(), iterator.state_dict()]

    after = make_module(data).train_dataloader()
    after.restore_state(boundary)
    resumed = make_module(data).train_dataloader()
    resumed.restore_state(saved[0])
    replaying = RerunDataIterator(resumed)
    replaying.load_state_dict(saved[1])
    replayed = draw(replaying, 2)
    replaying.advance()
    seen = {"steps": steps, "after": draw(after, 2), "replayed": replayed, "then": draw(replaying, 2)}
    Path(file).write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
