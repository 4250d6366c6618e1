"""Encoded samples that loaders share: what they make once, what is never shared, and what a user sees of it."""

import collections
import concurrent.futures
import dataclasses
import enum
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from bridge_data import DefaultTaskEncoder, Memo, Packing, SkipSample, TextSample, edataclass, get_savable_loader
from bridge_data.errors import ConfigError, FatalSampleError
from bridge_data.lanes import lane_dataset
from bridge_data.order import SampleRef
from bridge_data.plugins.caches import memo as memo_module
from bridge_data.plugins.caches.memo import MemoFiles
from bridge_data.plugins.stores import object_store, prefetching
from bridge_data.task.task_encoder import stateless
from tests.lanes import planned_packs
from tests.object_store import Bucket, Server, faulty_proxy
from tests.prepared import train_dataset, val_dataset, write_texts
from tests.task.stores.processes import Child

SIZE = 24


@edataclass
class Encoded(TextSample):
    """A text with tensors, one of them large enough to be mapped."""

    tokens: torch.Tensor
    pixels: torch.Tensor


class Counting(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Notes each call of its hook in a file."""

    def __init__(self, calls: Path) -> None:
        super().__init__()
        self.calls = calls

    def note(self, sample: Any) -> None:
        with open(self.calls, "a") as file:
            file.write(f"{sample.__key__}\n")

    def made(self, sample: Any, more: int = 0) -> Encoded:
        number = int(sample.text) + more
        tokens, pixels = torch.full((3,), number), torch.full((70_000,), number * 1.0)
        return Encoded.derive_from(sample, text=sample.text, tokens=tokens, pixels=pixels)


class Plain(Counting):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        self.note(sample)
        return self.made(sample)


class Drawing(Counting):
    def encode_sample(self, sample: Any) -> Any:
        self.note(sample)
        return self.made(sample, int(torch.randint(1_000_000, ())))


class Skipping(Counting):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        self.note(sample)
        if int(sample.text) % 3 == 1:
            raise SkipSample("it is one of three")
        return self.made(sample)


class Failing(Counting):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        self.note(sample)
        if int(sample.text) % 3 == 1:
            raise ValueError("it is one of three")
        return self.made(sample)


class Splitting(Counting):
    @stateless
    def encode_sample(self, sample: Any) -> Iterator[Any]:
        self.note(sample)
        for more in range(int(sample.text) % 3):
            yield self.made(sample, more)


class Numbered(Counting):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        self.note(sample)
        return self.made(sample, self.current_sample_index)


class Packed(Counting):
    select_samples_to_pack = Packing(length=lambda sample: len(sample.text) + 1, capacity=6, overlong="drop")

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        self.note(sample)
        return self.made(sample)

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        sample.tokens += 1
        return sample

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"tokens": torch.cat([sample.tokens for sample in samples]), "__restore_key__": ()}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("memo") / "texts", SIZE)


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process no sample is made again to check the memo: tests count how often one is made."""
    monkeypatch.setattr(memo_module.LaneMemo, "_is_checked", lambda self, name: False)


IS_CHECKED = memo_module.LaneMemo._is_checked
MOST_CHECKED = 40
"""More samples than the lanes of two loaders with workers make again to check the memo."""


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def memo() -> Iterator[Memo]:
    """A memo that another process of the user keeps open; nothing is left of it at the end."""
    folder = Path(f"/dev/shm/memo-of-tests-{os.getpid()}")
    settings = Memo(folder, version="1", max_bytes=256 << 20)
    files = MemoFiles(settings)
    yield settings
    del files
    assert not folder.exists()


def of(encoder: type[Counting], calls: Path) -> dict[str, Any]:
    options: dict[str, Any] = {"packing_buffer_size": 10} if encoder is Packed else {}
    return {"task_encoder": encoder(calls), **options}


def read(data: Path, memo: Any, count: int = 30, **options: Any) -> tuple[list[Any], Any, Any]:
    """The first batches, as far as they can be compared, with the state after them and the metrics."""
    with get_savable_loader(train_dataset(data, **options), memo=memo) as loader:
        batches = [plain(batch) for _, batch in zip(range(count), loader, strict=False)]
        metrics = loader.metrics()
        return batches, loader.save_state_rank(), metrics


def plain(batch: Any) -> Any:
    values = batch if isinstance(batch, dict) else {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    return {name: bits(value) if torch.is_tensor(value) else value for name, value in values.items()}


def bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.numpy().tobytes()


def count_of(calls: Path) -> int:
    count = len(calls.read_text().splitlines()) if calls.exists() else 0
    calls.unlink(missing_ok=True)
    return count


KINDS = [Plain, Drawing, Skipping, Splitting, Packed]


@pytest.mark.parametrize("encoder", KINDS)
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.processes)])
def test_a_second_loader_finds_what_a_first_has_made(
    data: Path, calls: Path, memo: Memo, encoder: type[Counting], num_workers: int
) -> None:
    """Batches, states and counts are those without a memo; hooks that draw nothing run once for all epochs."""
    options = of(encoder, calls) | {"num_workers": num_workers}
    expected = read(data, None, **options)
    made = count_of(calls)
    first = read(data, memo, **options)
    made_first = count_of(calls)
    again = read(data, memo, **options)
    made_again = count_of(calls)
    assert made_first <= SIZE + (MOST_CHECKED if num_workers else 0) or encoder is Drawing
    if num_workers == 0:  # workers may have been further ahead
        assert (made_first == made or encoder is not Drawing) and made_again == 0
    for found in (first, again):
        assert found[:2] == expected[:2]
        for name in ("skipped", "samples", "truncated"):
            assert num_workers or getattr(found[2], name) == getattr(expected[2], name)
    assert again[2].others["memo_hits"] and again[2].others["memo_bytes"]
    assert num_workers or not again[2].others["memo_misses"]


@pytest.mark.parametrize("in_blocks", [True, False])
def test_data_in_a_store_are_fetched_for_what_is_not_kept(
    bucket: Bucket, s3_server: Server, calls: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch, in_blocks: bool
) -> None:
    """What another has made after it was announced is held no longer; what was kept before is not fetched."""
    monkeypatch.setattr(object_store._known, "ahead", prefetching.Prefetcher(object_store._range))  # of no other test
    write_texts(bucket.folder / "texts", SIZE)
    if not in_blocks:
        monkeypatch.setattr(lane_dataset, "plan_blocks", lambda plan, *_, **__: [None] * len(plan.sources))
    options = of(Plain, calls) | {"repeat": False}
    with faulty_proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")

        def num_reads() -> int:
            return sum(path.endswith(".tar") and method == "GET" for method, path, _ in proxy.requests)

        with get_savable_loader(train_dataset(f"{bucket.url}/texts", **options), memo=memo) as loader:
            batches = iter(loader)
            next(batches)  # it has announced all
            expected, _, _ = read(f"{bucket.url}/texts", memo, **options)
            assert [plain(batch) for batch in batches] == expected[1:]
            assert object_store._known.ahead.num_held_bytes == 0
        num_before = num_reads()
        found, _, metrics = read(f"{bucket.url}/texts", memo, **options)
        assert (found, num_reads() - num_before, metrics.others["memo_misses"]) == (expected, 0, 0)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.processes)])
def test_loaders_in_lockstep_make_each_sample_once(data: Path, calls: Path, memo: Memo, num_workers: int) -> None:
    options = of(Plain, calls) | {"num_workers": num_workers, "repeat": False}
    with ThreadPoolExecutor(2) as executor:
        found = [*executor.map(lambda _: read(data, memo, **options)[:2], range(2))]
    assert found[0] == found[1]
    assert SIZE <= count_of(calls) <= SIZE + (MOST_CHECKED if num_workers else 0)


class SlowTexts(planned_packs.Encoder):
    """Texts that take long enough for another to wait; `made` has those of all encoders."""

    made: ClassVar[collections.Counter[int]] = collections.Counter()

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        self.made[sample.__restore_key__[2]] += 1
        time.sleep(0.002)
        return super().encode_sample(sample)


def test_planned_packs_in_lockstep_make_each_sample_once(tmp_path: Path, memo: Memo) -> None:
    planned_packs.write_measured(tmp_path, 120)

    def found(memo: Memo | None) -> list[Any]:
        data = planned_packs.planned(tmp_path, SlowTexts(), repeat=False)
        data.wrappers = ()  # whose samples would be made again, too
        with get_savable_loader(data, memo=memo) as loader:
            return [*loader, loader.save_state_rank()]

    expected = found(None)
    SlowTexts.made.clear()
    with ThreadPoolExecutor(2) as executor:
        assert [*executor.map(found, [memo, memo])] == [expected, expected]
    made = SlowTexts.made
    assert {made[index] for index in made if not planned_packs.is_split(index)} == {1}  # a split one is found by each


def test_training_validation_and_ranks_share(data: Path, calls: Path, memo: Memo) -> None:
    read(data, memo, SIZE, repeat=False, **of(Plain, calls))
    for rank in range(2):
        read(data, memo, SIZE, repeat=False, rank=rank, world_size=2, seed=5, **of(Plain, calls))
    with get_savable_loader(val_dataset(data, **of(Plain, calls)), memo=memo) as loader:
        assert len(list(loader)) == SIZE / 2
    assert count_of(calls) == SIZE


def test_a_part_that_a_reshard_leaves_to_a_lane_is_not_kept_as_its_sample(
    data: Path, calls: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(memo: memo_module.LaneMemo, ref: SampleRef) -> None:
        """As if others made all that this lane needs: it makes what comes after."""
        while memo._make_ahead(ref):
            pass

    monkeypatch.setattr(memo_module.LaneMemo, "_find", find)
    with get_savable_loader(train_dataset(data, num_lanes=2, **of(Splitting, calls))) as loader:
        assert len([batch for _, batch in zip(range(2), loader, strict=False)]) == 2  # in the middle of a sample
        state = loader.save_state_rank()
    with get_savable_loader(train_dataset(data, num_lanes=3, **of(Splitting, calls)), memo=memo) as loader:
        loader.restore_state_rank(state)
        assert len([batch for _, batch in zip(range(3), loader, strict=False)]) == 3  # one of each lane
    monkeypatch.undo()
    options = of(Splitting, calls) | {"repeat": False}
    assert read(data, memo, **options)[0] == read(data, None, **options)[0]


def test_what_a_result_depends_on_is_in_its_key(data: Path, calls: Path, memo: Memo, tmp_path: Path) -> None:
    def is_made(encoder: type[Counting] = Plain, data: Path = data, version: str | int = "1", **options: Any) -> bool:
        read(data, dataclasses.replace(memo, version=version), **of(encoder, calls), **options)
        return count_of(calls) > 0

    assert is_made()
    assert not is_made(seed=1, num_lanes=8), "another order of the same samples, of which all are there"
    assert is_made(Drawing) and not is_made(Drawing)
    assert is_made(Drawing, seed=1)
    assert is_made(data=write_texts(tmp_path / "other", SIZE)), "other data"
    assert is_made(where="txt.bytes < 2"), "other numbers for the samples"
    assert is_made(image_decode="pil")
    assert is_made(version="2") and not is_made(version=2)


class Mode(enum.Enum):
    ONE = 1


class Names(type):
    """A metaclass whose attribute decides what a class does."""

    factor = 1


class Named(metaclass=Names):
    pass


@dataclasses.dataclass
class Sized:
    size: dataclasses.InitVar[int] = 1

    def __post_init__(self, size: int) -> None:
        self.half = functools.partial(lambda number, size: number * size, size=size)


class Stored:
    """Settings that do not tell all, as an object with a `to_dict` of its own."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def to_dict(self) -> dict[str, Any]:
        return {}


FIRST, SECOND = (lambda number: number), (lambda number: 2 * number)
TABLE: dict[str, Any] = {"factor": 1, "lock": threading.Lock()}


@functools.singledispatch
def dispatched(number: Any) -> Any:
    return number


def changed_enum(encoder: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mode.ONE, "_value_", 2)


def changed_global(encoder: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(TABLE, "factor", 2)


def changed_metaclass(encoder: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Names, "factor", 2)


def changed_dispatch(encoder: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(globals(), "dispatched", functools.singledispatch(lambda number: 2 * number))


def changed_attribute(encoder: Any, patch: pytest.MonkeyPatch) -> None:
    encoder.settings = Stored(2)


def changed_init(encoder: Any, patch: pytest.MonkeyPatch) -> None:
    encoder.sized = Sized(2)


def changed_lambda(encoder: Any, patch: pytest.MonkeyPatch) -> None:
    encoder.function = SECOND


class Changing(Plain):
    """Depends on whatever `CHANGES` change."""

    def __init__(self, calls: Path) -> None:
        super().__init__(calls)
        self.settings, self.sized, self.function = Stored(1), Sized(1), FIRST

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        self.note(sample)
        number = self.function(dispatched(self.sized.half(int(sample.text) + 1)))
        number *= Mode.ONE.value * TABLE["factor"] * Named.factor * self.settings.factor
        return Encoded.derive_from(
            sample, text=sample.text, tokens=torch.full((3,), int(number)), pixels=torch.zeros(70_000)
        )


CHANGES = [
    changed_enum,
    changed_global,
    changed_metaclass,
    changed_dispatch,
    changed_attribute,
    changed_init,
    changed_lambda,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_of_hooks_under_the_same_version_is_an_error_that_names_the_sample_and_the_field(
    data: Path, calls: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch, change: Any, caplog: Any
) -> None:
    """Or a miss, if the change is seen in the settings; under another version samples are made anew."""
    monkeypatch.setattr(memo_module.LaneMemo, "_is_checked", IS_CHECKED)
    before = read(data, memo, **of(Changing, calls))[0]
    encoder = Changing(calls)
    change(encoder, monkeypatch)
    expected = read(data, None, task_encoder=encoder)[0]
    assert expected != before
    told = ""
    try:
        assert read(data, memo, task_encoder=encoder)[0] == expected
    except FatalSampleError as error:
        told = str(error)
        error.__traceback__ = None  # it holds the loader
    assert not told or ("tokens" in told and "data-0000.tar/0000" in told and "version '1'" in told)
    caplog.clear()
    assert read(data, dataclasses.replace(memo, version="2"), task_encoder=encoder)[0] == expected


def test_one_of_256_samples_is_made_again_later_and_none_that_is_the_same_is_an_error(
    data: Path, calls: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memo_module, "CHECKED_OF", 2)
    for encoder in (Plain, Drawing, Skipping, Splitting):
        expected = read(data, memo, 60, **of(encoder, calls))[0]
        monkeypatch.setattr(memo_module.LaneMemo, "_is_checked", IS_CHECKED)
        count_of(calls)
        found, _, metrics = read(data, memo, 60, **of(encoder, calls))
        assert found == expected and metrics.others["memo_hits"] and not metrics.others["memo_misses"]
        assert metrics.others["memo_hits"] / 5 < count_of(calls) < metrics.others["memo_hits"]


@pytest.mark.parametrize("encoder", [Failing, Numbered])
def test_failures_and_what_asks_for_its_place_are_made_again(
    data: Path, calls: Path, memo: Memo, encoder: type[Counting], caplog: pytest.LogCaptureFixture
) -> None:
    expected = read(data, None, 8, **of(encoder, calls))
    made = count_of(calls)
    for _ in range(2):
        assert read(data, memo, 8, **of(encoder, calls))[:2] == expected[:2]
        again = count_of(calls)
    assert 0 < again <= made and (encoder is Failing or again == made)
    caplog.clear()  # its tracebacks hold the loader


def test_a_process_that_dies_in_the_middle_is_in_nobodys_way(data: Path, calls: Path, memo: Memo) -> None:
    class Waiting(Plain):
        ready: Callable[[str], None] | None = None

        def note(self, sample: Any) -> None:
            super().note(sample)
            if Waiting.ready is not None:
                Waiting.ready("encoding")

    def first(ready: Callable[[str], None]) -> None:
        Waiting.ready = staticmethod(ready)
        read(data, memo, **of(Waiting, calls))

    expected = read(data, None, **of(Waiting, calls))[:2]
    num_before = calls.read_text().count("\n")
    with Child(first) as child, ThreadPoolExecutor(1) as executor:
        assert child.value == "encoding"
        found = executor.submit(read, data, memo, **of(Waiting, calls))
        until = time.monotonic() + 60
        while calls.read_text().count("\n") <= 1 + num_before:  # while it waits, it makes the next samples
            assert time.monotonic() < until
            time.sleep(0.01)
        with pytest.raises(concurrent.futures.TimeoutError):
            found.result(0.1)
        child.kill()
        assert found.result(60)[:2] == expected


def test_a_process_that_has_stopped_is_not_waited_for(
    data: Path, calls: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memo_module, "MAX_WAIT_S", 0.1)
    files = MemoFiles(memo)
    names: list[int | None] = []
    claim = MemoFiles.claim
    held = threading.Event()

    def claimed_by_another(self: MemoFiles, name: str) -> int | None:
        if not held.is_set():
            held.set()
            names.append(claim(files, name))
        return claim(self, name)

    with monkeypatch.context() as patched:
        patched.setattr(MemoFiles, "claim", claimed_by_another)
        assert read(data, memo, **of(Plain, calls))[:2] == read(data, None, **of(Plain, calls))[:2]
    assert names[0] is not None
    os.close(names[0])


@pytest.mark.parametrize("damage", [b"", b"bdmemo", None])
def test_damaged_files_are_made_again(data: Path, calls: Path, memo: Memo, damage: bytes | None) -> None:
    expected = read(data, memo, **of(Plain, calls))[:2]
    for file in Path(memo.folder).rglob("entries/*"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content if damage is None else damage)
    assert count_of(calls) == SIZE
    assert read(data, memo, **of(Plain, calls))[:2] == expected
    assert count_of(calls) == SIZE
    assert read(data, memo, **of(Plain, calls))[:2] == expected
    assert count_of(calls) == 0


def test_users_may_write_into_what_they_get(data: Path, calls: Path, memo: Memo) -> None:
    class Writing(Plain):
        @stateless
        def batch(self, samples: list[Any]) -> Any:
            for sample in samples:
                sample.tokens += 1
                sample.pixels *= 2
            return super().batch(samples)

    expected = read(data, None, **of(Writing, calls))[:2]
    assert [read(data, memo, **of(Writing, calls))[:2] for _ in range(2)] == [expected] * 2


def test_the_bound_is_kept_and_what_does_not_fit_goes_to_the_disk(data: Path, calls: Path, tmp_path: Path) -> None:
    small = Memo(tmp_path / "memory", version="1", max_bytes=1 << 20)
    expected = read(data, None, **of(Plain, calls))[:2]
    count_of(calls)
    assert read(data, small, **of(Plain, calls))[:2] == expected
    assert count_of(calls) > SIZE
    assert not (tmp_path / "memory").exists()
    both = Memo(tmp_path / "memory", version="1", max_bytes=1 << 20, disk=tmp_path / "disk")
    for _ in range(2):
        assert read(data, both, **of(Plain, calls))[:2] == expected
    assert SIZE < count_of(calls) < 2 * SIZE, "what was in memory is gone, what was on the disk is not"
    read(data, both, **of(Plain, calls))
    assert sum(file.stat().st_size for file in (tmp_path / "disk").rglob("entries/*")) > 20 << 18


def test_a_folder_that_others_can_write_to_is_refused(data: Path, calls: Path, tmp_path: Path) -> None:
    folder = tmp_path / f"bridge_data_memo_{os.getuid()}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match=f"{folder}.*only this user can use"):
        read(data, Memo(tmp_path, version="1"), **of(Plain, calls))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("/dev/shm", "expected a Memo"),
        ({"max_bytes": 5}, "folder"),
        ({"folder": "a", "size": 5}, "size"),
        ({"folder": 3, "version": "1"}, "folder=3"),
        ({"folder": "a"}, "version=None"),
        ({"folder": "a", "version": ""}, "version=''"),
        ({"folder": "a", "version": "1", "max_bytes": 0}, "max_bytes=0"),
        ({"folder": "a", "version": "1", "disk": ""}, "disk=''"),
    ],
)
def test_a_wrong_setting_is_refused(data: Path, given: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        get_savable_loader(train_dataset(data), memo=given)


def test_settings_may_be_a_mapping_and_data_in_memory_are_not_kept(calls: Path, memo: Memo) -> None:
    given = {"folder": memo.folder, "version": 1, "max_bytes": 1 << 20}
    items: Any = [TextSample(__key__=str(number), text=str(number)) for number in range(4)]
    for _ in range(2):
        with get_savable_loader(train_dataset(items), memo=given) as loader:
            next(iter(loader))
            assert loader.metrics().others["memo_hits"] == 0
