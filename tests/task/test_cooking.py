import collections
import dataclasses
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from bridge_data import (
    AugmentTaskEncoder,
    CachePool,
    ConfigError,
    Cooker,
    CrudeSample,
    DatasetError,
    DefaultTaskEncoder,
    FatalSampleError,
    FileStore,
    NoCachePool,
    PrimaryFileStore,
    Sample,
    SkipSample,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    batch_list,
    batch_stack,
    cooker,
    edataclass,
    get_loader,
    get_train_dataset,
    stateless,
    storage,
)
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.samples import SourceInfo
from bridge_data.task.cooking import choose_cooker
from bridge_data.task.task_encoder import as_type, batch_as
from tests.object_store import Bucket
from tests.task.stores.media import SAMPLES, content, dataset, write_job

FILTERS = st.none() | st.dictionaries(st.sampled_from("abc"), st.integers(0, 1))


def cook_text(sample: CrudeSample) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=sample["txt"])


CRUDE = CrudeSample(__key__="s.tar/1", __restore_key__=("a", 0, 1, 0), __subflavors__={"kind": "ocr"}, txt="hello")


def choose(cookers: list[Cooker[Any]], **subflavors: Any) -> Cooker[Any]:
    return choose_cooker(cookers, subflavors, "samples of data/x", lambda: {"png": b"", "txt": "hello"})


def test_the_first_matching_cooker_is_taken_and_provenance_kept() -> None:
    class Encoder(DefaultTaskEncoder):
        cookers = (Cooker(print, {"kind": "vqa"}), Cooker(cook_text, {"kind": "ocr"}), Cooker(print))

    assert Encoder().cook_crude_sample(CRUDE) == TextSample(
        __key__="s.tar/1", __restore_key__=("a", 0, 1, 0), __subflavors__={"kind": "ocr"}, text="hello"
    )


def test_no_matching_cooker_is_an_error_that_says_why_each_does_not_match() -> None:
    class Encoder(DefaultTaskEncoder):
        cookers = (Cooker(cook_text, {"kind": "vqa"}), Cooker(print, {"kind": "ocr", "lang": "en"}))

    with pytest.raises(ConfigError) as caught:
        Encoder().cook_crude_sample(CRUDE)
    for told in (
        "crude sample s.tar/1",
        "subflavors {'kind': 'ocr'}; tried:\n",
        "cook_text wants kind='vqa', not 'ocr'\n",
        "print wants lang='en', which is missing\n",
        "a sample: txt (str)",
        "chats: bridge_data.encoders.cook_conversation)",
    ):
        assert told in str(caught.value)
    with pytest.raises(ConfigError, match="tried: none"):
        choose([])


def test_a_json_file_without_a_cooker_shows_its_fields(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x", "tags": ["short"]}\n')
    prepare_jsonl(tmp_path / "a.jsonl")
    with pytest.raises(ConfigError, match=r"fields of a sample: json {text: str, tags: list}$"):
        get_train_dataset(
            tmp_path / "a.jsonl",
            worker_config=WorkerConfig(0, 1, 0),
            batch_size=1,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
        )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (None, {"kind": "ocr"}),  # the second could never be chosen
        ({"kind": "ocr"}, {"kind": "ocr"}),
        (None, None),
        ({"kind": "ocr"}, {"lang": "en"}),  # the place in the list would decide
    ],
)
def test_two_cookers_that_match_are_an_error_where_neither_is_the_stricter_one_before_the_other(
    first: dict[str, Any] | None, second: dict[str, Any] | None
) -> None:
    with pytest.raises(ConfigError, match=r"two cookers take samples of data/x .* cook_text .* print .*stricter one"):
        choose([Cooker(cook_text, first), Cooker(print, second)], kind="ocr", lang="en")


@given(st.lists(FILTERS, max_size=4), st.dictionaries(st.sampled_from("abc"), st.integers(0, 1)))
def test_what_is_chosen_is_the_first_match(filters: list[dict[str, int] | None], subflavors: dict[str, int]) -> None:
    cookers = [Cooker(print, wanted) for wanted in filters]
    matching = [each for each in cookers if (each.has_subflavors or {}).items() <= subflavors.items()]
    try:
        assert choose(cookers, **subflavors) is matching[0]
    except ConfigError as error:
        assert ("two cookers" if matching else "no cooker") in str(error)


def test_a_decorated_function_says_what_it_needs_in_any_order_with_stateless() -> None:
    @stateless
    @cooker(need_cache=True)
    def cached(sample: CrudeSample) -> None: ...

    @cooker(need_primary=True)
    @stateless
    def primary(sample: CrudeSample) -> None: ...

    @cooker
    def plain(sample: CrudeSample) -> None: ...

    needs = [(Cooker(f).need_primary, Cooker(f).need_cache) for f in (cached, primary, plain, print)]
    assert needs == [(False, True), (True, False), (False, False), (False, False)]


def test_sources_of_other_parts_are_added_to_the_keys() -> None:
    first, second = (SourceInfo(dataset_path=p, index=0, shard_name="s", file_names=()) for p in "ab")
    sample = CrudeSample(CRUDE, __sources__=(first,))
    assert basic_sample_keys(sample)["__sources__"] == (first,)
    assert basic_sample_keys(sample, (second,))["__sources__"] == (first, second)
    assert basic_sample_keys(CRUDE, (second,))["__sources__"] == (second,)


@edataclass
class Cooked(Sample):
    data: Any
    note: Any
    own: Any = None
    cache: Any = None


@stateless
@cooker(need_primary=True, need_cache=True)
def cook(
    sample: CrudeSample, *, media: FileStore, files: FileStore, primary: PrimaryFileStore, cache: CachePool
) -> Cooked:
    number = int(sample["json"]["file"][:6])
    data, note = media.get(sample["json"]["file"], sample), files.get(f"sub/{number}.txt", sample)
    own = primary.get(".txt", sample)
    return Cooked(**basic_sample_keys(sample), data=data, note=note, own=own, cache=type(cache).__name__)


class Encoder(DefaultTaskEncoder):
    cookers = (Cooker(cook),)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("job"))


def samples(path: Path, encoder: Any, **settings: Any) -> list[Any]:
    return list(get_loader(dataset(path, encoder, batch_size=None, **settings)))


def with_cooker(function: Any, encoder_class: Any = DefaultTaskEncoder) -> Any:
    encoder: Any = encoder_class()
    encoder.cookers = [Cooker(function)]
    return encoder


def test_a_cooker_is_given_what_the_metadataset_names_and_what_it_asks_for(job: Path) -> None:
    found = {sample.__key__.rpartition("/")[2]: sample for sample in samples(job, Encoder())}
    assert len(found) == SAMPLES
    for number in range(SAMPLES):
        sample = found[f"{number:06d}"]
        assert (sample.data, sample.note, sample.own) == (content(number), f"note {number}", f"text {number}")
        assert sample.cache == "NoCachePool"
        assert [source.file_names for source in sample.__sources__] == [
            (f"{number:06d}.json", f"{number:06d}.txt"),
            (f"{number:06d}.bin",),
            (f"sub/{number}.txt",),
            (f"{number:06d}.txt",),
        ]
        assert Path(sample.__sources__[1].dataset_path).name == "media"


def test_what_a_store_gives_is_decoded_by_the_encoder(job: Path) -> None:
    encoder: Any = Encoder()
    encoder.decoder = None

    @cooker(need_primary=True)
    def plain(sample: CrudeSample, media: FileStore, files: FileStore, primary: FileStore) -> TextSample:
        kinds = {type(each).__name__ for each in (files.get("sub/1.txt"), primary.get(".txt"), media["000001.bin"][0])}
        return TextSample(**basic_sample_keys(sample), text="".join(sorted(kinds)))

    encoder.cookers = [Cooker(plain)]
    assert {sample.text for sample in samples(job, encoder)} == {"bytes"}
    assert {sample.text for sample in samples(job, with_cooker(plain))} == {"bytesstr"}


def test_a_missing_file_loses_its_sample_and_is_counted(tmp_path: Path) -> None:
    path, told = write_job(tmp_path), []
    (tmp_path / "files/sub/3.txt").unlink()
    data = dataset(path, Encoder(), batch_size=None)
    data.worker_config.global_error_handler = lambda error, sample, sources: told.append(str(error))  # type: ignore[misc]
    loader = get_loader(data)
    assert len(list(loader)) == SAMPLES - 1
    assert loader.skipped == {"cook_crude_sample": 1}
    assert told == [
        f"auxiliary data 'files' ({tmp_path / 'files'}): there is no file 'sub/3.txt'. Add it, or fix the name. Sample "
        "data-0000.tar/000003 requested it."
    ]


def test_the_cache_pool_of_the_loader_reaches_cookers_and_hooks_and_only_these(job: Path) -> None:
    class Mine(NoCachePool):
        pass

    class Asking(Encoder):
        def encode_sample(self, sample: Any) -> Any:
            sample.cache = f"{sample.cache} {type(self.cache).__name__}"
            return sample

    for encoder in (Asking(), AugmentTaskEncoder(Asking())):
        data = dataset(job, encoder)
        assert next(iter(get_loader(data, cache_pool=Mine()))).cache == ["Mine Mine"] * 3
        assert next(iter(get_loader(data))).cache == ["NoCachePool NoCachePool"] * 3
    with pytest.raises(ConfigError, match="expected a CachePool, such as"):
        get_loader(data, cache_pool=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the cache pool is known only while a hook"):
        _ = Asking().cache


@pytest.mark.parametrize("tolerance", [2, 0])
def test_many_missing_files_stop_the_run_unless_they_are_tolerated(tmp_path: Path, tolerance: int) -> None:
    path = write_job(tmp_path)
    for number in range(6):
        (tmp_path / f"files/sub/{number}.txt").unlink()

    class Strict(Encoder):
        __default_failure_tolerance__ = tolerance

    if not tolerance:  # no limit
        assert len(samples(path, Strict())) == SAMPLES - 6
        return
    with pytest.raises(FatalSampleError, match=r"cook_crude_sample of Strict failed 3 times.*auxiliary data 'files'"):
        samples(path, Strict(), shuffle_buffer_size=None, max_samples_per_sequence=None)


def test_storage_that_fails_stops_the_run(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    data = dataset(path, Encoder())
    for file in (tmp_path / "media").glob("*.tar"):
        file.rename(file.with_suffix(".gone"))
    storage.close_files()
    with pytest.raises(DatasetError, match=r"m-0.tar: no such file"):
        list(get_loader(data))


def test_an_own_hook_may_take_the_sample_alone_and_go_on(job: Path) -> None:
    class Own(Encoder):
        def cook_crude_sample(self, sample: Any) -> Any:
            if sample["json"]["file"] == "000004.bin":
                raise SkipSample
            cooked = super().cook_crude_sample(sample)
            cooked.note += "!"
            return cooked

    assert {sample.note for sample in samples(job, Own())} == {f"note {n}!" for n in range(SAMPLES) if n != 4}


def test_an_own_hook_may_take_cooker_and_stores_as_in_energon(job: Path) -> None:
    class Own(Encoder):
        def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: dict[str, FileStore]) -> Any:
            cooked = super().cook_crude_sample(sample, cooker, aux)
            cooked.note = sorted(aux)
            return cooked

    class Around(AugmentTaskEncoder):
        def cook_crude_sample(self, *arguments: Any) -> Any:
            cooked = super().cook_crude_sample(*arguments)
            cooked.note = ("around", *cooked.note)
            return cooked

    assert samples(job, Own())[0].note == ["files", "media", "primary"]
    assert samples(job, Around(Own()))[0].note == ("around", "files", "media", "primary")


def wants_else(sample: Any, media: Any, files: Any, other: Any) -> None: ...


def too_few(sample: Any, media: Any) -> None: ...


@cooker(need_cache=True)
def asks_for_the_cache(sample: Any, media: Any) -> None: ...


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (
            [wants_else],
            r"wants_else: missing a required argument: 'other'.* wants_else\(sample, media=..., files=...\)",
        ),
        ([too_few], r"too_few: got an unexpected keyword argument 'files'"),
        ([asks_for_the_cache], r"asks_for_the_cache\(sample, media=..., files=..., cache=...\)"),
        ([], r"(?s)no cooker takes samples of .*/crude \[train\] .*: none.*fields of"),
        ([cook, cook], r"two cookers take samples of .*/crude"),
    ],
)
def test_cookers_that_do_not_fit_are_found_before_the_first_read(job: Path, functions: list[Any], message: str) -> None:
    encoder: Any = DefaultTaskEncoder()
    encoder.cookers = [Cooker(function) for function in functions]
    with pytest.raises(ConfigError, match=message):
        dataset(job, encoder)


class TakesOnlyTheSample(DefaultTaskEncoder):
    def cook_crude_sample(self, sample: Any) -> Any:  # type: ignore[override]
        return super().cook_crude_sample(sample)


@pytest.mark.parametrize("encoder", [DefaultTaskEncoder, TakesOnlyTheSample])
@pytest.mark.parametrize("name", ["primary", "cache"])
def test_auxiliary_data_may_not_take_a_name_that_is_needed(job: Path, name: str, encoder: Any) -> None:
    path = job.with_name(f"{name}.yaml")
    path.write_text(job.read_text().replace("media: media", f"{name}: media"))

    @cooker(need_primary=True, need_cache=True)
    def any_of_them(sample: Any, **stores: Any) -> None: ...

    with pytest.raises(ConfigError, match=f"{path.parent}.*'{name}'"):
        dataset(path, with_cooker(any_of_them, encoder))


def test_data_may_be_in_an_object_store(job: Path, bucket: Bucket) -> None:
    shutil.copytree(job.with_name("media"), bucket.folder / "media")
    path = job.with_name("remote.yaml")
    path.write_text(job.read_text().replace("media: media", f"media: {bucket.url}/media"))
    assert [s.note for s in samples(path, Encoder())] == [s.note for s in samples(job, Encoder())]


@dataclasses.dataclass
class Point:
    x: torch.Tensor
    name: str
    weight: float = 1.0


class Pair(NamedTuple):
    x: torch.Tensor
    name: str


POINTS = [Point(torch.ones(n), f"p{n}") for n in (1, 2)]


def test_fields_are_mapped_between_dicts_named_tuples_and_dataclasses() -> None:
    fields = {"x": torch.ones(1), "name": "a"}
    assert as_type(fields, Point).weight == 1.0
    assert as_type(Pair(**fields), dict) == fields
    assert as_type(as_type(fields, Pair), Point).name == "a"
    point = POINTS[0]
    assert as_type(point, None) is as_type(point, Point) is point
    ordered = as_type(point, collections.OrderedDict)
    assert isinstance(ordered, collections.OrderedDict)
    assert list(ordered) == ["x", "name", "weight"]


@pytest.mark.parametrize(
    ("value", "target", "message"),
    [
        (POINTS[0], Pair, "Point into Pair: Pair has no weight"),
        ({"x": 1, "y": 2}, Pair, "Pair has no y; Pair also needs name"),
        ({"x": 1}, int, "fields cannot be mapped to int"),
        (3, dict, "cannot turn a int into dict: it has no named fields"),
    ],
)
def test_what_cannot_be_mapped_is_an_error_that_names_the_fields(value: Any, target: type, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        as_type(value, target)


def test_samples_are_batched_by_field_each_with_its_own_action() -> None:
    batch = batch_as(POINTS, dict, {"x": batch_list})
    assert [tensor.tolist() for tensor in batch["x"]] == [[1], [1, 1]]
    assert batch["name"] == ["p1", "p2"]
    assert batch_as(POINTS, dict, {})["x"].tolist() == [[1, 0], [1, 1]]
    assert batch_as(POINTS, dict, {}, batch_list)["x"] == [point.x for point in POINTS]
    with pytest.raises(ConfigError, match="cannot batch int by field"):
        batch_as([1, 2], dict, {})


def test_hooks_of_yours_may_batch_by_field_as_in_energon() -> None:
    class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
        def batch(self, samples: list[Point]) -> Any:
            return self._batch(samples, Pair, actions={"x": batch_stack})

    with pytest.raises(ConfigError, match="has no weight"):
        Encoder().batch([Point(torch.ones(2), "a")])
    batch = Encoder().batch([Pair(torch.ones(2), "a"), Pair(torch.zeros(2), "b")])  # type: ignore[list-item]
    assert batch.x.tolist() == [[1, 1], [0, 0]]
