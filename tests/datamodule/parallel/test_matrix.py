"""Megatron jobs of two and four gloo ranks, divided in many ways: all ranks of a replica get equal batches, replicas
different ones, and with "broadcast" one rank of a replica reads."""

import collections
import json
from typing import Any

import pytest

from tests.datamodule.parts import NUM_TRAIN, NUM_VAL, write_numbers
from tests.ranks import run_job

pytestmark = pytest.mark.processes

WORLDS = {2: ("2x1x1", "1x2x1", "1x1x2"), 4: ("2x1x1", "1x2x1", "1x1x2", "2x2x1", "1x1x4")}
"""TP x CP x PP; what is left of the ranks is data parallel."""


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.slow), 4])
def job(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[dict[str, Any]]]:
    """What each rank of a job of so many saw."""
    folder = tmp_path_factory.mktemp("matrix")
    data = write_numbers(folder / "data")
    world_size = request.param
    program = ("tests.datamodule.parallel.matrix_job", str(data), str(folder), *WORLDS[world_size])
    status, output = run_job(*program, num_ranks=world_size, timeout_s=170)
    assert status == 0, output
    return world_size, [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world_size)]


def by_replica(ranks: list[dict[str, Any]], case: str) -> dict[int, list[dict[str, Any]]]:
    """The ranks that get data, by data-parallel rank."""
    replicas = collections.defaultdict(list)
    for rank in ranks:
        if "idle" not in rank[case]:
            replicas[rank[case]["place"][0]].append(rank[case])
    return replicas


def test_ranks_of_a_replica_see_equal_batches_and_replicas_are_disjoint(job: Any) -> None:
    world_size, ranks = job
    for topology in WORLDS[world_size]:
        for share in ("replicate", "broadcast"):
            replicas = by_replica(ranks, f"{topology} {share}")
            for members in replicas.values():
                for what in ("digests", "state", "resumed", "chunks", "evaluated"):
                    assert all(member[what] == members[0][what] for member in members), (topology, share, what)
                first = members[0]
                assert first["resumed"] == first["digests"][6:9]
                assert first["chunks"][0] == first["chunks"][1]
                assert first["evaluated"] == first["evaluated again"]
            numbers = [number for members in replicas.values() for number in members[0]["numbers"]]
            assert len(set(numbers)) == len(numbers)


def test_who_reads_changes_neither_batches_nor_states(job: Any) -> None:
    world_size, ranks = job
    for topology in WORLDS[world_size]:
        for rank in ranks:
            replicated, sent = rank[f"{topology} replicate"], rank[f"{topology} broadcast"]
            if "idle" not in sent:
                for what in ("digests", "state", "resumed", "evaluated"):
                    assert sent[what] == replicated[what], (topology, what)


def test_evaluations_of_all_ranks_end_together_and_are_whole(job: Any) -> None:
    world_size, ranks = job
    for topology in WORLDS[world_size]:
        for share in ("replicate", "broadcast"):
            replicas = by_replica(ranks, f"{topology} {share}")
            seen = [member["whole evaluation"] for members in replicas.values() for member in members]
            assert len({num_batches for _, num_batches in seen}) == 1
            names = sorted(name for members in replicas.values() for name in members[0]["whole evaluation"][0])
            assert names == sorted(map(str, range(NUM_TRAIN, NUM_TRAIN + NUM_VAL)))


def test_one_rank_of_a_replica_reads_and_middle_stages_get_nothing(job: Any) -> None:
    world_size, ranks = job
    for topology in WORLDS[world_size]:
        tp, cp, pp = map(int, topology.split("x"))
        idle = [rank[f"{topology} broadcast"] for rank in ranks if "idle" in rank[f"{topology} broadcast"]]
        assert len(idle) == world_size // pp * max(pp - 2, 0)
        for members in by_replica(ranks, f"{topology} broadcast").values():
            assert sum(member["bytes"] > 0 for member in members) == 1
            assert len(members) == tp * cp * min(pp, 2)
        read = {
            share: sum(member["bytes"] for m in by_replica(ranks, f"{topology} {share}").values() for member in m)
            for share in ("replicate", "broadcast")
        }
        # The reader is ahead by the batches that lie ready: 2, and the one that it holds in hand.
        assert read["broadcast"] <= read["replicate"] / (tp * cp * pp) * (10 + 3) / 10


def test_context_parallel_ranks_have_zigzag_parts_of_each_packed_sequence(job: Any) -> None:
    _, ranks = job
    for members in by_replica(ranks, "1x2x1 broadcast").values():
        assert len(members) == 2
        first, second = sorted(members, key=lambda member: member["place"][2])
        whole = first["whole"]
        assert first["part"] == [whole[i] for i in (0, 3, 4, 5, 6, 13, 14, 15)]
        assert sorted(first["part"] + second["part"]) == whole
        assert all(member["unpacked part"] == member["megatron's part"] for member in members)
