import dataclasses
from pathlib import Path

import pytest
from PIL import Image

from bridge_data.shards.prepared import ShardSet
from bridge_data.task import STAGES
from bridge_data.tools.bench import LANE, RECEIVE, SEND, Figures, Key, Machine, Trainer, advise, stage_of
from tests.prepared import write_blend, write_dataset, write_texts
from tests.tools.bench.profiles import profile, spent

FIGURES = Figures(
    num_samples=200,
    num_batches=10,
    seconds=4.0,
    cpu_s=1.0,
    num_skipped=1,
    sample_bytes=30.0,
    first_batch_s=0.1,
    workers_ready_s=0.2,
    save_s=0.001,
    state_bytes=500,
    restore_s=0.3,
)


@pytest.mark.parametrize("what", [*STAGES, "read", SEND, RECEIVE, LANE.what, *(f"seed {hook}" for hook in STAGES)])
def test_everything_that_is_clocked_has_a_stage(what: str) -> None:
    assert stage_of(Key(what))


CAPTIONS = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "png", "caption": "txt"},
}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts", 10)


@pytest.mark.parametrize(
    ("key", "waited", "expected"),
    [
        (Key("read", 0), 0.9, "read takes 80% of the work. Of that, 90% is waiting for the storage: more workers"),
        (Key("read", 0), 0.1, "Larger chunks (max_samples_per_sequence)"),
        (Key("decode", 0), 0.0, "decode takes 80% of the work. Only what the field map names"),
        (Key("encode_sample", 0), 0.1, "encode takes 80% of the work. It is encode_sample: what it recomputes"),
        (Key("cook_crude_sample", 0), 0.8, "It is cook_crude_sample, which waits 80% of that"),
        (
            Key("seed encode_sample"),
            0.0,
            "seed takes 80% of the work. Mark hooks that draw no random numbers as @state",
        ),
        (Key(SEND), 0.0, "transfer takes 80% of the work. A batch costs 400.00 ms there: a larger batch_size"),
        (Key(RECEIVE), 0.0, "transfer takes 80% of the work."),
        (LANE, 0.0, "order takes 80% of the work. That is the fixed cost of handling samples"),
    ],
)
def test_the_greatest_stage_has_its_way_out(texts: Path, key: Key, waited: float, expected: str) -> None:
    (sentence,) = advise(profile(texts, {key: spent(4, waited), Key("batch"): spent(1)}))
    assert expected in sentence


def test_the_data_set_that_costs_most_is_named(tmp_path: Path, texts: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "image.png")
    image = (tmp_path / "image.png").read_bytes()
    write_dataset(tmp_path / "photos", [{"__key__": "0", "png": image, "txt": "a"}], definition=CAPTIONS)
    blend = write_blend(tmp_path / "blend.yaml", {"texts": 1, "photos": 1})
    work = {Key("decode", 0): spent(1), Key("decode", 1): spent(3)}
    (sentence,) = advise(profile(blend, work))
    assert "decode takes 100% of the work, most of it for photos/train. If the images are made smaller" in sentence
    (sentence,) = advise(profile(blend, {Key("decode", 0): spent(3), Key("decode", 1): spent(1)}))
    assert "most of it for texts/train. Only what the field map names" in sentence


def test_data_without_our_index_should_have_it(texts: Path) -> None:
    found = profile(texts, {Key("read", 0): spent(1)})
    (source,) = found.sources
    assert isinstance(source.records, ShardSet)
    records = dataclasses.replace(source.records, index=None)
    found = dataclasses.replace(found, sources=(dataclasses.replace(source, records=records),))
    assert f"`bridge-data prepare {texts} --tar-index-only`" in advise(found)[0]


def test_who_waits_for_whom(texts: Path) -> None:
    work = {Key("read", 0): spent(1)}
    trainer = Trainer(seconds=10, waiting_s=0.1, receiving_s=0.1, step_s=9.8)
    (sentence,) = advise(profile(texts, work, trainer=trainer, idle_s=9))
    assert "The data keep up with these steps: the trainer waits 1% of its time, workers work" in sentence
    trainer = dataclasses.replace(trainer, waiting_s=5, step_s=5)
    assert advise(profile(texts, work, trainer=trainer))[0] == "The data hold the trainer up: it waits 50% of its time."
    assert advise(profile(texts, work, num_workers=0))[0].startswith("The trainer does all of this itself")
    assert advise(profile(texts, {})) == []


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Machine(num_cores=2, used_cores=1.9, idle_cores=0.1, delayed=0.3), "It computes on all 2 cores"),
        (Machine(num_cores=8, used_cores=2, idle_cores=5.5, delayed=0), "5.5 of 8 cores have nothing to do: try --num"),
        (Machine(num_cores=2, used_cores=1, idle_cores=0, delayed=0.4), "40% of the time goes by until a core is fr"),
        (Machine(num_cores=2, used_cores=1, idle_cores=1, delayed=0.4), "try --num-workers 3"),
    ],
)
def test_cores_are_counted(texts: Path, machine: Machine, expected: str) -> None:
    assert expected in advise(profile(texts, {Key("read", 0): spent(1)}, machine=machine))[-1]
