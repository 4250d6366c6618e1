import importlib.util
import io
import json
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data import WorkerConfig, get_loader, get_train_dataset
from bridge_data.decode import SampleDecoder, SampleLoader
from bridge_data.errors import ConfigError, DatasetError, FatalSampleError, SampleError
from bridge_data.plan import load_plan
from bridge_data.prepare.tar_indexes import PrepareConfig
from bridge_data.prepare.tars import refresh_index
from bridge_data.samples import CaptioningSample, CrudeSample, SourceInfo, VQASample
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
