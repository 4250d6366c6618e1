"""Adapters, stages of a pipeline, evaluation and skipped steps of Megatron-Bridge on our data: runs that
Bridge saves, that are killed and resumed, or start again in their process, have the samples and losses of one that
nothing happened to."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("megatron.bridge")

from tests.bridge.run_parts import GLOBAL_BATCH
from tests.bridge.variant_parts import KILLED_AFTER, NUM_STEPS, SAVED_AFTER, SKIPPED, VARIANTS
from tests.ranks import run_job
from tests.tiny_models.data import write_conversations


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_resumes_with_the_samples_and_losses_of_one_that_nothing_happened_to(name: str, tmp_path: Path) -> None:
    data = str(write_conversations(tmp_path / "conversations"))
    status, output = run_job("tests.bridge.variant_job", name, data, str(tmp_path), timeout_s=400)
    assert status == 0, output
    ranks = [Rank(tmp_path, number) for number in range(VARIANTS[name].num_ranks)]
    for rank in ranks:
        whole = rank.lines("uninterrupted")
        before = [line for line in whole if number_of(line) <= KILLED_AFTER]
        assert rank.lines("killed") == before
        after = [line for line in whole if number_of(line) >= SAVED_AFTER + ("evaluated" in line)]
        assert rank.lines("resumed") == after
        if (tmp_path / "restarted-0.jsonl").exists():
            assert rank.lines("restarted") == [*before, "restarted", *after]
        steps = [line["step"] for line in whole if "step" in line]
        assert steps == [step for step in range(NUM_STEPS) if name != "skipping" or step != SKIPPED - 1]
    check(name, [rank.lines("uninterrupted") for rank in ranks])


class Rank:
    """What a rank wrote."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number

    def lines(self, run: str) -> list[Any]:
        return [json.loads(line) for line in (self.folder / f"{run}-{self.number}.jsonl").read_text().splitlines()]


def number_of(line: Any) -> int:
    return int(line.get("step", line.get("evaluated")))


def check(name: str, ranks: list[list[Any]]) -> None:
    """What is special about a variant."""
    keys = [[[one["keys"] for one in line["micro_batches"]] for line in rank] for rank in ranks]
    if name == "pipeline":  # all stages have all
        assert keys[0] == keys[1] and {len(step) for step in keys[0]} == {GLOBAL_BATCH}
        assert {line["loss"] for line in ranks[0]} == {None} and all(line["loss"] for line in ranks[1])
    elif name == "evaluation":  # each begins with the first samples
        evaluations = [shown for line, shown in zip(ranks[0], keys[0], strict=True) if "evaluated" in line]
        assert len(evaluations) == NUM_STEPS // 2 + 1 and all(one == evaluations[0] for one in evaluations)
        assert len(evaluations[0]) == 4
