"""Groups for hybrid context parallelism: assigned before the step, in Megatron-core's form, and run by its own code."""

import collections
import functools
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bridge_data import ConfigError, SavableDataLoader, get_savable_loader, stateless
from bridge_data.datamodule.parallel import with_context_groups
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from tests.datamodule.jobs import run_ranks
from tests.lanes.planned_packs import Encoder, Job, planned, write_measured
from tests.object_store import Bucket

pytest.importorskip("megatron.core.pipeline_parallel.hybrid_cp_schedule")

SIZE, PACKS, MOST, NUM_RANKS = 600, 16, 16, 4
"""Samples, packs of a step, tokens of a rank, and ranks: a sample of up to 64 tokens is shared by up to 4 ranks."""


class Tokens(Encoder):
    """The tokens of a sample say which it is: twice its number, and that of its part."""

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        tokens = torch.cat([torch.full((len(text),), 2 * text.key[2] + text.key[3]) for text in samples])
        lengths = [len(text) for text in samples]
        return {
            "tokens": tokens,
            "labels": tokens.clone(),
            "loss_mask": torch.ones(len(tokens)),
            "position_ids": torch.cat([torch.arange(length) for length in lengths]),
            "cu_seqlens": torch.tensor([0, *itertools.accumulate(lengths)]),
        }


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    write_measured(folder := tmp_path_factory.mktemp("context") / "texts", SIZE)
    return folder


def of_ranks(
    data: Any, num_ranks: int = NUM_RANKS, *, multiple: int = 1, encoder: Any = None, **settings: Any
) -> list[SavableDataLoader]:
    """The loaders of all ranks."""
    dataset = planned(data, encoder or Tokens(), batch_size=PACKS, **settings)
    groups = [SimpleNamespace(rank=lambda rank=rank: rank, size=lambda: num_ranks) for rank in range(num_ranks)]
    return [get_savable_loader(with_context_groups(dataset, group, MOST, multiple=multiple)) for group in groups]


def steps_of(loaders: list[SavableDataLoader], count: int) -> list[Any]:
    """By step, what each rank has."""
    return [*zip(*(itertools.islice(loader, count) for loader in loaders), strict=True)]


def lists_of(samples: dict[int, Any]) -> dict[int, Any]:
    return {number: {name: value.tolist() for name, value in one.items()} for number, one in samples.items()}


def known(step: Any) -> collections.Counter[tuple[int, int]]:
    """(what it is, tokens) of the samples of a step that have loss, as often as their number differs."""
    whole = {number: one for samples, _ in step for number, one in samples.items()}
    pairs = ((int(one["tokens"][0]), int(one["loss_mask"].sum())) for one in whole.values())
    return collections.Counter(pair for pair in pairs if pair[1])


def holders_of(groups: Any) -> dict[int, list[int]]:
    """The ranks of each sample."""
    found: dict[int, list[int]] = collections.defaultdict(list)
    for rank, numbers in itertools.chain.from_iterable(map(enumerate, groups)):
        for number in numbers:
            found[number].append(rank)
    return found


@pytest.mark.parametrize(("num_workers", "multiple"), [(0, 1), pytest.param(1, 4, marks=pytest.mark.slow)])
def test_each_rank_has_what_the_groups_of_all_say_and_no_more(texts: Path, num_workers: int, multiple: int) -> None:
    loaders, num_shared = of_ranks(texts, num_workers=num_workers, multiple=multiple), 0
    for step in steps_of(loaders, 4):
        groups = step[0][1]
        assert all(others == groups for _, others in step)
        assert all(numbers for group in groups for numbers in group)
        holders = holders_of(groups)
        assert sorted(holders) == [*range(len(holders))]
        for rank, (samples, _) in enumerate(step):
            assert sorted(samples) == sorted(number for number, ranks in holders.items() if rank in ranks)
            for number, one in lists_of(samples).items():
                shared, length = len(holders[number]), len(one["tokens"])
                num_shared += shared > 1
                assert length % (whole := multiple * (2 * shared if shared > 1 else 1)) == 0
                assert length - sum(one["loss_mask"]) < whole
                assert one["position_ids"] == [*range(length)]
                assert one == lists_of(step[holders[number][0]][0])[number]
    assert num_shared > 20
    for loader in loaders:
        loader.close()


def test_a_step_has_the_samples_of_its_packs_on_any_ranks(texts: Path) -> None:
    packs = [*itertools.chain.from_iterable(Job(1, functools.partial(planned, texts, batch_size=1)).batches(6 * PACKS))]
    wanted = [
        collections.Counter(
            (2 * index + part, length) for pack in packs[at : at + PACKS] for *_, index, part, length in pack
        )
        for at in range(0, len(packs), PACKS)
    ]
    for num_ranks in (4, 8, 32):
        assert [*map(known, steps_of(of_ranks(texts, num_ranks), 6))] == wanted


def test_the_state_is_the_same_on_all_ranks_and_resumes_on_any(texts: Path) -> None:
    job = of_ranks(texts)
    begun = steps_of(job, 3)
    state, *others = (loader.save_state_rank() for loader in job)
    assert all(other["lanes"] == state["lanes"] for other in others)
    whole = [*map(known, steps_of(of_ranks(texts), 9))]
    assert [*map(known, begun)] == whole[:3]
    for num_ranks, num_lanes in ((4, None), (16, None), (8, 3)):
        resumed = of_ranks(texts, num_ranks, num_lanes=num_lanes)
        for loader in resumed:
            loader.restore_state_rank(state)
        assert [*map(known, steps_of(resumed, 6))] == whole[3:]


def test_steps_of_data_in_a_store_are_those_of_files(bucket: Bucket) -> None:
    write_measured(bucket.folder / "texts", 200)
    here, there = of_ranks(bucket.folder / "texts"), of_ranks(f"{bucket.url}/texts")
    assert [*map(known, steps_of(there, 3))] == [*map(known, steps_of(here, 3))]


def test_what_is_lost_longer_or_forgotten_is_in_its_step_without_loss(tmp_path: Path) -> None:
    write_measured(data := tmp_path / "texts", 200)
    before = steps_of(of_ranks(data), 3)
    gone = [number // 2 for number, _ in [*known(before[1])][:3]]
    for encoder, forget in ((Tokens(lost={*range(0, 200, 3)}), ()), (Tokens(longer=1), ()), (Tokens(), gone)):
        if forget:
            forget_samples(data, [f"{index:06d}" for index in forget], "asked for")
        job = of_ranks(data, encoder=encoder)
        after = steps_of(job, 3)
        for old, new in zip(before, after, strict=True):
            assert all(groups == old[0][1] for _, groups in new)
            for (had, _), (has, _) in zip(old, new, strict=True):
                assert {number: one["tokens"].shape for number, one in has.items()} == {
                    number: one["tokens"].shape for number, one in had.items()
                }
            assert known(new) <= known(old)
        assert sum(map(len, map(known, after))) < sum(map(len, map(known, before)))
        assert all(sum(loader.skipped.values()) for loader in job)


@pytest.mark.processes
def test_megatrons_own_step_runs_it_and_its_own_loader_gives_each_rank_the_same(texts: Path, tmp_path: Path) -> None:
    for rank, seen in enumerate(run_ranks("parallel.context_job", NUM_RANKS, tmp_path, texts)):
        ran = iter(seen["ran"])
        for (samples, groups), (wanted, same) in zip(seen["ours"], seen["theirs"], strict=True):
            assert groups == same
            assert samples.keys() == wanted.keys()
            for number, one in samples.items():
                length = len(wanted[number]["tokens"])
                assert {name: values[:length] for name, values in one.items()} == wanted[number]
                assert not any(one["loss_mask"][length:])
            holders = holders_of(groups)
            for number in itertools.chain.from_iterable(group[rank] for group in groups):
                assert next(ran) == [samples[str(number)]["tokens"][0], len(holders[number])]
        assert next(ran, None) is None


@pytest.mark.parametrize(
    ("num_ranks", "settings", "says"),
    [
        (6, {}, "power of two"),
        (4, {"world_size": 2}, "world_size=1"),
        (4, {"repeat": False}, "repeat=True"),
    ],
)
def test_what_could_make_ranks_wait_forever_is_an_error(
    texts: Path, num_ranks: int, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        of_ranks(texts, num_ranks, **settings)


def test_a_sample_that_all_ranks_together_cannot_hold_is_an_error(texts: Path) -> None:
    with pytest.raises(ConfigError, match="max_seqlen_per_dp_cp_rank=16"):
        steps_of(of_ranks(texts, 2), 4)
