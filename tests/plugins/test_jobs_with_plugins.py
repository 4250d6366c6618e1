"""What the core promises of a job, whatever happens to it, holds with tables, with conditions, and with samples that
are forgotten on the way."""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from bridge_data.data.metadata import META_FOLDER
from bridge_data.data.withheld import FORGOTTEN_BRIDGE, FORGOTTEN_JSONL
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from tests.properties.machine import (
    EXAMPLES,
    NUM_COPIES,
    SIZES,
    STEPS,
    STRIDE,
    Case,
    JobMachine,
    Topology,
    in_files,
    settings_of,
    text_of,
    topologies,
    written_sources,
)
from tests.tables import write_table_blend, write_text_table

SUFFIXES = {"tars": "", "Parquet": ".parquet", "saved by datasets": "-saved"}
"""The ends of the names of data sets, by their kind."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with written_sources() as folder, pytest.MonkeyPatch.context() as environment:
        environment.setenv("BRIDGE_DATA_CACHE", str(folder / "cache"))
        for copy in range(NUM_COPIES):
            for size in SIZES:
                for suffix in (".parquet", "-saved"):
                    text = functools.partial(text_of, copy)
                    write_text_table(folder / f"{size}-{copy}{suffix}", size, text, per_group=60)
        yield folder


def in_tables(suffix: str, folder: Path, case: Case) -> Path:
    weights = dict(zip(case.names(suffix), case.weights, strict=True))
    file = folder / f"blend{suffix}.yaml"
    return write_table_blend(file, weights, epochized=case.epochized, where=case.where(suffix))


class JobWithPlugins(JobMachine):
    """A job some of whose samples are chosen, and some forgotten."""

    CAN_CHOOSE = dict.fromkeys(SUFFIXES, True)
    WRITERS = {  # noqa: RUF012
        kind: functools.partial(in_tables if suffix else in_files, suffix) for kind, suffix in SUFFIXES.items()
    }

    @rule(steps=STEPS, topology=topologies(), data=st.data())
    def forget(self, steps: int, topology: Topology, data: st.DataObject) -> None:
        """Go on without some samples, but with one at least of each source."""
        self.take(steps, sees_end=True)
        forgotten = data.draw(st.sets(st.tuples(st.integers(0, NUM_COPIES - 1), st.integers(0, 20)), max_size=12))
        saved = self._leave()
        for copy in range(len(self.case.sizes)):
            texts = self.case.texts(copy)
            numbers = [
                texts[index] % STRIDE for of, index in sorted(forgotten) if of == copy and index < len(texts) - 1
            ]
            self.gone |= {STRIDE * copy + number for number in numbers}
            self._forget(copy, numbers)
        event(f"forgotten: {bool(self.gone)}")
        self.topology = topology
        self._open(saved, is_new_layout=True)
        self.save()

    def _forget(self, copy: int, numbers: list[int]) -> None:
        size, every = self.case.sizes[copy], self.case.every[copy]
        if every > 1:  # and some that the condition leaves out
            numbers = numbers + [number + 1 for number in numbers if number + 1 < size]
        root = self.folder / f"{size}-{copy}{SUFFIXES[self.case.kind]}"
        if numbers:
            keys = [f"{number:06d}" for number in numbers] if self.case.kind == "tars" else _rows(root, size, numbers)
            forget_samples(root, keys, "asked for")

    @invariant()
    def nothing_forgotten_comes(self) -> None:
        keys = {key for batch in self._by_index.values() for unit in batch for key in unit}
        assert self._left(keys) == keys

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            (self.folder / FORGOTTEN_BRIDGE).unlink(missing_ok=True)
            for copy, size in itertools.product(range(NUM_COPIES), SIZES):
                (self.folder / f"{size}-{copy}" / META_FOLDER / FORGOTTEN_JSONL).unlink(missing_ok=True)
                (self.folder / f"{size}-{copy}-saved" / FORGOTTEN_BRIDGE).unlink(missing_ok=True)


def _rows(root: Path, size: int, numbers: list[int]) -> list[str]:
    """The keys of these rows of a table: of a saved data set, in the first or second of its files."""
    if root.is_file():
        return list(map(str, numbers))
    files = sorted(file.name for file in root.glob("*.arrow"))
    half = size // len(files)
    places = [divmod(number, half) if number < half else (len(files) - 1, number - half) for number in numbers]
    return [f"{files[file]}:{row}" for file, row in places]


@pytest.mark.long
@pytest.mark.processes
def test_a_job_keeps_its_promises_with_tables_conditions_and_forgotten_samples(folder: Path) -> None:
    machine: Any = type("Machine", (JobWithPlugins,), {"folder": folder})
    run_state_machine_as_test(machine, settings=settings_of(max(4, EXAMPLES // 12)))
