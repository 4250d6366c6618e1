import importlib.util
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data import WorkerConfig, get_loader, get_train_dataset
from bridge_data.decode import SampleDecoder, SampleLoader, open_loader
from bridge_data.decode.sample_loader import JoinedLoader
from bridge_data.errors import ConfigError, DatasetError, FatalSampleError, SampleError, SkipSample
from bridge_data.plan import load_plan
from bridge_data.prepare.tars import PrepareConfig, refresh_index
from bridge_data.samples import CaptioningSample, CrudeSample, SourceInfo, TextSample, VQASample
from tests import prepared
from tests.plan.joins import BY_FIELDS, NOTED, joined, own, prepared_plan, texts
from tests.plan.own_joins import Both, Told
from tests.plan.prepared import CAPTIONING, CRUDE, write_dataset

VQA = """\
sample_type: {__module__: megatron.energon, __class__: VQASample}
field_map: {image: "png,jpg", context: "json[question]", answers: "json[answers]"}
subflavors: {task: vqa}
"""


def jpeg(number):
    pixels = np.random.default_rng(number).integers(0, 256, (6 + number, 9, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


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
    source = make(CAPTIONING)
    loader = SampleLoader(source, SampleDecoder(image_decode="torchrgb8"))
    loaded = [loader.load(index) for index in range(source.num_samples)]
    assert all(type(sample) is CaptioningSample for sample in loaded)
    assert [s.__key__ for s in loaded] == [
        "0.tar/k0",
        "0.tar/k1",
        "0.tar/k2",
        "deep/1.tar/images/k3",
        "deep/1.tar/images/k4",
    ]
    assert [s.caption for s in loaded] == [f"picture {number}" for number in range(5)]
    for number, sample in enumerate(loaded):
        expected = np.asarray(Image.open(io.BytesIO(jpeg(number)))).transpose(2, 0, 1)
        np.testing.assert_array_equal(sample.image.numpy(), expected)
    assert loaded[3].__subflavors__ == {}
    assert loaded[3].__sources__ == (
        SourceInfo(
            dataset_path=source.path,
            index=3,
            shard_name="deep/1.tar",
            file_names=("images/k3.jpg", "images/k3.json"),
        ),
    )


def test_values_are_put_in_as_they_were_decoded(make):
    sample = SampleLoader(make(VQA), SampleDecoder()).load(0)
    assert type(sample) is VQASample
    assert (sample.context, sample.answers, sample.answer_weights) == ("what?", ["a", "b"], None)
    assert (sample.image.dtype, sample.__subflavors__) == (torch.float32, {"task": "vqa"})


def test_crude_samples_have_all_parts(make):
    parts = sample(4)
    del parts["broken.json"]
    shards = {"0.tar": {"k": parts}}
    crude = SampleLoader(make(CRUDE + "subflavors: {x: 1}\n", shards), SampleDecoder()).load(0)
    assert type(crude) is CrudeSample
    assert crude["json"]["caption"] == "picture 4"
    assert (crude["jpg"].shape, crude["bin"]) == ((3, 10, 9), b"video")
    assert (crude["__key__"], crude["__shard__"], crude["__subflavors__"]) == ("0.tar/k", "0.tar", {"x": 1})
    assert crude["__sources__"][0].file_names == ("k.jpg", "k.json", "k.bin")


def test_a_part_filter_bounds_what_crude_samples_have(make):
    crude = SampleLoader(make(CRUDE + "part_filter: [bin, json]\n"), SampleDecoder()).load(1)
    assert {part for part in crude if not part.startswith("__")} == {"bin", "json"}


@pytest.mark.parametrize(("fields", "are_whole"), [(WHOLE_PARTS, True), (CAPTIONING, False), (CRUDE, False)])
def test_samples_of_whole_parts_are_ours_alone_unless_a_user_decodes_them(make, fields, are_whole):
    source = make(fields)
    decoders = SampleDecoder(), None, SampleDecoder(handlers={"json": json.loads}), OwnDecoder()
    found = [SampleLoader(source, decoder).is_ours_alone for decoder in decoders]
    assert found == [are_whole, are_whole, False, False]


def test_without_a_decoder_parts_stay_bytes(make):
    assert SampleLoader(make(CRUDE), None).load(2)["broken.json"] == b"{"


def test_without_a_decoder_fields_are_bytes(make):
    dataset_yaml = CAPTIONING.replace("json[caption]", "json")
    assert SampleLoader(make(dataset_yaml), None).load(2).image == jpeg(2)


def test_the_key_may_be_a_field(make):
    dataset_yaml = CAPTIONING.replace("json[caption]", "__key__")
    assert SampleLoader(make(dataset_yaml), SampleDecoder()).load(0).caption == "0.tar/k0"


def test_a_broken_part_names_key_and_part(make):
    loader = SampleLoader(make(CRUDE), SampleDecoder())
    with pytest.raises(SampleError, match=r"sample '0\.tar/k0': part 'broken\.json' \(1 bytes\) cannot be decoded"):
        loader.load(0)


def test_a_lack_names_the_sample_what_it_has_and_the_file(make):
    shards = {
        "0.tar": {
            "k0": sample(0),
            "k1": {"jpg": jpeg(1), "jsn": b"{}"},
            "k2": {"jpg": jpeg(1), "json": b'{"captoin": "x"}'},
        }
    }
    loader = SampleLoader(make(CAPTIONING, shards), SampleDecoder())
    assert loader.load(0).caption == "picture 0"
    with pytest.raises(
        SampleError,
        match=r"sample '0\.tar/k1': part 'json' is absent; there is jpg, jsn; did you mean 'jsn'\?.*dataset\.yaml",
    ):
        loader.load(1)
    with pytest.raises(
        SampleError, match=r"'0\.tar/k2': json has no \[caption\]; there is captoin; did you mean 'captoin'\?"
    ):
        loader.load(2)


def test_a_part_that_no_shard_has_is_found_before_the_first_read(tmp_path):
    (tmp_path / "deep").mkdir()
    write_dataset(tmp_path, SHARDS, dataset_yaml=CAPTIONING.replace("jpg", "jpeg,png"))
    refresh_index(tmp_path, PrepareConfig(num_workers=1))
    with pytest.raises(ConfigError) as error:
        load_plan(tmp_path)
    assert "dataset.yaml:5: field_map: image: no shard of split part 'train' has a part 'jpeg' or 'png'" in str(
        error.value
    )
    assert "did you mean 'jpg'?" in str(error.value)


def test_a_part_that_only_a_later_shard_has_is_no_mistake(tmp_path):
    shards = {"0.tar": {"k0": {"json": b"{}"}}, "1.tar": {"k1": sample(1)}}
    write_dataset(tmp_path, shards)
    refresh_index(tmp_path, PrepareConfig(num_workers=1))
    (source,) = load_plan(tmp_path).sources
    assert SampleLoader(source, SampleDecoder()).load(1).caption == "picture 1"


def test_packages_that_are_lacking_are_named_before_the_first_read(make, monkeypatch):
    source = make(CAPTIONING.replace("json[caption]", "'msgpack[caption],json[caption]'"))
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "msgpack" else find_spec(name))
    with pytest.raises(ConfigError, match=r"bridge-data\[formats\]"):
        SampleLoader(source, SampleDecoder())
    assert SampleLoader(source, SampleDecoder(handlers={"msgpack": len})).load(0).caption == "picture 0"


def test_unreadable_data_are_no_sample_errors(make):
    source = make(CAPTIONING)
    loader = SampleLoader(source, SampleDecoder())
    (source.records.root / "0.tar").unlink()
    with pytest.raises(DatasetError, match=r"0\.tar: no such file"):
        loader.load(0)


def test_loaders_travel_to_workers(make):
    loader = SampleLoader(make(CAPTIONING), SampleDecoder())
    first = loader.load(0)
    again = pickle.loads(pickle.dumps(loader)).load(0)
    assert (again.__key__, again.caption) == (first.__key__, first.caption)
    assert torch.equal(again.image, first.image)


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


def loader(folder: Path, join: Any, joiner: Any = BY_FIELDS) -> JoinedLoader:
    (source,) = prepared_plan(joined(folder / "j.yaml", join, joiner)).sources
    found = open_loader(source, SampleDecoder())
    assert isinstance(found, JoinedLoader)
    return found


def test_a_source_without_join_is_loaded_as_ever(folder: Path) -> None:
    (source,) = load_plan(folder / "a").sources
    assert isinstance(open_loader(source, None), SampleLoader)


def test_fields_come_together_and_provenance_is_that_of_the_first(folder: Path) -> None:
    join = [{"path": "a", "subflavors": {"of": "a"}}, {"path": "b", "nonmatch": "none", "subflavors": {"of": "b"}}]
    load = loader(folder, join, own("Told")).load
    assert [(load(number).text, load(number).note) for number in range(4)] == [
        ("aa", None),
        ("ab", "bb"),
        ("ac", None),
        ("ad", "bd"),
    ]
    sample = load(3)
    assert type(sample) is Told
    assert (sample.__key__, sample.__subflavors__) == ("data-0001.tar/d", {"of": "a"})
    assert sample.__sources__ is not None
    assert [(info.dataset_path, info.index, info.shard_name, info.file_names) for info in sample.__sources__] == [
        (str(folder / "a"), 3, "data-0001.tar", ("d.txt",)),
        (str(folder / "b"), 0, "data-0000.tar", ("d.txt",)),
    ]
    assert len(load(0).__sources__) == 1


def test_a_later_field_takes_the_place_of_an_earlier_one(folder: Path) -> None:
    load = loader(folder, [{"path": "a"}, {"path": "c", "nonmatch": "none"}]).load
    assert [load(number).text for number in range(4)] == ["ca", "cb", "ac", "cd"]
    assert type(load(0)) is TextSample


def test_a_mapping_calls_the_joiner_by_names_and_a_list_by_position(folder: Path) -> None:
    join = {"left": {"path": "a"}, "right": {"path": "c", "nonmatch": "none"}}
    load = loader(folder, join, own("Both")).load
    assert [(load(number).left, load(number).right) for number in (0, 2)] == [("aa", "ca"), ("ac", None)]
    load = loader(folder, [{"path": "a"}, {"path": "c", "nonmatch": "skip"}], own("swap", "__function__")).load
    assert isinstance(load(2), Both)
    assert (load(2).left, load(2).right) == ("cd", "ad")


def test_sources_are_those_of_all_members_whatever_the_joiner_says(folder: Path) -> None:
    sample = loader(folder, {"left": {"path": "a"}, "right": {"path": "c", "nonmatch": "none"}}, own("Both")).load(0)
    assert [info.dataset_path for info in sample.__sources__] == [str(folder / "a"), str(folder / "c")]


def test_a_crude_member_comes_with_all_its_parts(folder: Path) -> None:
    prepared.write_dataset(folder / "d", [{"__key__": "c", "txt": "crude", "cls": 7}], definition=prepared.CRUDE)
    join = [{"path": "a"}, {"path": "d", "nonmatch": "skip"}]
    (source,) = prepared_plan(joined(folder / "j.yaml", join, own("swap", "__function__"))).sources
    raw = source.records.reader().read(0)
    assert [sorted(member.parts) for member in raw.members] == [["txt"], ["cls", "txt"]]


def told(tmp_path: Path, text: str) -> JoinedLoader:
    for name in "ab":
        prepared.write_dataset(tmp_path / name, [{"__key__": "k", "txt": text}])
    join = {"left": {"path": "a"}, "right": {"path": "b"}}
    return loader(tmp_path, join, own("swap", "__function__") if text != "skip me" else own("Both"))


def test_a_joiner_may_make_a_crude_sample(tmp_path: Path) -> None:
    sample = told(tmp_path, "crude").load(0)
    assert isinstance(sample, CrudeSample)
    assert (sample["__key__"], len(sample["__sources__"])) == ("data-0000.tar/k", 2)


def test_a_joiner_may_leave_a_sample_out(tmp_path: Path) -> None:
    with pytest.raises(SkipSample):
        told(tmp_path, "skip me").load(0)


def test_a_joiner_that_returns_no_sample_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(FatalSampleError, match=r"returned None for sample data-0000.tar/k: expected a Sample"):
        told(tmp_path, "nothing").load(0)


def test_a_joiner_that_fails_is_noted_with_the_sample(folder: Path) -> None:
    load = loader(folder, [{"path": "a"}, {"path": "c", "nonmatch": "none"}], own("swap", "__function__")).load
    with pytest.raises(AttributeError) as caught:
        load(2)
    assert caught.value.__notes__ == [f"in the joiner of {folder / 'j.yaml'}, sample data-0001.tar/c"]


def test_a_member_s_field_that_is_absent_is_named(folder: Path) -> None:
    prepared.write_dataset(folder / "d", [{"__key__": "c", "cls": 1}, {"__key__": "a", "txt": "d"}])
    join = [{"path": "a"}, {"path": "d", "nonmatch": "skip"}]
    load = loader(folder, join).load
    assert load(0).text == "d"
    with pytest.raises(SampleError, match=r"'data-0000.tar/c': part 'txt' is absent; there is cls\. .*/d/\.nv-meta"):
        load(1)
