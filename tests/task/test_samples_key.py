import copy
import dataclasses
import enum
import functools
import pickle
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import CrudeSample, DefaultTaskEncoder, SampleDecoder
from bridge_data.encoders import (
    ContrastiveTaskEncoder,
    DocumentTaskEncoder,
    FamilyConfig,
    FamilyTaskEncoder,
    MultiModalTaskEncoder,
    PretrainingTaskEncoder,
    QwenVLTaskEncoder,
    SpeechTaskEncoder,
    VideoSampling,
    text_encoder,
)
from bridge_data.encoders.encoder_config import ConversationTemplateConfig
from bridge_data.errors import ConfigError
from bridge_data.limits import Limits
from bridge_data.plan.opening import load_plan
from bridge_data.task import AugmentTaskEncoder, Cooker, Packing
from bridge_data.task.samples_key import content_keys
from tests.encoders.parts import CASES, make_tokenizer
from tests.encoders.qwen_parts import image_processor, make_family, qwen_tokenizer
from tests.plugins.encoders.test_contrastive import parts_of
from tests.plugins.encoders.test_hf import driven
from tests.plugins.encoders.test_speech import extractor, speech_tokenizer
from tests.prepared import write_texts
from tests.ranks import run_job


def qwen(**changes: Any) -> QwenVLTaskEncoder:
    given: dict[str, Any] = {"tokenizer": qwen_tokenizer("qwen2_vl"), "family": make_family("qwen2_vl"), **changes}
    return QwenVLTaskEncoder(given.pop("tokenizer"), given.pop("family"), given.pop("config", None), **given)


def other_tokenizer() -> Any:
    tokenizer = copy.deepcopy(qwen_tokenizer("qwen2_vl"))
    tokenizer.add_tokens(["anothertoken"])
    return tokenizer


def other_family() -> Any:
    family, processor = make_family("qwen2_vl"), image_processor()
    processor.merge_size = 1
    return dataclasses.replace(family, image_processor=processor)


CHANGES: Mapping[str, Any] = {
    "tokenizer": lambda: {"tokenizer": other_tokenizer()},
    "family": lambda: {"family": other_family()},
    "another family": lambda: {"family": make_family("qwen2_5_vl")},
    "length": lambda: {"seq_length": 512},
    "sampling": lambda: {"sampling": VideoSampling(fps=1.0)},
    "multiple": lambda: {"config": FamilyConfig(pad_to_multiple_of=8)},
    "system": lambda: {"config": FamilyConfig(conversation_template_config=ConversationTemplateConfig(system="Hi."))},
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_tokens_changes_the_key(name: str) -> None:
    assert qwen(**CHANGES[name]()).costs_key() != qwen().costs_key()


def test_a_tokenizer_in_use_and_a_saved_one_have_the_same_key(tmp_path: Path) -> None:
    encoder = qwen()
    key = encoder.costs_key()
    encoder.tokenizer("a long text", truncation=True, max_length=2)
    _ = encoder.chat_template
    encoder._ids_of([("<|vision_start|>", 1)])
    assert encoder.costs_key() == key
    qwen_tokenizer("qwen2_vl").save_pretrained(tmp_path)
    assert qwen(tokenizer=str(tmp_path)).costs_key() == key


def test_other_processes_find_the_same_key() -> None:
    code = "from tests.task.test_samples_key import qwen; print(qwen().costs_key())"
    assert run_job("-c", code) == (0, f"{qwen().costs_key()}\n")


class Lengths(DefaultTaskEncoder[Any, Any, Any, Any]):
    def __init__(self, factor: int = 1, **others: Any) -> None:
        super().__init__()
        self.factor, self.others = factor, others

    def encode_sample(self, sample: Any) -> Any:
        return {"tokens": list(sample.text) * self.factor}


class Mode(enum.Enum):
    SHORT = 1
    LONG = 2


@dataclasses.dataclass
class Setting:
    size: int
    seen: int = dataclasses.field(default=0, compare=False)


def versioned(version: str) -> Lengths:
    encoder = Lengths()
    encoder.costs_version = version
    return encoder


def test_settings_that_are_plain_data_count_and_the_version_and_those_of_an_inner_encoder() -> None:
    encoders = (
        Lengths(),
        Lengths(2),
        Lengths(names={"b", "a"}),
        Lengths(mode=Mode.SHORT),
        Lengths(mode=Mode.LONG),
        Lengths(of=Setting(1)),
        Lengths(of=Setting(2)),
        Lengths(of=Path("a")),
        Lengths(of=functools.partial(len, 1)),
        versioned("1"),
        versioned("2"),
        AugmentTaskEncoder(Lengths()),
        AugmentTaskEncoder(Lengths(2)),
    )
    keys = [encoder.costs_key() for encoder in encoders]
    assert len({*keys}) == len(keys)
    assert Lengths(of=Setting(1, seen=5)).costs_key() == Lengths(of=Setting(1)).costs_key()
    assert Lengths(names={"a", "b"}).costs_key() == Lengths(names={"b", "a"}).costs_key()


def test_how_packs_are_filled_is_no_cost_of_a_sample() -> None:
    ways = [{}, {"packer": "greedy"}, {"carry_over": False}, {"remeasured": "error"}, {"capacity": 9}]
    packings = [Packing(**({"length": len, "capacity": 8, "overlong": "drop"} | way)) for way in ways]
    assert len({Lengths(hook=packing).costs_key() for packing in packings}) == 1
    other = Packing(length=sum, capacity=8, overlong="drop")
    assert Lengths(hook=other).costs_key() != Lengths(hook=packings[0]).costs_key()


@pytest.mark.parametrize(
    "others", [{"lock": [threading.Lock()] * 2}, {"hook": [lambda text: 1, lambda text: 2]}], ids=["a lock", "code"]
)
def test_what_is_no_plain_data_counts_by_its_name(others: Any) -> None:
    (name, (first, second)), *_ = others.items()
    assert Lengths(**{name: first}).costs_key() == Lengths(**{name: second}).costs_key() != Lengths().costs_key()


def test_how_samples_are_made_of_the_data_counts(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "data", 3)
    (source,) = load_plan(folder).sources
    cookers = [Cooker(dict, {"kind": "a"}), Cooker(list)]

    def key(**changes: Any) -> str:
        encoder = Lengths()
        encoder.cookers = cookers
        return encoder.costs_key(dataclasses.replace(source, **changes))

    crude = {"sample_class": CrudeSample}
    keys = {key(), key(field_map={}), key(**crude), key(**crude, subflavors={"kind": "a"})}
    assert len(keys) == 4
    assert key(subflavors={"kind": "a"}) == key(subflavors={}) == key(path="elsewhere")


def test_tokens_are_counted_as_packing_counts_them() -> None:
    encoder = Lengths()
    assert encoder.costs({"tokens": [1, 2]}) == {"tokens": 2}
    assert encoder.costs({"input_ids": torch.zeros(1, 5)}) == {"tokens": 5}
    with pytest.raises(ConfigError, match="override `costs`"):
        encoder.costs({"text": "a"})
    encoder.select_samples_to_pack = Packing(length=lambda sample: 7, capacity=9, overlong="drop")  # type: ignore[method-assign]
    assert encoder.costs({}) == {"tokens": 7}
    assert AugmentTaskEncoder(encoder).costs({}) == {"tokens": 7}


def test_the_key_of_content_counts_the_version_and_how_samples_are_made(tmp_path: Path) -> None:
    (source,) = load_plan(write_texts(tmp_path / "data", 3)).sources
    encoder = Lengths(lock=threading.Lock())
    keys = {*content_keys(encoder, [source], "1"), *content_keys(encoder, [source], "2")}
    for changes in ({"limits": Limits(max_json_depth=3)}, {"subflavors": {"kind": "a"}}):
        keys.update(content_keys(encoder, [dataclasses.replace(source, **changes)], "2"))
    encoder.decoder = SampleDecoder(image_size=(8, 8))
    keys.update(content_keys(encoder, [source], "2"))
    assert len(keys) == 5


OURS: Mapping[str, Any] = {
    **{
        name: lambda case=case: FamilyTaskEncoder(make_tokenizer(begin=case.begin), case.make())
        for name, case in CASES.items()
    },
    "hf": lambda: driven("llava_next")[2],
    "text": lambda: text_encoder(make_tokenizer(template="{% for m in messages %}{{ m.content }}{% endfor %}")),
    "documents": lambda: PretrainingTaskEncoder(make_tokenizer()),
    "interleaved": lambda: DocumentTaskEncoder(make_tokenizer(), CASES["llava"].make()),
    "pairs": lambda: ContrastiveTaskEncoder(*parts_of("clip")[:2]),
    "speech": lambda: SpeechTaskEncoder(speech_tokenizer(), extractor()),
    "fixed": lambda: MultiModalTaskEncoder(make_tokenizer()),
    "none": DefaultTaskEncoder,
}


def test_every_encoder_of_ours_has_a_key_of_its_own_which_a_copy_has_too(tmp_path: Path) -> None:
    keys = {name: make().costs_key() for name, make in OURS.items()}
    assert {name: pickle.loads(pickle.dumps(make())).costs_key() for name, make in OURS.items()} == keys
    assert len({*keys.values()}) == len(keys)
    (source,) = load_plan(write_texts(tmp_path / "data", 3)).sources
    contents = {name: content_keys(make(), [source], "1")[0] for name, make in OURS.items()}
    assert {
        name: content_keys(pickle.loads(pickle.dumps(make())), [source], "1")[0] for name, make in OURS.items()
    } == contents
    assert len(set(contents.values())) == len(contents)
