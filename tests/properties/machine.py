"""A job as a state machine for hypothesis: any data, on any ranks and workers, which save, go on elsewhere, are
assigned again, die, and come to the end of the data.

`JobMachine` holds all that the core promises of such a job; a feature adds a subclass with its own kinds of data and
rules. What a batch must be is told by one rank without workers that is never interrupted, from the start or from where
the lanes were last resharded.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import math
import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bridge_data import (
    Cooker,
    InMemoryDataset,
    LaneDataset,
    SavableDataLoader,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    load_states,
    merge_states,
    save_states,
    stateless,
)
from bridge_data.order.plan_order import MIGRATION
from bridge_data.plan import Branch, Plan
from bridge_data.plan.blending import plan_of
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from tests.prepared import write_blend, write_texts
from tests.properties.jobs import Encoder, Packed, length_of, number_of

SIZES = (1, 7, 40, 160)
NUM_COPIES = 3
STRIDE = 10_500
"""Sample n of copy c says n + STRIDE * c: all differ, and the first of each is never left out."""

SWITCH = 100

MAX_STEPS = 20_000
"""In which an epoch of every source must have been drawn."""

MAX_PROCESSES = 3
"""Workers of all ranks together."""

EXAMPLES = int(os.environ.get("BRIDGE_DATA_EXAMPLES", "24"))
LENGTH = 8 if "BRIDGE_DATA_EXAMPLES" not in os.environ else 14

Key = tuple[int, int, int]
"""(what a sample says, epoch, part): what never comes twice."""

Batch = list[list[Key]]
"""The keys of each unit, a sample or a pack."""

Saved = dict[str, Any] | list[dict[str, Any]] | None
"""The state of a job, or of each of its ranks."""


def key_of(sample: TextSample) -> Key:
    _, epoch, _, part = sample.__restore_key__
    return number_of(sample), int(epoch), int(part)


@stateless
def text_of_line(line: Any) -> TextSample:
    return TextSample(**basic_sample_keys(line), text=line["json"]["text"])


class MachineEncoder(Encoder):
    """An encoder whose worker dies where the file `dies_at` is, which it takes away."""

    cookers = (Cooker(text_of_line),)

    def __init__(self, *, dies_at: Path | None = None, **features: Any) -> None:
        super().__init__(**features)
        self.dies_at = dies_at

    @stateless
    def encode_sample(self, sample: TextSample) -> Any:
        if self.dies_at is not None:
            with contextlib.suppress(FileNotFoundError):
                self.dies_at.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().encode_sample(sample)

    def select_samples_to_pack(self, samples: list[TextSample]) -> list[list[TextSample]]:
        """In their order; what may take more is left for the next buffer."""
        packs: list[list[TextSample]] = [[]]
        for sample in samples:
            if packs[-1] and sum(map(length_of, packs[-1])) + length_of(sample) > self.capacity:
                packs.append([])
            packs[-1].append(sample)
        return packs if len(packs) == 1 else packs[:-1]

    @stateless
    def pack_selected_samples(self, samples: list[TextSample]) -> Packed:
        return Packed(keys=[key_of(sample) for sample in samples], length=sum(map(length_of, samples)))

    @stateless
    def batch(self, samples: list[Any]) -> Batch:
        return [sample.keys if isinstance(sample, Packed) else [key_of(sample)] for sample in samples]


class GroupingMachineEncoder(MachineEncoder):
    """With groups, each of which has a batch size of its own."""

    @stateless
    def batch_group_criterion(self, sample: Any) -> tuple[Any, int | None]:
        group = (sample.length if isinstance(sample, Packed) else number_of(sample)) % self.num_groups
        return ("group", group), group + 1 if group else None


WEIGHTS = st.sampled_from([0.5, 1, 1.3, 2, 2.49, 3])


class Splitting(MachineEncoder):
    """Each micro-batch comes out as two, its first unit and the rest."""

    @stateless
    def encode_batch(self, batch: Batch) -> Iterator[Batch]:
        yield batch[:1]
        if len(batch) > 1:
            yield batch[1:]


class SplittingGroups(Splitting, GroupingMachineEncoder):
    """With groups, too."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Data and what is made of it."""

    kind: str
    """Where the samples are: a name of `JobMachine.KINDS`."""
    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    """Weights, or repetitions of an epochized blend."""
    later: float | None
    """The weight of the first source from sample `SWITCH` on, in files."""
    epochized: bool
    batch_size: int
    packing: int | None
    num_groups: int
    skip_every: int
    num_parts: int
    splits: bool
    """Whether a micro-batch comes out as two."""
    ending: str
    """`endless`, `once` (shuffled, to the end) or `ordered` (to the end)."""
    limit: int | None
    """Micro-batches after which finite data ends."""
    chunk: int | None
    per_shuffle: int
    seed: int
    every: tuple[int, ...]
    """Of each source, one sample of so many is chosen, where the kind of data can choose."""

    @property
    def is_finite(self) -> bool:
        return self.ending != "endless"

    @property
    def keeps_all(self) -> bool:
        """Whether each sample that is drawn comes out as one."""
        return not self.skip_every and self.num_parts == 1

    @property
    def is_arithmetic(self) -> bool:
        """Whether batches follow from the order alone."""
        return self.keeps_all and self.packing is None and self.num_groups == 1 and not self.splits

    @property
    def encoder(self) -> type[MachineEncoder]:
        """The class of its encoder: a hook that is there counts."""
        if self.splits:
            return SplittingGroups if self.num_groups > 1 else Splitting
        return GroupingMachineEncoder if self.num_groups > 1 else MachineEncoder

    def texts(self, copy: int) -> range:
        """What the samples of a source say, in their order."""
        return range(STRIDE * copy, STRIDE * copy + self.sizes[copy], self.every[copy])

    def names(self, suffix: str = "") -> list[str]:
        """The names of the data sets."""
        return [f"{size}-{copy}{suffix}" for copy, size in enumerate(self.sizes)]

    def where(self, suffix: str = "") -> dict[str, str]:
        """The condition of each data set that has one."""
        pairs = zip(self.names(suffix), self.every, strict=True)
        return {name: f"index % {every} = 0" for name, every in pairs if every > 1}

    def num_epochs(self) -> list[Fraction]:
        """The epochs of each source in finite data."""
        times = 1 if self.ending == "ordered" else self.per_shuffle
        repeats = self.epochized and self.ending != "ordered"
        return [times * (Fraction(str(weight)) if repeats else 1) for weight in self.weights]


def cases(kinds: Mapping[str, bool]) -> st.SearchStrategy[Case]:
    """Cases with samples of these kinds; True of a kind of which samples can be chosen."""

    def of_kind(kind: str, num_sources: int) -> st.SearchStrategy[Case]:
        each = [None] * num_sources
        return st.builds(
            Case,
            kind=st.just(kind),
            sizes=st.tuples(*(st.sampled_from(SIZES) for _ in each)),
            weights=st.tuples(*[WEIGHTS] * num_sources),
            later=st.sampled_from([None, None, 0.5, 4]),
            epochized=st.sampled_from([False, False, True]),
            batch_size=st.integers(1, 4),
            packing=st.none() | st.integers(2, 40),
            num_groups=st.sampled_from([1, 1, 3]),
            skip_every=st.sampled_from([0, 0, 3, 7]),
            num_parts=st.sampled_from([1, 1, 3]),
            splits=st.booleans(),
            ending=st.sampled_from(["endless", "endless", "once", "ordered"]),
            limit=st.sampled_from([None, None, None, 5, 20]),
            chunk=st.sampled_from([None, 1, 10, 100]),
            per_shuffle=st.sampled_from([1, 1, 2]),
            seed=st.integers(0, 1_000),
            every=st.tuples(*(st.sampled_from([1, 1, 2, 3]) if kinds[kind] else st.just(1) for _ in each)),
        )

    return st.tuples(st.sampled_from([*kinds]), st.integers(1, NUM_COPIES)).flatmap(lambda drawn: of_kind(*drawn))


STEPS = st.integers(0, 6).map(lambda number: 6 - number)
"""Micro-batches of each rank; rather more than few."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """Where a job runs."""

    world_size: int
    num_lanes: int
    num_workers: int = 0


@st.composite
def topologies(draw: st.DrawFn, num_lanes: int | None = None) -> Topology:
    """Any topology, or any for these lanes."""
    if num_lanes is None:
        world_size = draw(st.integers(1, 4), label="ranks")
        num_lanes = world_size * draw(st.integers(1, 3), label="lanes of a rank")
    else:
        world_size = draw(st.sampled_from([one for one in (1, 2, 3, 4) if num_lanes % one == 0]), label="ranks")
    most = min(MAX_PROCESSES // world_size, num_lanes // world_size, 2)
    return Topology(world_size, num_lanes, draw(st.integers(0, most), label="workers"))


class Ranks:
    """All ranks of a job, in this process; each may have workers."""

    def __init__(self, datasets: list[LaneDataset], saved: Saved = None, *, strict: bool = True) -> None:
        self.world_size = len(datasets)
        # A data set goes to other processes as a pickle, a state as JSON.
        self._loaders = [
            get_savable_loader(pickle.loads(pickle.dumps(dataset)), max_worker_restarts=100) for dataset in datasets
        ]
        if saved is not None:
            of_ranks = saved if isinstance(saved, list) else [saved] * self.world_size
            for loader, state in zip(self._loaders, of_ranks, strict=True):
                loader.restore_state_rank(json.loads(json.dumps(state)), strict=strict)
        self._streams: list[Iterator[Any] | None] = [iter(loader) for loader in self._loaders]

    @property
    def have_ended(self) -> bool:
        """Whether all have said that the pass is over."""
        return not any(self._streams)

    @property
    def are_in_one_pass(self) -> bool:
        """Whether none of them has ended before the others."""
        return all(self._streams) or self.have_ended

    def step(self) -> dict[int, Batch]:
        """The next micro-batch of each rank, by its index; none of a rank whose pass is over."""
        found = {}
        for rank, stream in enumerate(self._streams):
            if stream is None:
                continue
            batch = next(stream, None)
            if batch is None:
                self._streams[rank] = None
                continue
            begin = self._position(self._loaders[rank]) - self.world_size
            found[begin + (rank - begin) % self.world_size] = batch
        return found

    @staticmethod
    def _position(loader: SavableDataLoader) -> int:
        state = loader.save_state_rank()
        return int(state["micro_batch_index"])

    @property
    def position(self) -> int:
        """The index that a lone rank comes to next."""
        return self._position(self._loaders[0])

    @property
    def num_skipped(self) -> int:
        """Samples that were left out so far."""
        return sum(sum(loader.skipped.values()) for loader in self._loaders)

    def states(self) -> list[dict[str, Any]]:
        return [loader.save_state_rank() for loader in self._loaders]

    def begin_pass(self) -> None:
        """Go on with the next pass."""
        self._streams = [iter(loader) for loader in self._loaders]

    def close(self) -> None:
        for loader in self._loaders:
            loader.close()


class Reference:
    """What one rank without workers makes, by the index of the micro-batch."""

    def __init__(self, datasets: list[LaneDataset], saved: Saved = None, *, strict: bool = True) -> None:
        self._rank = Ranks(datasets, saved, strict=strict)
        self._first = self._rank.position
        self._batches: dict[int, Batch] = {}

    def __getitem__(self, index: int) -> Batch | None:
        """The micro-batch of an index; None if that index is passed over."""
        while index not in self._batches and not self._rank.have_ended and self._rank.position <= index:
            self._batches |= self._rank.step()
        return self._batches.get(index)

    def has_more_than(self, indices: set[int]) -> bool:
        """Whether finite data has another micro-batch besides these."""
        while not self._rank.have_ended and self._batches.keys() <= indices:
            self._batches |= self._rank.step()
        return not self._batches.keys() <= indices

    @property
    def begins_anew(self) -> bool:
        """Whether nothing was left of the pass of its state, which was known only after trying: it goes on with the
        next one."""
        return self.has_more_than(set()) and min(self._batches) < self._first


@contextlib.contextmanager
def written_sources() -> Iterator[Path]:
    """A folder with data sets of each size, of each kind."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for copy in range(NUM_COPIES):
            for size in SIZES:
                text = functools.partial(text_of, copy)
                write_texts(folder / f"{size}-{copy}", size, text, per_shard=60)
                lines = folder / f"{size}-{copy}.jsonl"
                lines.write_text("".join(json.dumps({"text": text(number)}) + "\n" for number in range(size)))
                prepare_jsonl(lines)
        yield folder


def text_of(copy: int, number: int) -> str:
    return str(number + STRIDE * copy)


def in_files(suffix: str, folder: Path, case: Case) -> Path:
    """A metadataset of data sets in files whose names end like this."""
    weights: dict[str, Any] = dict(zip(case.names(suffix), case.weights, strict=True))
    if case.later is not None and not case.epochized:
        phases = [{"from_sample": 0, "weight": case.weights[0]}, {"from_sample": SWITCH, "weight": case.later}]
        weights[case.names(suffix)[0]] = json.dumps(phases)
    file = folder / f"blend{suffix}.yaml"
    return write_blend(file, weights, epochized=case.epochized, where=case.where(suffix))


def in_memory(_: Path, case: Case) -> Plan:
    """The same samples and weights, without files."""
    sources = []
    for copy in range(len(case.sizes)):
        texts = [TextSample(__key__=f"{index:06d}", text=str(text)) for index, text in enumerate(case.texts(copy))]
        sources.append(InMemoryDataset(texts).source())
    blend = Branch("blend", tuple(zip(case.weights, sources, strict=True)), epochized=case.epochized)
    return plan_of(blend, training=True, what="blend")


def datasets_of(
    written: Path | Plan, case: Case, topology: Topology, *, dies_at: Path | None = None
) -> list[LaneDataset]:
    """The data set as each rank has it."""
    encoder = case.encoder(
        skip_every=case.skip_every, num_parts=case.num_parts, num_groups=case.num_groups, dies_at=dies_at
    )
    common = {"batch_size": case.batch_size, "packing_buffer_size": case.packing, "task_encoder": encoder}
    shuffling = {
        "shuffle_buffer_size": 20,
        "max_samples_per_sequence": case.chunk,
        "shuffle_over_epochs_multiplier": case.per_shuffle,
        "repeat": not case.is_finite,
    }
    made = []
    for rank in range(topology.world_size):
        common["worker_config"] = WorkerConfig(
            rank, topology.world_size, topology.num_workers, seed_offset=case.seed, num_lanes=topology.num_lanes
        )
        if case.ending == "ordered":
            made.append(get_val_dataset(written, split_part="train", limit=case.limit, **common))
            continue
        dataset = get_train_dataset(written, **common, **shuffling)
        made.append(dataset.first(case.limit) if case.limit and case.is_finite else dataset)
    return made


class JobMachine(RuleBasedStateMachine):
    """A job and what happens to it."""

    folder: ClassVar[Path]
    """That of `written_sources`."""
    CAN_CHOOSE: ClassVar[Mapping[str, bool]] = {"tars": False, "lines": False, "memory": False}
    """Kinds of data: whether some of the samples can be chosen."""
    WRITERS: ClassVar[Mapping[str, Callable[[Path, Case], Path | Plan]]] = {
        "tars": functools.partial(in_files, ""),
        "lines": functools.partial(in_files, ".jsonl"),
        "memory": in_memory,
    }

    def __init__(self) -> None:
        super().__init__()
        self._work = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.work = Path(self._work.name)
        self.ranks: Ranks | None = None
        self.gone: set[int] = set()
        """What samples say that were in the data and are no more."""
        self._num_saves = 0

    # What runs.

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.case = data.draw(cases(self.CAN_CHOOSE), label="case")
        self.topology = data.draw(topologies(), label="topology")
        event(f"{self.case.kind}, {self.case.ending}")
        self._begin_pass()
        self._open(None, is_new_layout=True)
        self.save()

    def datasets(self, topology: Topology, *, dies: bool = False) -> list[LaneDataset]:
        """The data set as each rank has it."""
        written = self.WRITERS[self.case.kind](self.folder, self.case)
        return datasets_of(written, self.case, topology, dies_at=self.work / "die" if dies else None)

    def _begin_pass(self) -> None:
        """Nothing has come out yet."""
        self._before: list[Batch] = []
        """The micro-batches of this pass from before the lanes were resharded."""
        self._by_index: dict[int, Batch] = {}
        """Those since."""
        self._skipped_before = 0
        """Samples that other ranks left out in this pass."""

    def _open(self, saved: Saved, *, is_new_layout: bool, strict: bool = True) -> None:
        """Open the ranks, at this state."""
        if self.ranks is not None:
            self.ranks.close()
        if is_new_layout:
            self._before = self._emitted()
            self._by_index = {}
            alone = self.datasets(Topology(1, self.topology.num_lanes))
            self._reference = Reference(alone, saved, strict=strict)
        (self.work / "die").unlink(missing_ok=True)
        self.ranks = Ranks(self.datasets(self.topology, dies=self.topology.num_workers > 0), saved, strict=strict)

    def _leave(self) -> dict[str, Any]:
        """The state of the job, which others go on with."""
        self._skipped_before += self.ranks.num_skipped
        return merge_states(self.ranks.states())

    # What happens to it.

    @rule(steps=STEPS, sees_end=st.booleans())
    def take(self, steps: int, sees_end: bool) -> None:
        """Each rank takes so many micro-batches. Finite data of which nothing is left is over then; a state of it
        begins the next pass, also where no rank has asked for more, if the order alone tells the end."""
        for _ in range(steps):
            for index, batch in self.ranks.step().items():
                assert batch == self._reference[index], (index, self.topology)
                assert index not in self._by_index, (index, self.topology)
                self._by_index[index] = batch
        if not self.case.is_finite or self._reference.has_more_than({*self._by_index}):
            return
        sees_end |= not self.case.is_arithmetic
        while sees_end and not self.ranks.have_ended:
            assert not self.ranks.step()
        self._check_pass()
        saved = self._leave()
        self._begin_pass()
        if sees_end:
            self.ranks.begin_pass()
            self._reference = Reference(self.datasets(Topology(1, self.topology.num_lanes)))
            self._skipped_before = -self.ranks.num_skipped
        else:
            self._open(saved, is_new_layout=True)
        self.save()

    @rule(steps=STEPS)
    def take_and_save(self, steps: int) -> None:
        """Come to a checkpoint."""
        self.take(steps, sees_end=True)
        self.save()

    def save(self) -> None:
        """Write a checkpoint folder."""
        self._num_saves += 1
        folder = self.work / f"iter_{self._num_saves:07d}"
        save_states(folder, self.ranks.states(), step=self._num_saves, world_size=self.topology.world_size)
        skipped = self._skipped_before + self.ranks.num_skipped
        self._saved = folder, self.case, self.topology.num_lanes, self._reference
        self._saved_pass = [*self._before], dict(self._by_index), skipped

    @rule(steps=STEPS, data=st.data())
    def move(self, steps: int, data: st.DataObject) -> None:
        """Go on with other ranks and workers, and the same lanes."""
        self.take(steps, sees_end=True)
        states, saved, is_one_pass = self.ranks.states(), self._leave(), self.ranks.are_in_one_pass
        before = self.topology
        self.topology = data.draw(topologies(before.num_lanes), label="topology")
        # A rank whose pass is over begins the next one from its own state, which tells nothing of the others.
        may_have_own = self.topology.world_size == before.world_size and is_one_pass
        has_own = may_have_own and data.draw(st.booleans(), label="own states")
        self._open(states if has_own else saved, is_new_layout=False)

    @rule(steps=STEPS, topology=topologies(), data=st.data())
    def reshard(self, steps: int, topology: Topology, data: st.DataObject) -> None:
        """Go on with any number of lanes; endless data, with other weights or batches of another size, too, if the
        plug-in for that is there."""
        self.take(steps, sees_end=True)
        saved = self._leave()
        self.topology = topology
        may_change = not self.case.is_finite and MIGRATION.find() is not None
        change = data.draw(st.sampled_from(["none", "batch_size", "weights"])) if may_change else "none"
        event(f"resharded, changed: {change}")
        if change == "batch_size":
            self.case = dataclasses.replace(self.case, batch_size=data.draw(st.integers(1, 4)))
        elif change == "weights" and not self.case.epochized:
            self.case = dataclasses.replace(self.case, weights=data.draw(st.tuples(*[WEIGHTS] * len(self.case.sizes))))
        self._open(saved, is_new_layout=True, strict=change == "none")
        if self.case.is_finite and self._reference.begins_anew:
            # The lanes whose share of a limit is left have no samples, and no lane knows. Several ranks see the end.
            self._check_pass()
            self._begin_pass()
            if topology.world_size > 1:
                while not self.ranks.have_ended:
                    assert not self.ranks.step()
                self.ranks.begin_pass()
            self.take(1, sees_end=True)

    @rule(steps=STEPS, data=st.data())
    def die(self, steps: int, data: st.DataObject) -> None:
        """Lose what came since the last checkpoint, and go on from there, on other ranks."""
        for _ in range(steps):
            self.ranks.step()
        folder, self.case, num_lanes, self._reference = self._saved
        before, by_index, self._skipped_before = self._saved_pass
        self._before, self._by_index = [*before], dict(by_index)
        self.topology = data.draw(topologies(num_lanes), label="topology")
        self._open(load_states(folder), is_new_layout=False)

    @precondition(lambda self: self.topology.num_workers > 0)
    @rule(steps=STEPS)
    def kill_a_worker(self, steps: int) -> None:
        """The next worker that encodes a sample dies."""
        (self.work / "die").touch()
        self.take(steps, sees_end=True)

    # What is promised.

    def _emitted(self) -> list[Batch]:
        return [*self._before, *(self._by_index[index] for index in sorted(self._by_index))]

    @invariant()
    def nothing_comes_twice(self) -> None:
        keys = collections.Counter(key for batch in self._emitted() for unit in batch for key in unit)
        assert max(keys.values(), default=1) == 1, keys.most_common(3)
        assert self.case.limit is None or not self.case.is_finite or len(self._emitted()) <= self.case.limit

    def _check_pass(self) -> None:
        """Finite data has come whole, up to its limit. Where hooks decide how many micro-batches a lane has, a lane
        that ends early leaves its share of the limit, and no other lane knows of it."""
        event("a pass to its end")
        emitted = self._emitted()
        keys = {key for batch in emitted for unit in batch for key in unit}
        knows_shares = self.case.is_arithmetic or self.topology.num_lanes == 1
        if self.case.limit is None or (knows_shares and len(emitted) < self.case.limit):
            whole, last = self._of_pass()
            assert self._left(whole) <= keys <= whole | last
            if not self.gone and not last and self.case.skip_every:
                drawn = sum(times * len(self.case.texts(copy)) for copy, times in enumerate(self.case.num_epochs()))
                assert self._skipped_before + self.ranks.num_skipped == drawn - len({key[:2] for key in keys})
            if self.case.keeps_all and not self.gone:
                counted = collections.Counter(text // STRIDE for text, _, _ in keys)
                for copy, times in enumerate(self.case.num_epochs()):
                    wanted = times * len(self.case.texts(copy))
                    assert counted[copy] == math.floor(wanted + Fraction(1, 2)), copy
        if self.case.ending == "ordered" and self.case.is_arithmetic and not self.gone:
            assert emitted == self._in_order()

    def _left(self, keys: set[Key]) -> set[Key]:
        """Those of samples that are still there."""
        return {key for key in keys if key[0] not in self.gone}

    def _in_order(self) -> list[Batch]:
        """The batches of ordered data on one rank with one lane."""
        alone, batches = Ranks(self.datasets(Topology(1, 1))), []
        while found := alone.step():
            batches += found.values()
        num_samples = sum(len(self.case.texts(copy)) for copy in range(len(self.case.sizes)))
        num_batches = -(-num_samples // self.case.batch_size)
        assert len(batches) == min(self.case.limit or num_batches, num_batches)
        return batches

    def _of_pass(self) -> tuple[set[Key], set[Key]]:
        """What finite data is to emit: its whole epochs, and the epoch of which it has a part."""
        per_shuffle = 1 if self.case.ending == "ordered" else self.case.per_shuffle
        whole, last = set(), set()
        for copy, times in enumerate(self.case.num_epochs()):
            # Where several epochs are shuffled together, the part that is left out is of any of them.
            certain = int(times) - int(times) % per_shuffle
            for epoch in range(math.ceil(times / per_shuffle) * per_shuffle):
                (whole if epoch < certain else last).update(self._of_epoch(copy, epoch))
        return whole, last

    def _of_epoch(self, copy: int, epoch: int) -> set[Key]:
        """What an epoch of a source is to emit."""
        case, keys = self.case, set()
        for text in case.texts(copy):
            if case.skip_every and text % case.skip_every == 1:
                continue
            num_parts = case.num_parts if text % 5 == 2 else 1
            keys |= {(text, epoch, part) for part in range(num_parts)}
        return keys

    def teardown(self) -> None:
        """Go on to the end of a pass, or of an epoch of endless data: nothing is missing."""
        with self._work:
            if self.ranks is None:
                return  # it could not be opened
            try:
                self._go_on_to_the_end()
            finally:
                self.ranks.close()

    def _go_on_to_the_end(self) -> None:
        if self.case.is_finite:
            before = self._num_saves
            for _ in range(MAX_STEPS):
                self.take(1, sees_end=True)
                if self._num_saves > before:
                    return
            raise AssertionError("the data has no end")
        saved = self._leave()
        self.topology = Topology(1, 2)
        self._open(saved, is_new_layout=True)
        missing = self._left(set().union(*(self._of_epoch(copy, 0) for copy in range(len(self.case.sizes)))))
        missing -= {key for batch in self._emitted() for unit in batch for key in unit}
        for _ in range(MAX_STEPS):
            if not missing:
                break
            missing -= {key for batch in self.ranks.step().values() for unit in batch for key in unit}
        # A sample may stay in a group that nothing fills any more.
        assert len(missing) <= (0 if self.case.num_groups == 1 else 8), missing


def settings_of(examples: int) -> settings:
    """Of a run of a machine."""
    return settings(
        max_examples=examples, stateful_step_count=LENGTH, deadline=None, suppress_health_check=list(HealthCheck)
    )
