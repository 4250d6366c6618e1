"""Packs of token sequences by Megatron-Energon and by ours: whichever of the two the environment has.

Input: a JSON object with the folder of the data, `capacity`, `packing` ("planned" or "online"), the `window` of samples
that a pack is chosen from, the `packer`, and `samples`, about how many to read in the measurement. Prints one line of
JSON: how full the packs are, packs a second of
processor time, the bytes of a state of eight lanes, seconds to restore it and to the first
pack.

Energon has a buffer for each worker of a rank, as ours has one for each lane: its state is that of a rank without
workers, times eight.
"""

import json
import pickle
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch

try:
    import bridge_data as api
except ImportError:
    import megatron.energon as api  # type: ignore[no-redef]

LANES, STATES = 8, 8


@api.edataclass
class Tokens(api.Sample):
    """The tokens of a sequence."""

    tokens: torch.Tensor


@api.edataclass
class Pack(api.Sample):
    """Tokens, and positions that restart from 0 with each sequence, padded to the capacity; how many are no padding."""

    tokens: torch.Tensor
    positions: torch.Tensor
    filled: int


@api.stateless
def cook(sample: Any) -> Tokens:
    """The tokens of its bytes."""
    tokens = torch.from_numpy(np.frombuffer(sample["bin"], np.uint16).astype(np.int64))
    return Tokens(**api.basic_sample_keys(sample), tokens=tokens)


class Packs(api.DefaultTaskEncoder):
    """Packs of up to `capacity` tokens, chosen by `packer`."""

    cookers = [api.Cooker(cook)]  # noqa: RUF012

    def __init__(self, capacity: int = 0, packer: str = "first_fit_decreasing") -> None:
        super().__init__()
        self.capacity, self.packer = capacity, packer

    def costs_key(self, source: Any = None) -> str:
        """One for all capacities, as costs do not depend on it."""
        return "0" * 16

    def costs(self, sample: Tokens) -> dict[str, int]:
        """What `bridge-data prepare --costs` stores."""
        return {"tokens": len(sample.tokens)}

    def select_samples_to_pack(self, samples: list[Tokens]) -> list[list[Tokens]]:
        """First fit, the longest first; or, as the example in Energon's documentation, the shortest first, and a pack
        is closed when the next sequence does not fit."""
        is_first_fit = self.packer == "first_fit_decreasing"
        packs: list[list[Tokens]] = []
        free: list[int] = []
        for sample in sorted(samples, key=lambda one: len(one.tokens), reverse=is_first_fit):
            size = len(sample.tokens)
            begin = 0 if is_first_fit else max(0, len(free) - 1)
            number = next((at for at in range(begin, len(free)) if free[at] >= size), len(free))
            if number == len(free):
                packs.append([])
                free.append(self.capacity)
            packs[number].append(sample)
            free[number] -= size
        return packs

    @api.stateless
    def pack_selected_samples(self, samples: list[Tokens]) -> Pack:
        """One sequence."""
        tokens = torch.cat([one.tokens for one in samples])
        positions = torch.cat([torch.arange(len(one.tokens)) for one in samples])
        padding = (0, self.capacity - len(tokens))
        padded, counted = (torch.nn.functional.pad(one, padding) for one in (tokens, positions))
        keys = ",".join(one.__key__ for one in samples)
        return Pack.derive_from(samples[0], __key__=keys, tokens=padded, positions=counted, filled=len(tokens))


def make_loader(asked: dict[str, Any]) -> Any:
    """A savable loader, as asked."""
    encoder = Packs(asked["capacity"], asked["packer"])
    options: dict[str, Any] = {"packing_buffer_size": asked["window"]}
    if api.__name__ == "bridge_data":
        encoder.select_samples_to_pack = api.Packing(
            length=lambda sample: len(sample.tokens), capacity=asked["capacity"], overlong="drop"
        )
    if asked["packing"] == "planned":
        options = {"packing": "planned", "planning_window": asked["window"]}
    dataset = api.get_train_dataset(
        asked["data"],
        worker_config=api.WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=None,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=encoder,
        **options,
    )
    return api.get_savable_loader(dataset)


def measure(asked: dict[str, Any]) -> dict[str, float]:
    """The figures."""
    loader = make_loader(asked)
    packs = iter(loader)
    count = int(asked["samples"] * asked["mean"] / asked["capacity"])
    for _ in range(4 * LANES):
        next(packs)
    filled, begin = 0, time.process_time()
    for _ in range(count):
        filled += next(packs).filled
    took = time.process_time() - begin
    states = []
    for _ in range(STATES):
        for _ in range(count // (2 * STATES)):
            next(packs)
        states.append(pickle.dumps(loader.save_state_rank()))
    begin = time.perf_counter()
    restored = make_loader(asked)
    restored.restore_state_rank(pickle.loads(states[-1]))
    next(iter(restored))
    return {
        "fill": filled / count / asked["capacity"],
        "packs_per_s": count / took,
        "state_bytes": statistics.mean(map(len, states)) * (1 if api.__name__ == "bridge_data" else LANES),
        "restore_s": time.perf_counter() - begin,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure(json.loads(sys.argv[1]))))
