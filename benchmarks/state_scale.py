"""States of a large run: the size of lanes that pack, of a job of 1,024 ranks, and the time to gather and restore them.

The lane states come from a real job with 8 lanes, over blends of small JSONL files; the job of 8,192 lanes is made of
copies of them. Its ranks are a few processes on this machine, each with its share of the lanes. So what is gathered has
the true size, but comes from fewer ranks, over loopback.
"""

import dataclasses
import gc
import json
import multiprocessing
import pickle
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bridge_data import (
    Cooker,
    DefaultTaskEncoder,
    LaneDataset,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_train_dataset,
    stateless,
)
from bridge_data.loader.checkpoint import save_states
from bridge_data.loader.rank_states import distribute_state, gather_state
from bridge_data.loader.workers.messages import change_of, changed
from bridge_data.order.state import LaneState, LoaderState
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.task import Packing

RANKS, LANES_OF_RANK, REAL_LANES = 1_024, 8, 8
NUM_LANES = RANKS * LANES_OF_RANK
PROCESSES = 4
BUFFER, CAPACITY, NUM_BATCHES = 1_000, 160, 600
CHECKPOINT_SOURCES = 20


@stateless
def cook(sample: dict[str, Any]) -> TextSample:
    """A text that says how long it is."""
    return TextSample(**basic_sample_keys(sample), text=sample["json"]["text"])


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Packs texts of 10 to 59 tokens: five to a pack."""

    cookers = (Cooker(cook),)

    def __init__(self) -> None:
        super().__init__()
        self.select_samples_to_pack = Packing(length=lambda text: int(text.text), capacity=CAPACITY, overlong="drop")

    @stateless
    def pack_selected_samples(self, samples: list[TextSample]) -> TextSample:
        """The first sample represents the pack."""
        return samples[0]


def write_blend(folder: Path, num_sources: int) -> Path:
    """A blend of `num_sources` JSONL files, with at least 40,000 samples in total."""
    rng = random.Random(0)
    lines = ["__module__: megatron.energon", "__class__: MetadatasetV2", "splits:", "  train:", "    blend:"]
    for source in range(num_sources):
        path = folder / f"source{source:04d}.jsonl"
        texts = (json.dumps({"text": str(rng.randint(10, 59))}) for _ in range(max(64, 40_000 // num_sources)))
        path.write_text("\n".join(texts) + "\n")
        prepare_jsonl(path)
        lines += [f"      - path: {path.name}", "        weight: 1"]
    blend = folder / "blend.yaml"
    blend.write_text("\n".join(lines) + "\n")
    return blend


def dataset_of(blend: Path, buffer: int | None) -> LaneDataset:
    return get_train_dataset(
        blend,
        worker_config=WorkerConfig(0, 1, 0, num_lanes=REAL_LANES),
        batch_size=1,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        packing_buffer_size=buffer,
        task_encoder=Encoder(),
    )


def timed_states(dataset: LaneDataset, number: int) -> tuple[list[LaneState], float]:
    """The states of a lane after each batch, from its second packing buffer on, and the median time to build one."""
    lane = dataset.lane(number, dataset.new_state())
    build, times = lane.state, []

    def timed() -> LaneState:
        begin = time.perf_counter()
        state = build()
        times.append(time.perf_counter() - begin)
        return state

    vars(lane)["state"] = timed
    states = [lane.next().state for _ in range(2 * NUM_BATCHES)][NUM_BATCHES:]
    return states, statistics.median(times[NUM_BATCHES:])


def median_us(work: Callable[[Any], object], arguments: Iterable[Any]) -> float:
    times = []
    for argument in arguments:
        begin = time.perf_counter()
        work(argument)
        times.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(times)


def pipe_us(states: list[LaneState]) -> tuple[float, float]:
    """Median time to pickle a state for the worker's socket and to have it again: as its change, and whole."""
    pairs = list(zip([{}, *states], states, strict=False))
    sent = [pickle.dumps(change_of(*pair), 5) for pair in pairs]
    send = median_us(lambda pair: pickle.dumps(change_of(*pair), 5), pairs)
    received = zip([{}, *states], sent, strict=False)
    receive = median_us(lambda item: changed(item[0], pickle.loads(item[1])), received)
    whole = median_us(lambda state: pickle.loads(pickle.dumps(state, 5)), states)
    return send + receive, whole


def job_of(dataset: LaneDataset, lanes: list[LaneState], num_lanes: int = NUM_LANES) -> LoaderState:
    """The state of a job whose lanes are deep copies of `lanes`, in turn."""
    texts = [json.dumps(lane) for lane in lanes]
    of_lanes = {lane: json.loads(texts[lane % len(texts)]) for lane in range(num_lanes)}
    first = dataset.new_state(num_lanes)
    return dataclasses.replace(first, lanes=of_lanes, next_slot=num_lanes * NUM_BATCHES)


def between_ranks(state: LoaderState) -> dict[str, float]:
    """Seconds to gather the state of the job to rank 0, and to restore it with and without handing it on."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        ranks = [context.Process(target=_rank, args=(rank, state, folder, queue)) for rank in range(PROCESSES)]
        gc.collect()
        gc.freeze()  # or each rank would copy all of it when it looks for garbage
        for process in ranks:
            process.start()
        seconds: dict[str, float] = queue.get()
        for process in ranks:
            process.join()
            assert not process.exitcode
        gc.unfreeze()
    return seconds


def _rank(rank: int, state: LoaderState, folder: str, queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=PROCESSES)
    config = WorkerConfig(rank, PROCESSES, 0)
    own = state.of_rank(config)

    def timed(work: Callable[[], Any]) -> tuple[Any, float]:
        dist.barrier()
        begin = time.perf_counter()
        result = work()
        dist.barrier()
        return result, time.perf_counter() - begin

    saved, gather = timed(lambda: gather_state(own, config).to_dict())
    assert len(saved["lanes"]) == (len(own.lanes) if rank else state.num_lanes)
    _, agree = timed(lambda: distribute_state(saved, config))
    given, hand_on = timed(lambda: distribute_state(None if rank else saved, config))
    assert given == own
    if rank == 0:
        queue.put({"gather": gather, "agree": agree, "hand on": hand_on})
    dist.barrier()
    dist.destroy_process_group()


def restore_ms(dataset: LaneDataset, lanes: list[LaneState]) -> float:
    """Milliseconds to check the state of a rank of 8 lanes and to open them; no sample is read."""
    whole = dataclasses.replace(dataset.new_state(), lanes=dict(enumerate(lanes))).to_dict()
    begin = time.perf_counter()
    state = dataset.check_state(whole)
    for lane in state.lanes:
        dataset.lane(lane, state)
    return 1e3 * (time.perf_counter() - begin)


def measure(num_sources: int) -> dict[str, Any]:
    """A column of the table. Wide blends are gathered from fewer lanes: a process here would hold gigabytes."""
    num_lanes = NUM_LANES if num_sources <= 100 else NUM_LANES // 8
    with tempfile.TemporaryDirectory() as folder:
        blend = write_blend(Path(folder), num_sources)
        states, plain = timed_states(dataset_of(blend, None), 0)
        sent_plain, _ = pipe_us(states)
        dataset = dataset_of(blend, BUFFER)
        states, packing = timed_states(dataset, 0)
        sent, sent_whole = pipe_us(states)
        full = [_largest(timed_states(dataset, lane)[0]) for lane in range(REAL_LANES)]
        restore = restore_ms(dataset, full)
        state = job_of(dataset, full, num_lanes)
        seconds = between_ranks(state)
        size = sum(len(pickle.dumps(lane, 2)) for lane in full) / len(full)
    return {
        "sources": num_sources,
        "state of a lane that packs, bytes at most": size,
        f"state of {NUM_LANES:,} lanes, MB": len(pickle.dumps(state.to_dict(), 2)) * NUM_LANES / num_lanes / 1e6,
        "build a lane's state, us a batch": 1e6 * plain,
        f"  with a packing buffer of {BUFFER:,}": 1e6 * packing,
        "send it from a worker, us a batch": sent_plain,
        f"  with a packing buffer of {BUFFER:,} (its changes)": sent,
        f"  with a packing buffer of {BUFFER:,}, were it sent whole": sent_whole,
        "lanes between ranks": num_lanes,
        "  gather them to rank 0, s": seconds["gather"],
        "  restore the same ranks: agree, ms": 1e3 * seconds["agree"],
        "  restore other ranks: rank 0 hands on, s": seconds["hand on"],
        "restore 8 lanes of a rank, ms": restore,
    }


def checkpoint_bytes() -> dict[str, Any]:
    """The files of 1,024 ranks, when every lane has just filled its packing buffer, and at any moment."""
    figures: dict[str, Any] = {"sources": CHECKPOINT_SOURCES, "ranks": RANKS, "lanes": NUM_LANES}
    with tempfile.TemporaryDirectory() as folder:
        dataset = dataset_of(write_blend(Path(folder), CHECKPOINT_SOURCES), BUFFER)
        of_lanes = [timed_states(dataset, lane)[0] for lane in range(REAL_LANES)]
        rng = random.Random(0)
        moments = {
            "all buffers full": [_largest(states) for states in of_lanes],
            "at any moment": [rng.choice(states) for states in of_lanes for _ in range(8)],
        }
        for name, lanes in moments.items():
            target = Path(folder, name)
            begin = time.perf_counter()
            save_states(target, job_of(dataset, lanes).to_dict(), step=NUM_BATCHES, world_size=RANKS)
            sizes = [path.stat().st_size for path in target.iterdir()]
            figures[f"{name}: files"] = len(sizes)
            figures[f"{name}: MB in all"] = sum(sizes) / 1e6
            figures[f"{name}: MB of rank 0"] = max(sizes) / 1e6
            figures[f"{name}: s to write by one process"] = time.perf_counter() - begin
    return figures


def _largest(states: list[LaneState]) -> LaneState:
    return max(states, key=lambda state: len(json.dumps(state)))
