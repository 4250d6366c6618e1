import functools
import importlib.util
import io
import json
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from bridge_data import (
    Cooker,
    DefaultTaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_loader,
    get_train_dataset,
)
from bridge_data.decode import SampleDecoder, SingleSourceReader, image, open_source_reader
from bridge_data.errors import ConfigError, FatalSampleError, SampleError, SkipSample
from bridge_data.plan import load_plan
from bridge_data.plugins.doctor.lint import LintConfig, lint
from bridge_data.plugins.joins.joined_reader import JoinedSourceReader
from bridge_data.prepare.tars import PrepareConfig, refresh_index
from bridge_data.samples import CaptioningSample, CrudeSample, SourceInfo
from tests import prepared
from tests.decode.pictures import encoded, frames_of, half_overwritten, picture
from tests.plan.joins import BY_FIELDS, NOTED, joined, own, prepared_plan, texts
from tests.plan.own_joins import Both, Told
from tests.plan.prepared import CAPTIONING, CRUDE, write_dataset


def jpeg(number):
    return encoded(picture((9, 6 + number), seed=number), "JPEG")


def sample(number):
    about = {"caption": f"picture {number}", "question": "what?", "answers": ["a", "b"]}
    return {"jpg": jpeg(number), "json": json.dumps(about).encode(), "broken.json": b"{", "bin": b"video"}


WHOLE_PARTS = """\
sample_type: {__module__: megatron.energon, __class__: CaptioningSample}
field_map: {image: jpg, caption: json}
"""


class OwnDecoder(SampleDecoder):
    """A decoder of a user."""


SHARDS = {
    "0.tar": {f"k{number}": sample(number) for number in range(3)},
    "deep/1.tar": {f"images/k{number}": sample(number) for number in range(3, 5)},
}


def read_at(reader, index):
    return reader.build(reader.read(index), index)


@pytest.fixture(params=["our index", "Energon's files alone"])
def make(request, tmp_path):
    """A function that makes the source of a data set, read by our index or without it."""

    def make_source(dataset_yaml, shards=SHARDS):
        (tmp_path / "deep").mkdir()
        write_dataset(tmp_path, shards, dataset_yaml=dataset_yaml)
        if request.param == "our index":
            refresh_index(tmp_path, PrepareConfig(num_workers=1))
        (source,) = load_plan(tmp_path).sources
        assert (source.records.index is not None) == (request.param == "our index")
        return source

    return make_source


def test_typed_samples_have_their_fields_and_provenance(make):
    source = make(CAPTIONING + "subflavors: {task: caption}\n")
    reader = pickle.loads(pickle.dumps(SingleSourceReader(source, SampleDecoder(image_decode="torchrgb8"))))
    loaded = [read_at(reader, index) for index in range(source.num_samples)]
    assert [type(sample) for sample in loaded] == [CaptioningSample] * 5
    assert [sample.__key__ for sample in loaded] == [f"{name}/{key}" for name, keys in SHARDS.items() for key in keys]
    assert [sample.caption for sample in loaded] == [f"picture {number}" for number in range(5)]
    for number, sample in enumerate(loaded):
        expected = np.asarray(Image.open(io.BytesIO(jpeg(number)))).transpose(2, 0, 1)
        np.testing.assert_array_equal(sample.image.numpy(), expected)
    place = {"index": 3, "shard_name": "deep/1.tar", "file_names": ("images/k3.jpg", "images/k3.json")}
    assert loaded[3].__subflavors__ == {"task": "caption"}
    assert loaded[3].__sources__ == (SourceInfo(dataset_path=source.path, **place),)


def test_without_a_decoder_fields_and_parts_are_bytes(tmp_path):
    shards = {"0.tar": {"a": {"txt": b"a", "broken.json": b"{"}}}
    keyed = WHOLE_PARTS.replace("jpg", "txt").replace(": json", ": __key__")
    for number, (text, fields) in enumerate(((CRUDE, ["txt", "broken.json"]), (keyed, ["image", "caption"]))):
        (source,) = load_plan(write_dataset(tmp_path / f"{number}", shards, dataset_yaml=text)).sources
        sample = read_at(SingleSourceReader(source, None), 0)
        found = [sample[name] if text == CRUDE else getattr(sample, name) for name in fields]
        assert found == [b"a", b"{" if text == CRUDE else "0.tar/a"]


def test_crude_samples_have_all_parts(make):
    parts = sample(4)
    del parts["broken.json"]
    shards = {"0.tar": {"k": parts}}
    crude = read_at(SingleSourceReader(make(CRUDE + "subflavors: {x: 1}\n", shards), SampleDecoder()), 0)
    assert type(crude) is CrudeSample
    assert crude["json"]["caption"] == "picture 4"
    assert (crude["jpg"].shape, crude["bin"]) == ((3, 10, 9), b"video")
    assert (crude["__key__"], crude["__shard__"], crude["__subflavors__"]) == ("0.tar/k", "0.tar", {"x": 1})
    assert crude["__sources__"][0].file_names == ("k.jpg", "k.json", "k.bin")


@pytest.mark.parametrize(("fields", "are_whole"), [(WHOLE_PARTS, True), (CAPTIONING, False), (CRUDE, False)])
def test_samples_of_whole_parts_are_ours_alone_unless_a_user_decodes_them(make, fields, are_whole):
    source = make(fields)
    decoders = SampleDecoder(), None, SampleDecoder(handlers={"json": json.loads}), OwnDecoder()
    found = [SingleSourceReader(source, decoder).is_builtin_only for decoder in decoders]
    assert found == [are_whole, are_whole, False, False]


def test_a_lack_names_the_sample_what_it_has_and_the_file(make):
    lacking = {"k1": {"jpg": jpeg(1), "jsn": b"{}"}, "k2": {"jpg": jpeg(1), "json": b'{"captoin": "x"}'}}
    broken = {"k3": {"jpg": jpeg(1), "json": b"{"}}
    reader = SingleSourceReader(make(CAPTIONING, {"0.tar": {"k0": sample(0), **lacking, **broken}}), SampleDecoder())
    assert read_at(reader, 0).caption == "picture 0"
    for index, told in (
        (1, r"'0\.tar/k1': part 'json' is absent; there is jpg, jsn; did you mean 'jsn'\?.*dataset\.yaml"),
        (2, r"'0\.tar/k2': json has no \[caption\]; there is captoin; did you mean 'captoin'\?"),
        (3, r"sample '0\.tar/k3': part 'json' \(1 bytes\) cannot be decoded"),
    ):
        with pytest.raises(SampleError, match=told):
            read_at(reader, index)


def test_a_part_that_no_shard_has_is_found_before_the_first_read(tmp_path):
    """A part that only a later shard has is no mistake."""
    shards = {"0.tar": {"k0": {"json": b"{}"}}, "1.tar": {"k1": sample(1)}}
    for name, jpg in (("a", "jpg"), ("b", "jxg,png")):
        write_dataset(tmp_path / name, shards, dataset_yaml=CAPTIONING.replace("jpg", jpg))
        refresh_index(tmp_path / name, PrepareConfig(num_workers=1))
    (source,) = load_plan(tmp_path / "a").sources
    assert read_at(SingleSourceReader(source, SampleDecoder()), 1).caption == "picture 1"
    told = r"dataset.yaml:5: field_map: image: no shard of split part 'train' has a part 'jxg' or 'png'.* mean 'jpg'?"
    with pytest.raises(ConfigError, match=told):
        load_plan(tmp_path / "b")


def test_packages_that_are_lacking_are_named_before_the_first_read(make, monkeypatch):
    source = make(CAPTIONING.replace("json[caption]", "'msgpack[caption],json[caption]'"))
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "msgpack" else find_spec(name))
    with pytest.raises(ConfigError, match=r"needs the package msgpack, .*pip install msgpack"):
        SingleSourceReader(source, SampleDecoder())
    assert read_at(SingleSourceReader(source, SampleDecoder(handlers={"msgpack": len})), 0).caption == "picture 0"


def test_a_failure_to_decode_is_reported_with_its_sample_and_origin(tmp_path):
    (tmp_path / "deep").mkdir()
    write_dataset(tmp_path, SHARDS, dataset_yaml=CAPTIONING.replace("json[caption]", "broken.json"))
    noted = []
    config = WorkerConfig(0, 1, 0, num_lanes=1, global_error_handler=lambda *failure: noted.append(failure))
    data = get_train_dataset(
        tmp_path, worker_config=config, batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None
    )
    with get_loader(data) as loader, pytest.raises(FatalSampleError, match="failed 101 times in a row"):
        next(iter(loader))
    error, sample, sources = noted[0]
    assert f"sample {sample.__key__!r}: part 'broken.json' (1 bytes) cannot be decoded" in str(error)
    assert error.__notes__ == [f"in decode of DefaultTaskEncoder, sample {sample.__key__}, rank 0"]
    (source,) = sources
    assert (source.dataset_path, sample.__key__.startswith(source.shard_name)) == (str(tmp_path), True)
    assert sample.parts["broken.json"] == b"{"
    assert len({sample.__key__ for _, sample, _ in noted}) == 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts(tmp_path / "a", "abcd")
    texts(tmp_path / "b", "dbx", definition=NOTED)
    texts(tmp_path / "c", "dba")
    return tmp_path


def reader_of_join(folder: Path, join: Any, joiner: Any = BY_FIELDS) -> JoinedSourceReader:
    (source,) = prepared_plan(joined(folder / "j.yaml", join, joiner)).sources
    found = open_source_reader(source, SampleDecoder())
    assert isinstance(found, JoinedSourceReader)
    return found


def test_fields_come_together_and_provenance_is_that_of_the_first(folder: Path) -> None:
    join = [{"path": "a", "subflavors": {"of": "a"}}, {"path": "b", "nonmatch": "none", "subflavors": {"of": "b"}}]
    load = functools.partial(read_at, reader_of_join(folder, join, own("Told")))
    samples = [load(number) for number in range(4)]
    assert [(one.text, one.note) for one in samples] == [("aa", None), ("ab", "bb"), ("ac", None), ("ad", "bd")]
    assert type(samples[3]) is Told
    assert (samples[3].__key__, samples[3].__subflavors__) == ("data-0001.tar/d", {"of": "a"})
    infos = [(info.dataset_path, info.index, info.shard_name, info.file_names) for info in samples[3].__sources__]
    assert infos == [
        (str(folder / "a"), 3, "data-0001.tar", ("d.txt",)),
        (str(folder / "b"), 0, "data-0000.tar", ("d.txt",)),
    ]
    assert len(samples[0].__sources__) == 1


def test_a_mapping_calls_the_joiner_by_names_and_a_list_by_position(folder: Path) -> None:
    """A later field takes the place of an earlier one; sources are those of all members whatever the joiner says."""
    members = ({"path": "a"}, {"path": "c", "nonmatch": "none"})
    load = functools.partial(read_at, reader_of_join(folder, [*members]))
    assert [load(number).text for number in range(4)] == ["ca", "cb", "ac", "cd"]
    load = functools.partial(
        read_at, reader_of_join(folder, dict(zip(("left", "right"), members, strict=True)), own("Both"))
    )
    assert [(load(number).left, load(number).right) for number in (0, 2)] == [("aa", "ca"), ("ac", None)]
    assert [info.dataset_path for info in load(0).__sources__] == [str(folder / "a"), str(folder / "c")]
    load = functools.partial(
        read_at, reader_of_join(folder, [{"path": "a"}, {"path": "c", "nonmatch": "skip"}], own("swap", "__function__"))
    )
    assert (type(load(2)), load(2).left, load(2).right) == (Both, "cd", "ad")


def test_a_crude_member_comes_with_all_its_parts(folder: Path) -> None:
    prepared.write_dataset(folder / "d", [{"__key__": "c", "txt": "crude", "cls": 7}], definition=prepared.CRUDE)
    join = [{"path": "a"}, {"path": "d", "nonmatch": "skip"}]
    (source,) = prepared_plan(joined(folder / "j.yaml", join, own("swap", "__function__"))).sources
    raw = source.records.reader().read(0)
    assert [sorted(member.parts) for member in raw.members] == [["txt"], ["cls", "txt"]]


def told(tmp_path: Path, text: str) -> JoinedSourceReader:
    for name in "ab":
        prepared.write_dataset(tmp_path / name, [{"__key__": "k", "txt": text}])
    join = {"left": {"path": "a"}, "right": {"path": "b"}}
    return reader_of_join(tmp_path, join, own("swap", "__function__") if text != "skip me" else own("Both"))


def test_a_joiner_may_make_a_crude_sample_or_leave_it_out_but_must_return_one(tmp_path: Path) -> None:
    sample = read_at(told(tmp_path / "crude", "crude"), 0)
    assert isinstance(sample, CrudeSample)
    assert (sample["__key__"], len(sample["__sources__"])) == ("data-0000.tar/k", 2)
    with pytest.raises(SkipSample):
        read_at(told(tmp_path / "skip", "skip me"), 0)
    with pytest.raises(FatalSampleError, match=r"returned None for sample data-0000.tar/k: expected a Sample"):
        read_at(told(tmp_path / "nothing", "nothing"), 0)


def test_a_joiner_that_fails_is_noted_with_the_sample(folder: Path) -> None:
    load = functools.partial(
        read_at, reader_of_join(folder, [{"path": "a"}, {"path": "c", "nonmatch": "none"}], own("swap", "__function__"))
    )
    with pytest.raises(AttributeError) as caught:
        load(2)
    assert caught.value.__notes__ == [f"in the joiner of {folder / 'j.yaml'}, sample data-0001.tar/c"]


@pytest.mark.parametrize("fields", [WHOLE_PARTS, CAPTIONING, CRUDE])
def test_damaged_pictures_and_first_frames_are_counted_and_told_once(
    fields: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "_warned", set())
    bad = half_overwritten(encoded(picture((200, 160)), "JPEG"))
    pictures = [bad, frames_of("GIF", "red", "lime"), bad, jpeg(1), frames_of("MPO", "red", "lime", "blue")]
    text = {"json": b'"a"' if fields == WHOLE_PARTS else b'{"caption": "a"}'}
    samples = {f"{number}": {"jpg": one, **text} for number, one in enumerate(pictures)}
    write_dataset(tmp_path, {"0.tar": samples}, dataset_yaml=fields)
    options = {"batch_size": None, "shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    data = get_train_dataset(
        tmp_path, worker_config=WorkerConfig(0, 1, 0, num_lanes=1), task_encoder=AsTheyAre(), **options
    )
    with get_loader(data) as loader:
        assert len(list(loader)) == 5
        metrics = loader.metrics()
    assert (metrics.images, metrics.damaged_images, metrics.first_frames) == (5, 2, 2)
    told = [record.getMessage() for record in caplog.records if record.name == "bridge_data"]
    assert len(told) == 2
    assert "0.tar/0" in told[0] and "damaged" in told[0]
    assert "0.tar/1" in told[1] and "2 frames" in told[1]
    found = lint(tmp_path, LintConfig(num_workers=1))
    assert {code: [fault.key for fault in found.kept[code]] for code in ("damaged-image", "several-frames")} == {
        "damaged-image": ["0", "2"],
        "several-frames": ["1", "4"],
    }


class AsTheyAre(DefaultTaskEncoder):
    """Crude samples, too, are batched as they are."""

    cookers: ClassVar = [Cooker(lambda sample: TextSample(**basic_sample_keys(sample), text=""))]
