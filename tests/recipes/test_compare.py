"""The comparing program must go red for every way in which runs can differ, above all for a single sample left out."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from recipes.demo.compare import log_file, main, read_run

NUM_STEPS = 6
MICRO_BATCHES = 4


def log(folder: Path, rank: int, step: int, loss: float, keys: Sequence[Sequence[str]], **of_start: int) -> None:
    """The line of a step, as the Megatron script writes it; packs name their samples with commas between them."""
    folder.mkdir(exist_ok=True)
    line = {"step": step, **of_start, "loss": loss, "keys": [[",".join(names)] for names in keys]}
    with log_file(folder, rank).open("a") as file:
        file.write(json.dumps(line) + "\n")


def write_run(
    folder: Path,
    steps: Sequence[int] = range(NUM_STEPS),
    *,
    num_ranks: int = 2,
    left_out: int | None = None,
    loss_off: float = 0.0,
) -> Path:
    """A run over samples 0, 1, 2, ... of which two make a micro-batch; `left_out` shifts all samples behind it."""
    for step in steps:
        for rank in range(num_ranks):
            numbers = range(step * MICRO_BATCHES + rank, (step + 1) * MICRO_BATCHES, num_ranks)
            samples = [[2 * n, 2 * n + 1] for n in numbers]
            names = [[f"k{s + (left_out is not None and s >= left_out)}" for s in pair] for pair in samples]
            log(folder, rank, step, 5.0 / (step + 1) + loss_off, names)
    return folder


def run_main(reference: Path, run: Path, first: int = 0, last: int = NUM_STEPS - 1) -> int:
    return main([str(reference), "--run", str(run), str(first), str(last)])


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_equal_runs_pass_at_any_number_of_ranks(
    tmp_path: Path, num_ranks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = write_run(tmp_path / "reference")
    run = write_run(tmp_path / "run", range(3, NUM_STEPS), num_ranks=num_ranks)
    assert run_main(reference, run, 3) == 0
    printed = capsys.readouterr().out
    assert "DIFFERENT" not in printed
    assert "3-5" in printed


def test_one_sample_left_out_is_red_and_the_first_place_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = write_run(tmp_path / "reference")
    assert run_main(reference, write_run(tmp_path / "run", left_out=21)) == 1
    printed = capsys.readouterr().out
    assert "DIFFERENT" in printed
    assert "step 2, micro-batch 2: keys ['k20', 'k22'], in the reference ['k20', 'k21']" in printed


def test_logs_without_keys_prove_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("reference", "run"):
        log(tmp_path / name, 0, 0, 1.0, [])
    assert run_main(tmp_path / "reference", tmp_path / "run", 0, 0) == 1
    assert "no keys were logged" in capsys.readouterr().out


def test_of_steps_that_a_resumed_run_repeats_the_last_ones_count(tmp_path: Path) -> None:
    def write(start: int, steps: range, num_ranks: int, loss: float) -> None:
        for step in steps:
            for rank in range(num_ranks):
                log(tmp_path, rank, step, loss, [[f"{start}/{step}/{rank}"]], start=start, ranks=num_ranks)

    write(0, range(1, 8), 2, 1.0)
    write(1, range(4, 6), 1, 2.0)  # from the checkpoint after step 3, on fewer ranks, and killed
    assert {step: (batch.loss, batch.num_ranks) for step, batch in read_run(tmp_path).items()} == (
        dict.fromkeys((1, 2, 3), (1.0, 2)) | dict.fromkeys((4, 5), (2.0, 1))
    )
    write(2, range(4, 7), 4, 3.0)
    log(tmp_path, 0, 7, 3.0, [["2/7/0"]], start=2, ranks=4)  # the other ranks have not logged it
    batches = read_run(tmp_path)
    assert list(batches) == [1, 2, 3, 4, 5, 6]
    assert batches[4].keys == tuple((f"2/4/{rank}",) for rank in range(4))


@pytest.mark.parametrize(
    ("written", "status"),
    [
        ({"loss_off": 1e-12}, 1),  # at the same size, losses are bit-equal
        ({"num_ranks": 1, "loss_off": 5e-5}, 0),
        ({"num_ranks": 1, "loss_off": 2e-4}, 1),
        ({"num_ranks": 1, "loss_off": float("nan")}, 1),
        *(({"steps": steps}, 1) for steps in (range(5), range(1, 6), [0, 1, 3, 4, 5], range(7), [])),
    ],
)
def test_another_loss_or_other_steps_are_red(tmp_path: Path, written: dict[str, Any], status: int) -> None:
    reference, run = write_run(tmp_path / "reference"), tmp_path / "run"
    run.mkdir()
    assert run_main(reference, write_run(run, **written)) == status
    good = write_run(tmp_path / "good")
    assert main([str(reference), "--run", str(good), "0", "5", "--run", str(run), "0", "5"]) == status
