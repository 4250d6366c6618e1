"""One rank of a job over finite data, its steps kept in step by a collective of its own, as training does.

ends_job FOLDER DATA [BACKEND]

Writes to `FOLDER/RANK.json` what each of `CASES` gave: two passes as lists of steps (keys, weight of the rank, weight
of all ranks), the collectives that the loader called, its counts, and what it logged. Then, as "failures", the errors
of each rank when rank 1 cannot read its third batch, and when rank 1 ends without a word.
"""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bridge_data import (
    Batch,
    DefaultTaskEncoder,
    FatalSampleError,
    SkipSample,
    TextSample,
    WorkerConfig,
    edataclass,
    get_savable_loader,
    get_val_dataset,
)
from bridge_data.lanes.lane_dataset import LaneDataset


@edataclass
class Loss(Batch):
    loss_mask: torch.Tensor


class Whole(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Leaves nothing out."""

    def batch(self, samples: list[TextSample]) -> Loss:
        return Loss.from_samples(samples, loss_mask=torch.ones(len(samples)))


class Filter(Whole):
    """Leaves out so much that the ranks' shares differ."""

    def encode_sample(self, sample: TextSample) -> TextSample:
        if int(sample.text) % 8 in (1, 3, 5):
            raise SkipSample
        return sample


class OnlyLast(Whole):
    """Leaves out all but the last samples, so the first lanes have nothing."""

    def encode_sample(self, sample: TextSample) -> TextSample:
        if int(sample.text) < 34:
            raise SkipSample
        return sample


class Packer(Whole):
    def select_samples_to_pack(self, samples: list[TextSample]) -> list[list[TextSample]]:
        return [samples[:3], samples[3:]] if len(samples) > 3 else [samples]

    def pack_selected_samples(self, samples: list[TextSample]) -> TextSample:
        return samples[0]


class Doubler(Whole):
    def encode_sample(self, sample: TextSample) -> Iterator[TextSample]:
        yield sample
        yield sample


class HiddenDoubler(Whole):
    """Returns a generator without being a generator function."""

    def encode_sample(self, sample: TextSample) -> Any:
        return iter([sample, sample])


class NoMask(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Its batches have no loss mask."""


class Emptier(NoMask):
    def empty_batch(self, batch: Any) -> Any:
        raise ZeroDivisionError("a bug")


class Breaks(Packer):
    def batch(self, samples: list[TextSample]) -> Loss:
        if int(samples[0].text) > 12:
            raise FatalSampleError("the disk is gone\nin more detail")
        return super().batch(samples)


CASES: dict[str, tuple[type[DefaultTaskEncoder[Any, Any, Any, Any]], dict[str, Any]]] = {
    "whole": (Whole, {}),
    "limited": (Whole, {"limit": 8}),
    "filtered": (Filter, {}),
    "only the last": (OnlyLast, {}),
    "packed": (Packer, {"packing_buffer_size": 5}),
    "doubled": (Doubler, {}),
    "doubled in hiding": (HiddenDoubler, {}),
    "no mask": (NoMask, {}),
    "wrong empty_batch": (Emptier, {}),
}


def dataset_of(
    case: str, data: str, rank: int, world_size: int, *, num_workers: int = 0, num_lanes: int = 6
) -> LaneDataset:
    """The data set of a case, as a rank has it."""
    encoder, settings = CASES[case]
    config = WorkerConfig(rank, world_size, num_workers, num_lanes=num_lanes)
    return get_val_dataset(
        data, split_part="train", worker_config=config, batch_size=2, task_encoder=encoder(), **settings
    )


class Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def main(folder: str, data: str, backend: str = "gloo") -> None:
    dist.init_process_group(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu") if backend == "gloo" else torch.device("cuda", rank)
    if backend != "gloo":
        torch.cuda.set_device(device)
    all_reduce, num_reduced = dist.all_reduce, 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_reduced
        num_reduced += 1
        return all_reduce(*args, **kwargs)

    dist.all_reduce = counted
    outcome = {}
    for number, case in enumerate(CASES):
        num_reduced, messages, passes = 0, Messages(), []
        logging.getLogger("bridge_data").addHandler(messages)
        dataset = dataset_of(case, data, rank, world_size, num_workers=0 if number else 2)
        with get_savable_loader(dataset, ends="even") as loader:
            for _ in range(2):
                steps = []
                for batch in loader:
                    weight = float(getattr(batch, "loss_mask", torch.tensor(len(batch.__key__))).sum())
                    total = torch.tensor(weight, device=device)
                    all_reduce(total)
                    steps.append([list(batch.__key__), weight, float(total)])
                    if hasattr(batch, "loss_mask"):
                        del batch.loss_mask  # a trainer may take out what it used
                passes.append(steps)
            assert loader.even_ends is not None
            filled, repeated = loader.even_ends.num_filled, loader.even_ends.num_repeated
            reduced, counts = num_reduced, [loader.metrics(of_job=of_job) for of_job in (False, True)]
        logging.getLogger("bridge_data").removeHandler(messages)
        outcome[case] = {
            "passes": passes,
            "reduced": reduced,
            "samples of the rank and of the job": [one.samples for one in counts],
            "filled": filled,
            "repeated": repeated,
            "messages": messages.texts,
        }
    failed, left = failing(data, rank, world_size), ""
    if rank != 1:
        left = error_of(dataset_of("packed", data, rank, world_size))
    dist.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(outcome | {"failures": [failed, left]}))


def failing(data: str, rank: int, world_size: int) -> str:
    """The error of this rank when rank 1 fails."""
    dataset = dataset_of("packed", data, rank, world_size)
    if rank == 1:
        dataset.task_encoder = Breaks()
    return error_of(dataset)


def error_of(dataset: LaneDataset) -> str:
    """The error that reading the data set ends with."""
    with get_savable_loader(dataset, ends="even") as loader:
        try:
            return f"no error after {sum(1 for _ in loader)} batches"
        except Exception as error:
            return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(*sys.argv[1:])
