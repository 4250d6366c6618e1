import copy
import dataclasses
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import CrudeSample, DefaultTaskEncoder
from bridge_data.encoders import (
    ContrastiveTaskEncoder,
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
from bridge_data.task.encoder_key import content_key
from tests.encoders.parts import CASES, make_tokenizer
from tests.encoders.qwen_parts import image_processor, make_family, qwen_tokenizer
from tests.encoders.test_contrastive import parts_of
from tests.encoders.test_hf import driven
from tests.encoders.test_speech import extractor, speech_tokenizer
from tests.prepared import write_texts


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
    code = "from tests.task.test_encoder_key import qwen; print(qwen().costs_key())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == qwen().costs_key()


class Lengths(DefaultTaskEncoder[Any, Any, Any, Any]):
    def __init__(self, factor: int = 1, **others: Any) -> None:
        super().__init__()
        self.factor, self.others = factor, others

    def encode_sample(self, sample: Any) -> Any:
        return {"tokens": list(sample.text) * self.factor}


def key_of(code: str, folder: Path) -> str:
    """The key of the class `Own` of a module with this code."""
    folder.mkdir()
    (folder / "own_encoder.py").write_text(f"from bridge_data import DefaultTaskEncoder\n{code}\n")
    told = "from own_encoder import Own; print(Own().costs_key())"
    paths = [str(folder), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, check=True, env=environment
    ).stdout


def test_the_code_of_a_users_class_counts_or_its_version(tmp_path: Path) -> None:
    keys = set()
    for number, (version, body) in enumerate([(None, "1"), (None, "22"), ("'1'", "1"), ("'1'", "22"), ("'2'", "1")]):
        code = f"class Own(DefaultTaskEncoder):\n    costs_version = {version}\n    def f(self): return {body}\n"
        keys.add(key_of(code, tmp_path / str(number)))
    assert len(keys) == 4


def adding(more: int) -> Callable[[str], int]:
    return lambda text: len(text) + more


def test_attributes_and_functions_count_and_those_of_an_inner_encoder() -> None:
    keys = [
        encoder.costs_key()
        for encoder in (
            Lengths(),
            Lengths(2),
            Lengths(names={"b", "a"}),
            Lengths(hook=len),
            Lengths(hook=lambda text: 1),
            Lengths(hook=adding(1)),
            Lengths(hook=adding(2)),
            Lengths(hook=lambda text, more=1: more),
            Lengths(hook=lambda text, more=2: more),
            Lengths(table=torch.arange(3)),
            Lengths(table=torch.arange(4)),
            AugmentTaskEncoder(Lengths()),
            AugmentTaskEncoder(Lengths(2)),
        )
    ]
    assert len(set(keys)) == len(keys)
    ways = [{"packer": "greedy"}, {"carry_over": False}, {"remeasured": "error"}]
    packings = [Packing(length=len, capacity=8, overlong="drop", **way) for way in [{}, *ways]]
    assert len({Lengths(hook=packing).costs_key() for packing in packings}) == 1
    assert Lengths(names={"a", "b"}).costs_key() == Lengths(names={"b", "a"}).costs_key()


def test_what_cannot_be_told_is_an_error_that_names_the_way_out() -> None:
    encoder = Lengths(lock=threading.Lock())
    with pytest.raises(ConfigError, match=r"Lengths.others\['lock'\].*costs_version"):
        encoder.costs_key()
    encoder.costs_version = "1"
    assert encoder.costs_key()


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


OWN = """
import functools
import {helpers}
from bridge_data import DefaultTaskEncoder, Packing, stateless
SIZE = 3
TABLE = {{"a": {helpers}.other}}

def wrapped(function):
    @functools.wraps(function)
    def inner(*given):
        return function(*given)
    return inner

def crop(text, size=SIZE):
    return text[:size]

class Base(DefaultTaskEncoder):
    margin = 1

class Own(Base):
    @stateless
    @wrapped
    def encode_sample(self, sample):
        from {helpers}_late import late
        return [late(crop(sample.text)), *map(lambda text: {helpers}.shout(text), [self.margin]), TABLE]
"""
HELPERS = """
def shout(text):
    return text.upper()
def other(text):
    return text
def unused(text):
    return text
"""
CODE_CHANGES = {
    "the hook": ("own", "self.margin]", "self.margin + 1]"),
    "a function": ("own", "return text[:size]", "return text[: size + 1]"),
    "a value that is a default": ("own", "SIZE = 3", "SIZE = 4"),
    "a base class": ("own", "margin = 1", "margin = 2"),
    "a decorator": ("own", "return function(*given)", "return [function(*given)]"),
    "a function of a module": ("helpers", "text.upper()", "text.lower()"),
    "a function in a table": ("helpers", "def other(text):\n    return text", "def other(text):\n    return 1"),
    "a module that the hook imports": ("late", "return text", "return [text]"),
    "nothing that is used": ("helpers", "def unused(text):\n    return text", "def unused(text):\n    return 1"),
}


def content_key_of(folder: Path, helpers: str, data: Path, own: str, changed: Mapping[str, str]) -> str:
    """The key of `Own` in a new process, from these modules."""
    folder.mkdir()
    for name, content in {"own_hooks": own, helpers: changed["helpers"], f"{helpers}_late": changed["late"]}.items():
        (folder / f"{name}.py").write_text(content)
    told = (
        "from bridge_data.plan.opening import load_plan; from bridge_data.task.encoder_key import content_key\n"
        f"import own_hooks; print(content_key(own_hooks.Own(), load_plan({str(data)!r}).sources[0]))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-c", told]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def test_the_key_of_content_counts_the_code_that_hooks_refer_to(tmp_path: Path) -> None:
    data = write_texts(tmp_path / "data", 3)
    modules = {"own": OWN.format(helpers="helping"), "helpers": HELPERS, "late": "def late(text): return text\n"}
    keys = {}
    for number, (name, (module, old, new)) in enumerate({"": ("own", "", ""), **CODE_CHANGES}.items()):
        changed = {**modules, module: modules[module].replace(old, new)}
        assert not name or changed != modules
        keys[name] = content_key_of(tmp_path / str(number), "helping", data, changed["own"], changed)
    assert keys.pop("nothing that is used") == keys[""]
    assert len(set(keys.values())) == len(keys)


def test_a_version_stands_for_the_code_and_for_what_cannot_be_told(tmp_path: Path) -> None:
    (source,) = load_plan(write_texts(tmp_path / "data", 3)).sources
    encoder = Lengths(lock=threading.Lock())
    with pytest.raises(ConfigError, match=r"Lengths.others\['lock'\].*memo_version"):
        content_key(encoder, source)
    keys = set()
    for version in ("1", "2"):
        encoder.memo_version = version
        keys.add(content_key(encoder, source))
    keys.add(content_key(encoder, dataclasses.replace(source, limits=Limits(max_json_depth=3))))
    keys.add(content_key(encoder, dataclasses.replace(source, subflavors={"kind": "a"})))
    assert len(keys) == 4


OURS: Mapping[str, Any] = {
    **{
        name: lambda case=case: FamilyTaskEncoder(make_tokenizer(begin=case.begin), case.make())
        for name, case in CASES.items()
    },
    "hf": lambda: driven("llava_next")[2],
    "text": lambda: text_encoder(make_tokenizer(template="{% for m in messages %}{{ m.content }}{% endfor %}")),
    "documents": lambda: PretrainingTaskEncoder(make_tokenizer()),
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
    contents = {name: content_key(make(), source) for name, make in OURS.items()}
    assert {name: content_key(pickle.loads(pickle.dumps(make())), source) for name, make in OURS.items()} == contents
    assert len(set(contents.values())) == len(contents)
