"""Whatever happens to a job, its batches are those of one rank without workers that is never interrupted, and each
sample comes once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.properties.machine import EXAMPLES, JobMachine, settings_of, written_sources


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with written_sources() as folder:
        yield folder


@pytest.mark.long
@pytest.mark.processes
def test_a_job_has_the_batches_of_one_rank_and_each_sample_once_whatever_happens_to_it(folder: Path) -> None:
    machine = type("Machine", (JobMachine,), {"folder": folder})
    run_state_machine_as_test(machine, settings=settings_of(EXAMPLES))
