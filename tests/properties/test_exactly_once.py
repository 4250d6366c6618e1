"""Exactly once, in the words of the design: (source, epoch, index, part) is never emitted twice, and emitted + skipped
+ pending is exactly what each lane has taken; for any resumes on any numbers of ranks and lanes."""

import collections
import contextlib
import dataclasses
import functools
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bridge_data import (
    InMemoryDataset,
    LaneDataset,
    TextSample,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
    merge_states,
)
from bridge_data.data.metadata import FORGOTTEN_BRIDGE, FORGOTTEN_JSONL, META_FOLDER
from bridge_data.plan import Branch, Plan
from bridge_data.plan.blending import plan_of
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from tests.prepared import write_blend, write_texts
from tests.properties.jobs import Encoder, GroupingEncoder, Job, Key, LoaderJob
from tests.tables import write_table_blend, write_text_table

EXAMPLES = int(os.environ.get("BRIDGE_DATA_EXAMPLES", "10"))
"""Examples drawn; `make test-all` asks for 3,000."""

MAX_STEPS = 50_000
"""Steps after the last resume in which an epoch of every source must have been drawn."""

SIZES = (1, 7, 40, 160, 500)
STRIDE = 21
"""Sample n of copy c says n + STRIDE * c: no source is skipped as a whole."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A plan and an encoder."""

    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    """Weights, or repetitions of an epochized blend."""
    batch_size: int
    packing: int | None
    num_groups: int
    skip_every: int
    num_parts: int
    repeat: bool
    chunk: int | None
    per_shuffle: int
    seed: int
    epochized: bool = False
    ordered: bool = False
    kind: str = "tars"
    """Where the samples are: a key of `BLENDS`."""
    every: tuple[int, ...] = ()
    """Of each source, `where: index % n = 0` chooses one sample of so many; 1: no `where:`."""

    def texts(self, source: int) -> range:
        """The numbers that the samples of a source say, in their order."""
        shift = STRIDE * source
        return range(shift, shift + self.sizes[source], self.every[source])

    @property
    def counts(self) -> list[int]:
        """The samples of each source."""
        return [len(self.texts(source)) for source in range(len(self.sizes))]

    def where(self, suffix: str = "") -> dict[str, str]:
        """The condition of each data set, whose names have an ending, that has one."""
        names = [f"{size}-{copy}{suffix}" for copy, size in enumerate(self.sizes)]
        return {name: f"index % {n} = 0" for name, n in zip(names, self.every, strict=True) if n > 1}


CASES = st.integers(1, 4).flatmap(
    lambda number: st.builds(
        Case,
        sizes=st.tuples(*[st.sampled_from(SIZES)] * number),
        weights=st.tuples(*[st.sampled_from([0.5, 1, 1.3, 2, 3])] * number),
        batch_size=st.integers(1, 5),
        packing=st.none() | st.integers(2, 40),
        num_groups=st.sampled_from([1, 1, 2, 3]),
        skip_every=st.sampled_from([0, 0, 3, 7]),
        num_parts=st.sampled_from([1, 1, 3]),
        repeat=st.sampled_from([True, True, False]),
        chunk=st.sampled_from([None, 1, 10, 100]),
        per_shuffle=st.sampled_from([1, 1, 2]),
        seed=st.integers(0, 1_000),
        epochized=st.sampled_from([False, False, True]),
        kind=st.sampled_from(["tars", "tars", "tars", "memory", "Parquet", "saved by datasets"]),
        every=st.tuples(*[st.sampled_from([1, 1, 2, 3])] * number),
    )
)


@pytest.fixture(scope="module")
def data() -> Iterator[Path]:
    with written_sources() as folder:
        yield folder


@contextlib.contextmanager
def written_sources() -> Iterator[Path]:
    """A folder with data sets of each size, of each kind, and several of them to be told apart in a blend; the cache is
    there, too."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        environment.setenv("BRIDGE_DATA_CACHE", str(Path(folder) / "cache"))
        yield _write_sources(Path(folder))


def _write_sources(folder: Path) -> Path:
    for size in SIZES:
        for copy in range(4):
            text = functools.partial(_text, STRIDE * copy)
            write_texts(folder / f"{size}-{copy}", size, text, per_shard=60)
            for name in (f"{size}-{copy}.parquet", f"{size}-{copy}-saved"):
                write_text_table(folder / name, size, text, per_group=60)
    return folder


def _text(shift: int, number: int) -> str:
    return str(number + shift)


def in_files(data: Path, case: Case) -> Path:
    file = data / "blend.yaml"
    paths = {f"{size}-{copy}": weight for copy, (size, weight) in enumerate(zip(case.sizes, case.weights, strict=True))}
    return write_blend(file, paths, epochized=case.epochized, where=case.where())


def in_tables(suffix: str, data: Path, case: Case) -> Path:
    """The same samples and weights, in tables."""
    pairs = enumerate(zip(case.sizes, case.weights, strict=True))
    paths = {f"{size}-{copy}{suffix}": weight for copy, (size, weight) in pairs}
    file = data / f"blend{suffix}.yaml"
    return write_table_blend(file, paths, epochized=case.epochized, where=case.where(suffix))


def in_memory(data: Path, case: Case) -> Plan:
    """The same samples and weights, without files."""
    sources = []
    for copy in range(len(case.sizes)):
        texts = [TextSample(__key__=f"{index:06d}", text=str(text)) for index, text in enumerate(case.texts(copy))]
        sources.append(InMemoryDataset(texts).source())
    blend = Branch("blend", tuple(zip(case.weights, sources, strict=True)), epochized=case.epochized)
    return plan_of(blend, training=True, what="blend")


SUFFIXES = {"tars": "", "Parquet": ".parquet", "saved by datasets": "-saved"}
"""The ends of the names of data sets in files, by their kind."""

BLENDS: dict[str, Callable[[Path, Case], Path | Plan]] = {
    "tars": in_files,
    "memory": in_memory,
    **{kind: functools.partial(in_tables, suffix) for kind, suffix in SUFFIXES.items() if suffix},
}


def ranks(data: Path, case: Case, world_size: int, num_lanes: int = 0) -> list[LaneDataset]:
    """The data set as each rank of a job makes it."""
    blend = BLENDS[case.kind](data, case)
    kind = GroupingEncoder if case.num_groups > 1 else Encoder
    encoder = kind(skip_every=case.skip_every, num_parts=case.num_parts, num_groups=case.num_groups)
    common: dict[str, Any] = {
        "batch_size": case.batch_size,
        "packing_buffer_size": case.packing,
        "task_encoder": encoder,
    }
    made = []
    for rank in range(world_size):
        config = WorkerConfig(
            rank=rank, world_size=world_size, num_workers=1, num_lanes=num_lanes, seed_offset=case.seed
        )
        if case.ordered:
            made.append(get_val_dataset(blend, split_part="train", worker_config=config, **common))
        else:
            made.append(
                get_train_dataset(
                    blend,
                    worker_config=config,
                    shuffle_buffer_size=20,
                    max_samples_per_sequence=case.chunk,
                    shuffle_over_epochs_multiplier=case.per_shuffle,
                    repeat=case.repeat,
                    **common,
                )
            )
    return made


def keys_in(batches: list[Any]) -> list[Key]:
    return [key for batch in batches if batch is not None for unit in batch for key in unit]


def note(case: Case) -> None:
    for feature in ("packing", "skip_every"):
        event(f"{feature}: {bool(getattr(case, feature))}")
    event(f"epochized: {case.epochized}, samples: {case.kind}")
    event(f"where: {case.kind != 'memory' and max(case.every) > 1}")
    event(f"groups: {case.num_groups > 1}, parts: {case.num_parts > 1}, repeat: {case.repeat}")


@settings(max_examples=EXAMPLES // 5, deadline=None)
@given(case=CASES, worlds=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=5), data_=st.data())
def test_the_sequence_is_the_same_for_every_world_size_that_divides_the_lanes(
    data: Path, case: Case, worlds: list[int], data_: st.DataObject
) -> None:
    note(case)
    total = 48
    reference = Job(ranks(data, case, 1, num_lanes=8))
    expected = [reference.step()[0] for _ in range(total)]
    saved: list[dict[str, Any]] = []
    found: list[Any] = []
    for number, world_size in enumerate(worlds):
        job = Job(ranks(data, case, world_size, num_lanes=8), merge_states(saved) if saved else None)
        rounds = (total - len(found)) // world_size
        steps = rounds if number == len(worlds) - 1 else data_.draw(st.integers(0, rounds))
        for _ in range(steps):
            found += job.step()
        saved = job.save()
        if all(batch is None for batch in expected[len(found) :]):
            break  # what is restored from here on is the next pass
    assert found == expected[: len(found)]


@pytest.mark.long
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    case=CASES,
    ordered=st.sampled_from([False, False, True]),
    topologies=st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0, 1, 2, 3])), min_size=2, max_size=6),
    data_=st.data(),
)
def test_every_sample_is_emitted_once_through_any_chain_of_topologies(
    data: Path, case: Case, ordered: bool, topologies: list[tuple[int, int]], data_: st.DataObject
) -> None:
    case = dataclasses.replace(case, ordered=ordered)
    note(case)
    emitted: collections.Counter[Key] = collections.Counter()
    finite = ordered or not case.repeat
    folder: Path | None = None
    forgotten: set[tuple[int, int]] = set()
    in_memory = Path("/dev/shm")  # thousands of synced files are not what is tested here
    with (
        tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as checkpoints,
        _remembered(data, case),
    ):
        for number, (world_size, lanes_per_rank) in enumerate(topologies):
            job = LoaderJob(ranks(data, case, world_size, world_size * lanes_per_rank), folder)
            if job.next_pass_has_begun:
                break
            num_emitted, names = emitted.total(), job.datasets[0].source_names
            for _ in range(data_.draw(st.integers(0, 12), label="steps before the save")):
                keys = keys_in(job.step())
                assert not {(names.index(source), index) for source, _, index, _ in keys} & forgotten
                emitted.update(keys)
            if job.next_pass_has_begun:
                break
            folder = Path(checkpoints) / f"iter_{number:07d}"
            job.save(folder, step=number)
            assert max(emitted.values(), default=1) == 1
            if not finite and case.num_parts == 1:
                drawn, not_emitted = job.accounted()
                assert emitted.total() - num_emitted + not_emitted == drawn
            for _ in range(data_.draw(st.integers(0, 3), label="steps lost to a kill")):
                job.step()
            if case.kind in SUFFIXES:
                forgotten |= data_.draw(_forgets(case), label="forgotten")
                _forget(data, case, forgotten)
        # Go on to the end of the data, or of every epoch begun, and see that nothing is missing.
        if not job.next_pass_has_begun:
            job = LoaderJob(ranks(data, case, 1, 3), folder)
    event(f"forgotten: {min(len(forgotten), 2)} of {case.kind}")
    names = job.datasets[0].source_names
    gone = {(names[source], index) for source, index in forgotten}
    before = set(emitted)
    per_shuffle = 1 if ordered else case.per_shuffle
    for number in range(MAX_STEPS):
        if job.next_pass_has_begun:
            break
        batches = job.step()
        emitted.update(keys_in(batches))
        if finite and batches == [None]:
            break
        # Endless data may keep a sample in a bucket that nothing fills any more: it is pending, not lost.
        if not finite and number % 50 == 0 and _left(_epoch(names, case, 0), gone) <= emitted.keys() | job.pending():
            break
    else:
        pytest.fail(f"after {MAX_STEPS} steps missing: {sorted(_left(_epoch(names, case, 0), gone) - emitted.keys())}")
    assert max(emitted.values(), default=1) == 1
    assert _left(emitted.keys() - before, gone) == emitted.keys() - before
    if finite:
        whole, last = _finite(names, case, per_shuffle)
        assert _left(whole, gone) <= set(emitted) <= whole | last
        if not gone and not case.skip_every and case.num_parts == 1:
            wanted = zip(names, _num_epochs(case, per_shuffle), case.counts, strict=True)
            counted = {name: math.floor(times * count + Fraction(1, 2)) for name, times, count in wanted}
            assert collections.Counter(key[0] for key in emitted) == {name: n for name, n in counted.items() if n}


def _forgets(case: Case) -> st.SearchStrategy[set[tuple[int, int]]]:
    """(source, index) of some samples, often of none; of no source all."""
    return st.sets(
        st.integers(0, len(case.sizes) - 1).flatmap(
            lambda source: st.tuples(st.just(source), st.integers(0, max(0, case.counts[source] - 2)))
        ),
        max_size=12,
    ).map(lambda found: {(source, index) for source, index in found if case.counts[source] > index + 1})


def _forget(data: Path, case: Case, forgotten: set[tuple[int, int]]) -> None:
    for source, size in enumerate(case.sizes):
        every = case.every[source]
        numbers = [index * every for other, index in sorted(forgotten) if other == source]
        numbers += [number + 1 for number in numbers if every > 1 and number + 1 < size]  # was not chosen
        root = data / f"{size}-{source}{SUFFIXES[case.kind]}"
        if numbers:
            keys = [f"{number:06d}" for number in numbers] if case.kind == "tars" else _rows(root, size, numbers)
            forget_samples(root, keys, "asked for")


def _rows(root: Path, size: int, numbers: list[int]) -> list[str]:
    """The keys of these rows of a table: of a saved data set, in the first or second of its files."""
    if root.is_file():
        return list(map(str, numbers))
    files = sorted(file.name for file in root.glob("*.arrow"))
    half = size // len(files)
    places = [divmod(number, half) if number < half else (len(files) - 1, number - half) for number in numbers]
    return [f"{files[file]}:{row}" for file, row in places]


@contextlib.contextmanager
def _remembered(data: Path, case: Case) -> Iterator[None]:
    """See that what is forgotten meanwhile is not afterwards."""
    try:
        yield
    finally:
        for source, size in enumerate(case.sizes):
            (data / f"{size}-{source}" / META_FOLDER / FORGOTTEN_JSONL).unlink(missing_ok=True)
            (data / f"{size}-{source}-saved" / FORGOTTEN_BRIDGE).unlink(missing_ok=True)
        (data / FORGOTTEN_BRIDGE).unlink(missing_ok=True)


def _left(keys: Iterable[Key], gone: set[tuple[str, int]]) -> set[Key]:
    """Those that are not forgotten."""
    return {key for key in keys if (key[0], key[2]) not in gone}


def _epoch(names: list[str], case: Case, epoch: int) -> set[Key]:
    """What an epoch of all sources is to emit."""
    keys = set()
    for copy, name in enumerate(names):
        for index, text in enumerate(case.texts(copy)):
            if case.skip_every and text % case.skip_every == 1:
                continue
            parts = case.num_parts if case.num_parts > 1 and text % 5 == 2 else 1
            keys |= {(name, epoch, index, part) for part in range(parts)}
    return keys


def _num_epochs(case: Case, per_shuffle: int) -> list[Fraction]:
    """The epochs of each source in finite data."""
    return [per_shuffle * (Fraction(str(w)) if case.epochized and not case.ordered else 1) for w in case.weights]


def _finite(names: list[str], case: Case, per_shuffle: int) -> tuple[set[Key], set[Key]]:
    """What finite data is to emit: its whole epochs, and the epoch of which it has a part."""
    wanted = {name: int(number) for name, number in zip(names, _num_epochs(case, per_shuffle), strict=True)}
    # Where several epochs are shuffled together, the part that is left out is of any of them.
    certain = {name: number - number % per_shuffle for name, number in wanted.items()}
    keys = {key for epoch in range(10) for key in _epoch(names, case, epoch)}
    whole = {key for key in keys if key[1] < certain[key[0]]}
    return whole, {key for key in keys if key[1] <= wanted[key[0]] + per_shuffle - 1}
