"""Megatron jobs of two and four gloo ranks, divided in many ways: all ranks of a replica get equal batches, replicas
different ones, and with "broadcast" one rank of a replica reads."""

import collections
from pathlib import Path
from typing import Any

import pytest

from tests.datamodule.jobs import run_ranks
from tests.datamodule.parts import NUM_TRAIN, NUM_VAL

pytestmark = pytest.mark.processes

WORLDS = {2: ("2x1x1", "1x2x1", "1x1x2"), 4: ("2x1x1", "1x2x1", "1x1x2", "2x2x1", "1x1x4")}
"""TP x CP x PP; what is left of the ranks is data parallel."""


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.slow), 4])
def job(request: Any, path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[dict[str, Any]]]:
    """What each rank of a job of so many saw."""
    size, folder = request.param, tmp_path_factory.mktemp("matrix")
    return size, run_ranks("parallel.matrix_job", size, folder, path, *WORLDS[size], timeout_s=170)


def by_replica(ranks: list[dict[str, Any]], case: str) -> dict[int, list[dict[str, Any]]]:
    """The ranks that get data, by data-parallel rank."""
    replicas = collections.defaultdict(list)
    for rank in ranks:
        if "idle" not in rank[case]:
            replicas[rank[case]["place"][0]].append(rank[case])
    return replicas


@pytest.mark.parametrize("share", ["replicate", "broadcast"])
def test_ranks_of_a_replica_see_equal_batches_and_replicas_are_disjoint(job: Any, share: str) -> None:
    """Evaluations of all ranks end together and are whole; who reads changes neither batches nor states."""
    world_size, ranks = job
    for topology in WORLDS[world_size]:
        replicas = by_replica(ranks, f"{topology} {share}")
        for members in replicas.values():
            for what in ("digests", "state", "resumed", "chunks", "evaluated"):
                assert all(member[what] == members[0][what] for member in members), (topology, what)
            first = members[0]
            assert first["resumed"] == first["digests"][6:9]
            assert first["chunks"][0] == first["chunks"][1]
            assert first["evaluated"] == first["evaluated again"]
        numbers = [number for members in replicas.values() for number in members[0]["numbers"]]
        assert len(set(numbers)) == len(numbers)
        seen = [member["whole evaluation"] for members in replicas.values() for member in members]
        assert len({num_batches for _, num_batches in seen}) == 1
        names = sorted(name for members in replicas.values() for name in members[0]["whole evaluation"][0])
        assert names == sorted(map(str, range(NUM_TRAIN, NUM_TRAIN + NUM_VAL)))
        for rank in ranks:
            if "idle" not in rank[f"{topology} {share}"]:
                for what in ("digests", "state", "resumed", "evaluated"):
                    assert rank[f"{topology} {share}"][what] == rank[f"{topology} replicate"][what], (topology, what)


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
