"""Data in a store, joins, and generators of several data sets: measured as data on a disk are. Costs are those of the
encoder, of the data that a run reads, and of now; or they are refused."""

import collections
import itertools
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bridge_data import DefaultTaskEncoder, LaneDataset, Packing, SavableDataLoader, get_savable_loader, stateless
from bridge_data.errors import DatasetError, FatalSampleError
from bridge_data.loader.metrics import LoaderMetrics
from bridge_data.plan.opening import load_plan
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from bridge_data.plugins.planned.costs import CostTable, open_costs
from bridge_data.plugins.planned.measuring import MeasureConfig, Measurement, measure_source, measured_sources
from bridge_data.plugins.planned.sample_costs import CostCheck
from bridge_data.prepare.executors import LocalProcesses
from bridge_data.run_options import DatasetOptions
from bridge_data.runs.run_plan import Planner
from tests.cli.runner import run_command
from tests.object_store import Bucket
from tests.plan.joins import joined, prepared_plan
from tests.plugins.planned.measure_encoders import Words
from tests.prepared import train_dataset, write_blend, write_texts
from tests.ranks import run_job

WORDS = "tests.plugins.planned.measure_encoders:Words"


def test_data_in_a_store_have_the_costs_of_a_disk_and_are_read_from_a_copy(bucket: Bucket, tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 200)
    shutil.copytree(folder, bucket.folder / "texts")
    costs = folder / ".nv-meta/costs"
    for path in (folder, f"{bucket.url}/texts"):
        result = run_command("prepare", path, "--costs", WORDS, "--no-progress", "--num-workers", 2)
        assert result.exit_code == 0, result.output
    (written,) = costs.iterdir()
    stored = bucket.folder / "texts/.nv-meta/costs"
    assert [file.name for file in stored.iterdir() if file.is_file()] == [written.name]
    assert (stored / written.name).read_bytes() == written.read_bytes()
    (source,) = load_plan(f"{bucket.url}/texts").sources
    table = open_costs(source.records, Words().costs_key(source))
    assert table.take(np.array([13, 12]), "tokens").tolist() == [13, 24]


def test_a_join_has_costs_of_its_own_which_those_of_its_members_do_not_replace(tmp_path: Path) -> None:
    for name, count in (("a", 30), ("b", 20)):
        write_texts(tmp_path / name, count)
    members = [{"path": "a"}, {"path": "b", "nonmatch": "none"}]
    path = joined(tmp_path / "j.yaml", members)
    (source,) = prepared_plan(path).sources
    for data in (tmp_path / "a", path, tmp_path / "a"):
        result = run_command("prepare", data, "--costs", WORDS, "--no-progress", "--num-workers", 1)
        assert result.exit_code == 0, result.output
    for one in (source, *load_plan(tmp_path / "a").sources):
        table = open_costs(one.records, Words().costs_key(one))
        assert table.take(np.array([13, 12, 9]), "tokens").tolist() == [13, 24, 0]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_store_that_nobody_may_write_is_an_error(num_workers: int, tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 20)
    (folder / ".nv-meta/costs").write_text("in the way")
    result = run_command("prepare", folder, "--costs", WORDS, "--no-progress", "--num-workers", num_workers)
    assert result.exit_code == 1 and "BRIDGE_DATA_COSTS" in result.stderr


CAPACITY = 64


class Code:
    """Stands for code that changes: it counts by the name of its class alone."""

    def __init__(self, longer: int = 0, more: Mapping[int, int] | None = None) -> None:
        self.longer, self.more = longer, more or {}


class Texts(DefaultTaskEncoder[Any, Any, Any, Any]):
    """The letters of a text, of every fifth in two samples; packs of at most 64 letters, without longer texts."""

    def __init__(self, code: Code | None = None, **packing: Any) -> None:
        super().__init__()
        self.code = code or Code()
        settings: dict[str, Any] = {"length": length_of, "capacity": CAPACITY, "overlong": "drop"} | packing
        self.select_samples_to_pack = Packing(**settings)  # type: ignore[method-assign]

    waits_for: threading.Event | None = None
    has_begun = threading.Event()

    @stateless
    def encode_sample(self, sample: Any) -> Iterator[Any]:
        if self.waits_for is not None:
            self.has_begun.set()
            self.waits_for.wait(60)
        number = sample.__restore_key__[2]
        for part in range((2 if number % 5 == 0 else 1) + self.code.more.get(number, 0)):
            yield {"tokens": "a" * (len(sample.text) + part + self.code.longer), "id": (number, part)}

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return samples


def length_of(sample: Any) -> int:
    return len(sample["tokens"])


def measured(
    path: Any, encoder: Any = None, parts: Sequence[str] = ("train",), *, rescan: bool = False
) -> list[Measurement]:
    found = []
    for dataset in measured_sources(path, parts, DatasetOptions(), {}, encoder or Texts()):
        config = MeasureConfig(executor=LocalProcesses(num_workers=1), rescan=rescan)
        made = measure_source(dataset, config, lambda *_: None)
        assert made is not None
        found.append(made)
    return found


def table_of(path: Path, encoder: Any = None, part: str = "train") -> CostTable:
    (source,) = load_plan(path, split_part=part).sources
    return open_costs(source.records, (encoder or Texts()).costs_key(source))


def run_of(dataset: LaneDataset, most: int | None = None) -> tuple[list[tuple[str, Any, int]], LoaderMetrics]:
    """(source, id, tokens) of all samples in the batches of a run, and its metrics."""
    with get_savable_loader(dataset) as loader:
        samples = itertools.chain.from_iterable(itertools.islice(loader, most))
        units = (unit if isinstance(unit, list) else [unit] for unit in samples)
        seen = [(one["__restore_key__"][0], one["id"], len(one["tokens"])) for unit in units for one in unit]
        return seen, loader.metrics()


RUNS: dict[str, dict[str, Any]] = {
    "unpacked": {"batch_size": 4},
    "online": {"packing_buffer_size": 40, "batch_size": 1},
    "planned": {"packing": "planned", "planning_window": 128, "batch_size": 1},
    "cut": {"packing_buffer_size": 40, "batch_size": 1, "overlong": "truncate"},
    "alone": {"packing_buffer_size": 40, "batch_size": 1, "overlong": "alone"},
}


def cut(sample: Any, capacity: int) -> Any:
    return {**sample, "tokens": sample["tokens"][:capacity]}


def blend_by_tokens(folder: Path) -> Path:
    path = write_blend(folder / "blend.yaml", {"short": 1, "long": 1})
    path.write_text(path.read_text().replace("    blend:", "    weight_unit: tokens\n    blend:"))
    return path


@pytest.mark.parametrize("kind", RUNS)
def test_one_measurement_serves_runs_that_pack_and_runs_that_do_not(tmp_path: Path, kind: str) -> None:
    """Weights are shares of the tokens that the run trains: what its packer drops or cuts is not in them."""
    write_texts(tmp_path / "short", 190, lambda number: "a" * 20)
    write_texts(tmp_path / "long", 200, lambda number: "a" * (20 if number % 2 else 200))
    blend = blend_by_tokens(tmp_path)
    measured(blend)
    assert table_of(tmp_path / "long").take(np.array([1, 2]), "tokens").tolist() == [20, 200]
    options = dict(RUNS[kind])
    overlong = options.pop("overlong", "drop")
    encoder = Texts(overlong=overlong, **({"truncate": cut} if overlong == "truncate" else {}))
    dataset = train_dataset(blend, num_lanes=2, task_encoder=encoder, **options)
    seen, _ = run_of(dataset, 120)
    if kind == "unpacked":
        steps = itertools.islice(Planner(dataset).steps(), 120)
        assert sum(int(step.totals.costs[0]) for step in steps) == sum(tokens for *_, tokens in seen)
    shares: collections.Counter[str] = collections.Counter()
    for source, _, tokens in seen:
        shares[source] += tokens
    assert len(shares) == 2 and max(shares.values()) / shares.total() == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("more", [1, -1])
@pytest.mark.parametrize("remeasured", ["drop", "error"])
def test_parts_that_were_not_measured_are_counted_or_an_error(
    tmp_path: Path, more: int, remeasured: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_texts(tmp_path / "texts", 100, lambda number: "a" * (70 if number == 10 else 5 + number % 7))
    measured(folder)
    encoder = Texts(Code(more={20: more, 45: more}), remeasured=remeasured)

    def dataset() -> LaneDataset:
        made = train_dataset(folder, num_lanes=1, task_encoder=encoder, repeat=False, **RUNS["planned"])
        made.wrappers = ()  # such samples are not among those that are measured again
        return made

    if remeasured == "error":
        with pytest.raises(FatalSampleError, match=r"number (20|45) of .*measure the data again"):
            run_of(dataset())
        return
    seen, metrics = run_of(dataset())
    assert len({one[1] for one in seen}) == len(seen)
    assert len(seen) == 118 + min(0, 2 * more)  # of sample 10, both parts are too long
    assert metrics.skipped == {"left_out": 1 + 2}
    assert metrics.others == {"cost_differs": 2}
    assert "number 20 of" in caplog.text or "number 45 of" in caplog.text


@pytest.mark.parametrize("code", [Code(longer=1), Code(more=dict.fromkeys(range(60), 1))], ids=["longer", "more parts"])
def test_costs_that_are_not_those_of_the_encoder_any_more_stop_runs_and_measuring(tmp_path: Path, code: Code) -> None:
    """In the trainer and in a worker, with packs and without; what is measured again is right."""
    folder = write_texts(tmp_path / "texts", 60, lambda number: "a" * (5 + number % 7))
    measured(folder)
    planned = RUNS["planned"]
    expected, _ = run_of(train_dataset(folder, task_encoder=Texts(), repeat=False, **planned))
    encoder = Texts(code)
    told = r"data-000\d\.tar/0000.*cost index.*--rescan.*costs_version"
    for options in ({"num_workers": 0, **planned}, {"num_workers": 1, **planned}, {"weight_unit": "tokens"}):
        with pytest.raises(FatalSampleError, match=told):
            run_of(train_dataset(folder, task_encoder=encoder, **options), 20)
    with pytest.raises(FatalSampleError, match=told):
        measured(folder, encoder)
    assert measured(folder, encoder, rescan=True)[0].num_measured == 60
    run_of(train_dataset(folder, task_encoder=encoder, repeat=False, **planned))
    measured(folder, rescan=True)
    assert run_of(train_dataset(folder, task_encoder=Texts(), repeat=False, **planned))[0] == expected


@pytest.mark.parametrize(("num_lanes", "asked"), [(1, None), (32, None), (None, 2)])
def test_the_costs_of_16_samples_are_checked_whatever_lanes_a_state_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_lanes: int | None, asked: int | None
) -> None:
    """At least one a lane."""
    folder = write_texts(tmp_path / "texts", 200)
    measured(folder)

    def loader_of(num_lanes: int | None) -> SavableDataLoader:
        return get_savable_loader(train_dataset(folder, num_lanes=num_lanes, task_encoder=Texts(), **RUNS["planned"]))

    state, checked = loader_of(num_lanes).save_state_rank(), []
    monkeypatch.setattr(CostCheck, "__call__", lambda self, ref, cache: checked.append(ref))
    loader = loader_of(asked)
    loader.restore_state_rank(state)
    for _ in zip(range(96), loader, strict=False):
        pass
    assert len(checked) == (32 if num_lanes == 32 else 16)


def test_a_version_keeps_costs_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_texts(tmp_path / "texts", 20)
    measured(folder)
    monkeypatch.setattr(Texts, "costs_version", "2")
    assert measured(folder, Texts(Code(longer=3)))[0].num_measured == 20
    assert table_of(folder).take(np.array([3]), "tokens").tolist() == [4]
    monkeypatch.undo()
    assert table_of(folder).take(np.array([3]), "tokens").tolist() == [1]


def test_data_sets_of_one_shape_have_costs_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a blend, and by their last names in a folder of costs."""
    sizes = {"en": 10, "de": 50}
    for name, size in sizes.items():
        write_texts(tmp_path / name / "texts", 40, lambda number, size=size: "a" * size)  # type: ignore[misc]
    blend = write_blend(tmp_path / "blend.yaml", {"en/texts": 1, "de/texts": 1})
    assert sorted(one.facts.totals[0] for one in measured(blend)) == [40 * 10 + 8 * 11, 40 * 50 + 8 * 51]
    monkeypatch.setenv("BRIDGE_DATA_COSTS", str(tmp_path / "costs"))
    for name in sizes:
        measured(tmp_path / name / "texts")
    for name, size in sizes.items():
        assert table_of(tmp_path / name / "texts").take(np.array([1]), "tokens").tolist() == [size]


@pytest.mark.parametrize("is_indexed", [True, False], ids=["with an index", "without"])
def test_data_that_were_written_again_in_the_same_shape_are_measured_again(tmp_path: Path, is_indexed: bool) -> None:
    """Their keys and sizes are those of before."""
    folder = tmp_path / "texts"
    for letters in (10, 50):
        write_texts(folder, 40, lambda number, letters=letters: "a" * letters)  # type: ignore[misc]
        if not is_indexed:
            for path in folder.glob(".nv-meta/*.bridge*"):
                path.unlink()
        if letters == 50:
            with pytest.raises(DatasetError, match=r"has changed.*bridge-data prepare"):
                table_of(folder)
        assert measured(folder)[0].num_measured == 40
        assert table_of(folder).take(np.array([1]), "tokens").tolist() == [letters]


def test_samples_that_were_forgotten_when_others_were_measured_come_back(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 150, lambda number: "a" * 9)
    keys = [f"{number:06d}" for number in range(60, 80)]

    def ids() -> set[int]:
        seen, _ = run_of(train_dataset(folder, task_encoder=Texts(), repeat=False, **RUNS["planned"]))
        return {number for _, (number, _), _ in seen}

    forget_samples(folder, keys, "asked for")
    assert measured(folder)[0].skips.keys() == {"forgotten"}
    forget_samples(folder, ["000003"], "asked for, later")
    assert ids() == {*range(150)} - {3, *range(60, 80)}
    forget_samples(folder, keys, "back", restore=True)
    with pytest.raises(DatasetError, match=r"20 samples, the first .*bridge-data prepare"):
        ids()
    assert measured(folder)[0].num_measured == 50  # of their shard
    forget_samples(folder, ["000003"], "back", restore=True)
    assert ids() == {*range(150)}


def test_two_at_once_measure_other_parts_and_not_the_same_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_texts(tmp_path / "texts", 200, lambda number: "a", ratio="3,1,0")
    size = load_plan(folder).num_samples
    others = measured(folder, parts=["val"])
    shutil.rmtree(folder / ".nv-meta/costs")
    released, found = threading.Event(), []
    monkeypatch.setattr(Texts, "waits_for", released)
    Texts.has_begun.clear()
    thread = threading.Thread(target=lambda: found.extend(measured(folder)))
    thread.start()
    try:
        assert Texts.has_begun.wait(60)
        monkeypatch.setattr(Texts, "waits_for", None)
        assert measured(folder, parts=["val"])[0].facts == others[0].facts
        with pytest.raises(DatasetError, match=r"costs.*another process is measuring the same"):
            measured(folder)
    finally:
        released.set()
        thread.join(60)
    assert [one.num_samples for one in found] == [size]
    assert table_of(folder).take(np.arange(size), "tokens").min() == 1
    assert len([*(folder / ".nv-meta/costs").iterdir()]) == 2


MEASURE_ON_A_FULL_DISK = """
import os, shutil, sys
from pathlib import Path
from bridge_data.errors import BridgeDataError
from tests.plugins.planned.test_measuring import measured
data, disk = Path(sys.argv[1]), Path(sys.argv[2])
os.environ["BRIDGE_DATA_COSTS"] = str(disk)
for free in map(int, sys.argv[3:]):
    for path in disk.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - free * 4096))
    try:
        print(measured(data)[0].num_measured)
    except BridgeDataError as error:
        print(type(error).__name__, "No space left" in str(error) and str(disk) in str(error))
"""


@pytest.mark.processes
def test_a_full_disk_is_an_error_and_no_kill(tmp_path: Path) -> None:
    data, disk = write_texts(tmp_path / "texts", 3_000, lambda number: "a" * (number % 7)), tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a file system: {mounted.stderr.strip()}")
    try:
        pages = [20, *range(48, 62, 3), 300]  # some for the lots, and not for the file of all
        status, output = run_job("-c", MEASURE_ON_A_FULL_DISK, str(data), str(disk), *map(str, pages))
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    assert status == 0, output
    told = output.splitlines()
    assert {*told} == {"DatasetError True", "3000"} and told[-1] == "3000" and told.count("DatasetError True") > 1
