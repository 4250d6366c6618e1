import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from bridge_data import ConfigError, EnergonMultiModalDataModule, SampleError, SkipSample, SourceInfo
from bridge_data.encoders import (
    ConversationSample,
    FamilyConfig,
    FamilyTaskEncoder,
    MultiModalSampleConfig,
    VideoConversationSample,
    cook_conversation,
)
from bridge_data.encoders.conversations import conversation_cooker
from bridge_data.errors import FatalSampleError
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.samples import CrudeSample
from bridge_data.task.stores import SystemFileStore
from tests.encoders import multimodal_parts as words
from tests.encoders.multimodal_parts import png
from tests.encoders.parts import CASES, make_tokenizer

TURNS = [{"role": "user", "content": "what"}, {"role": "assistant", "content": "a boat"}]


def crude(**parts: Any) -> CrudeSample:
    return CrudeSample({"__key__": "a/1", **parts})


LLAVA_TURNS = [{"from": "human", "value": "what"}, {"from": "gpt", "value": "a boat"}]
SYSTEM = {"role": "system", "content": "be brief"}
MORE = [{"role": "user", "content": "and"}, {"role": "assistant", "content": "the sea"}]
NO_LOSS = [TURNS[0], {**TURNS[1], "weight": 0}]


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        (TURNS, TURNS),
        ({"messages": TURNS}, TURNS),
        ({"conversations": TURNS}, TURNS),
        (LLAVA_TURNS, TURNS),
        ({"system": "be brief", "conversations": LLAVA_TURNS}, [SYSTEM, *TURNS]),
        ({"conversations": [LLAVA_TURNS[0], {"from": "chatgpt", "value": "a boat"}]}, TURNS),
        ({"messages": [{**SYSTEM, "role": "developer"}, *TURNS], "system": "be brief"}, [SYSTEM, *TURNS]),
        # one question and its answer
        ({"instruction": "what", "output": "a boat"}, TURNS),
        ({"instruction": "what", "input": "", "output": "a boat"}, TURNS),
        ({"instruction": "what", "input": None, "output": "a boat", "history": []}, TURNS),
        (
            {"instruction": "what", "input": "here", "output": "a boat", "system": "be brief"},
            [SYSTEM, {"role": "user", "content": "what\nhere"}, TURNS[1]],
        ),
        ({"prompt": "what", "completion": "a boat"}, TURNS),
        ({"prompt": TURNS[:1], "completion": TURNS[1:]}, TURNS),
        ({"prompt": LLAVA_TURNS[:1], "completion": "a boat", "system": "be brief"}, [SYSTEM, *TURNS]),
        # answers without loss: those that say so, and those in a prompt
        ([TURNS[0], {**TURNS[1], "weight": 0}, MORE[0], {**MORE[1], "weight": 1}], [*NO_LOSS, *MORE]),
        ([TURNS[0], {**TURNS[1], "weight": False}, *MORE], [*NO_LOSS, *MORE]),
        ([TURNS[0], {**TURNS[1], "train": False}, *MORE], [*NO_LOSS, *MORE]),
        ([{**LLAVA_TURNS[0], "weight": 1}, {**LLAVA_TURNS[1], "weight": 0}, *MORE], [*NO_LOSS, *MORE]),
        ({"prompt": [*TURNS, MORE[0]], "completion": "the sea"}, [*NO_LOSS, *MORE]),
    ],
)
def test_turns_are_where_people_put_them(content: Any, messages: list[dict[str, Any]]) -> None:
    sample = cook_conversation(crude(json=content))
    if isinstance(content, dict):  # what changes nothing, but chats of roles and texts alone are read in another way
        assert cook_conversation(crude(json={**content, "id": "7"})) == sample
    assert type(sample) is ConversationSample
    assert (sample.__key__, sample.messages, sample.images) == ("a/1", messages, [])


def test_an_encoder_gives_no_loss_to_answers_that_are_context() -> None:
    encoder = FamilyTaskEncoder(words.make_tokenizer(words.TURNS))
    turns = [*TURNS, {"role": "user", "content": "what"}, {"role": "assistant", "content": "the sea"}]

    def learnt(*weights: int) -> list[int]:
        answers = [{**turn, "weight": weight} for turn, weight in zip(turns[1::2], weights, strict=True)]
        sample = encoder.preencode_sample(cook_conversation(crude(json=[turns[0], answers[0], turns[2], answers[1]])))
        return [int(label) for label, mask in zip(sample.labels, sample.loss_mask, strict=True) if mask]

    both, first, second = learnt(1, 1), learnt(1, 0), learnt(0, 1)
    assert first and second and both == first + second
    with pytest.raises(SkipSample, match="no answer to learn from"):
        learnt(0, 0)


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": "sea"}}}


@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL])])
@pytest.mark.parametrize(
    "call",
    [
        CALL,
        {**CALL, "function": {"name": "look", "arguments": '{"at": "sea"}'}},
        {"id": "1", "name": "look", "arguments": {"at": "sea"}},
    ],
)
def test_tools_and_calls_of_them_are_kept(tools: Any, call: Any) -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    answered = {"role": "tool", "content": "a boat", "tool_call_id": "1", "name": "look", "weight": 3}
    sample = cook_conversation(crude(json={"messages": [TURNS[0], asked, answered, TURNS[1]], "tools": tools}))
    assert sample.tools == [TOOL]
    assert sample.messages[1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert sample.messages[2] == {"role": "tool", "content": "a boat", "tool_call_id": "1", "name": "look"}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"txt": "hello"},
            r"(?s)'a/1': expected a part json .* Its fields are txt \(str\)\. Write .*def cook",
        ),
        ({"json": {"text": "hello", "id": 3}}, r"and 'completion'\. Its fields are json {text: str, id: int}\. "),
        ({"json": []}, r"Its fields are json \(list\)\. "),
        ({"json": ["hello"]}, r"'a/1': a turn is 'hello'; expected a text \(or a list of parts\) at 'role'"),
        ({"json": [{"role": "user", "content": None}]}, "a turn is {'role'"),
        (
            {"json": [{"role": "user", "content": [{"type": "audio"}]}]},
            "a part of a turn is {'type': 'audio'}; exp",
        ),
        ({"json": {"messages": TURNS, "tools": "[3]"}}, r"'a/1': its 'tools' are \[3\]; expected a list of JSON"),
        ({"json": {"messages": TURNS, "tools": "{"}}, "its 'tools' are '{'; expected a list"),
        ({"json": {"messages": TURNS, "tools": [TOOL], "functions": [TOOL]}}, "has 'tools' and 'functions'; expected"),
        ({"json": {"messages": TURNS, "available_tools": [{"name": "f"}]}}, "'available_tools': .* in another form"),
        ({"json": [{"from": "function_call", "value": "look!"}]}, "a call of a tool is 'look!'; expected a function"),
        ({"json": [{**TURNS[1], "tool_calls": 3}]}, "a call of a tool is 3; expected a function with a name"),
        ({"json": [{**TURNS[1], "weight": 0.5}]}, r"a turn has weight 0\.5; expected 0 or 1"),
        ({"json": {"prompt": ["x"], "completion": "yes"}}, "a turn is 'x'"),
        ({"json": {"prompt": "x"}}, r"or 'prompt' and 'completion'\. Its fields are json {prompt: str}"),
        ({"json": {"instruction": "x", "output": 3}}, "Its fields are json {instruction: str, output: int}"),
        ({"json": {"instruction": "x", "input": 3, "output": "y"}}, "expected a part json with a list of turns"),
        (
            {"json": {"instruction": "x", "output": "y", "history": [["a"]]}},
            "'a/1': has beside 'instruction' the 'history' .*; expected a list of pairs",
        ),
        ({"json": {"messages": TURNS, "image": 3}}, "names an image or video as 3; expected the name of a file"),
        ({"json": {"messages": TURNS, "image": "http://x/a.jpg"}}, "names 'http://x/a.jpg', which is not downloaded"),
        ({"json": {"messages": TURNS, "image": "data:image/png;base64,?"}}, "a data: URL is no base64"),
        (
            {"json": {"messages": TURNS, "image": "?" * 5000}},
            "a text of 5,000 characters, which is no name of a file, is",
        ),
    ],
)
def test_what_holds_no_turns_is_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(SampleError, match=message):
        cook_conversation(crude(**parts))


PAIR = {"question": "what ?", "answers": ["a boat"], "image.jpg": b""}
CAPTION = {"jpg": b"", "txt": "a boat", "json": {"caption": "a boat", "width": 3}}


@pytest.mark.parametrize(
    ("parts", "path", "shard", "way_out"),
    [
        (
            PAIR,
            "data",
            "a.parquet",
            "field_map: {image: image.jpg, context: question, answers: answers}` beside the path",
        ),
        (
            {"text": "a boat", "url": "x"},
            "data",
            "a.parquet",
            "`sample_type: TextSample` and `field_map: {text: text}`",
        ),
        (
            {"json": {"text": "a boat", "id": "1"}},
            "a.jsonl",
            "a.jsonl",
            "TextSample: `bridge-data convert a.jsonl DST`",
        ),
        (
            CAPTION,
            "data/0.tar",
            "0.tar",
            r"prepare data --sample-type CaptioningSample --field-map 'image=jpg,caption=json\[caption\]'`",
        ),
        (
            {"json": {"prompt": "x", "chosen": "y", "rejected": "z"}},
            "a.jsonl",
            "a.jsonl",
            "'chosen' and 'rejected' comp",
        ),
        ({"question": "what ?", "options": ["a"]}, "data", "a.parquet", r'"content": sample\[\.\.\.\]'),
        ({"json": {"problem": "what ?", "x": "y"}}, "a.jsonl", "a.jsonl", r'"content": sample\["json"\]\[\.\.\.\]'),
    ],
)
def test_what_fits_another_class_of_samples_is_told(parts: dict[str, Any], path: str, shard: str, way_out: str) -> None:
    source = SourceInfo(dataset_path=path, index=0, shard_name=shard, file_names=())
    with pytest.raises(SampleError, match=way_out):
        cook_conversation(crude(**parts, __sources__=(source,)))


def cooked(content: Any, folder: Path | None = None, **parts: Any) -> tuple[list[str], list[Any]]:
    """What the turns say, and the images, of a sample that is in `folder`."""
    source = SourceInfo(dataset_path=f"{folder}/chat.jsonl", index=0, shard_name="chat.jsonl", file_names=())
    sample = cook_conversation(crude(json=content, __sources__=(source,), **parts))
    return [turn["content"] for turn in sample.messages], sample.images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    (tmp_path / "9j").mkdir()
    (tmp_path / "9j/1.png").write_bytes(png(2))
    return tmp_path


def asked(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}, TURNS[1]], **more}


INLINE = f"data:image/png;base64,{base64.b64encode(png(0)).decode()}"
BASE64 = INLINE.partition(",")[2]
UNNAMED = [{"type": "text", "text": "one "}, {"type": "image"}, {"type": "text", "text": "two "}, {"type": "image"}]


@pytest.mark.parametrize(
    ("content", "question", "numbers"),
    [
        # content as a list of parts: of OpenAI (also with the image in the text), its Responses, and transformers
        *(
            (asked([part, text]), "<image>\nwhat", [0])
            for part, text in (
                ({"type": "image_url", "image_url": {"url": "0.png"}}, {"type": "text", "text": "what"}),
                ({"type": "image_url", "image_url": {"url": INLINE}}, {"type": "text", "text": "what"}),
                ({"type": "input_image", "image_url": "0.png"}, {"type": "input_text", "text": "what"}),
                ({"type": "image", "image": "0.png"}, {"type": "text", "text": "what"}),
                ({"type": "image", "path": "0.png"}, "what"),
            )
        ),
        # parts without a name are those of the sample in order
        (asked(UNNAMED, images=["2.png", {"path": "1.png"}]), "one <image>\ntwo <image>", [2, 1]),
        # files are named as people name them
        *(
            ({"conversations": TURNS, name: value}, "what", [1])
            for name in ("image", "images")
            for value in ("1.png", ["1.png"], {"path": "1.png"})
        ),
        ({"conversations": TURNS, "images": [BASE64, "1.png"]}, "what", [0, 1]),
        ({"conversations": TURNS, "image": "9j/1.png"}, "what", [2]),
        *(({"conversations": TURNS, name: None}, "what", []) for name in ("image", "images")),
        ({"instruction": "<image>\nwhat", "output": "a boat", "images": ["1.png"]}, "<image>\nwhat", [1]),
    ],
)
def test_images_are_where_people_put_them(content: Any, question: str, numbers: list[int], folder: Path) -> None:
    assert cooked(content, folder) == ([question, "a boat"], [png(number) for number in numbers])


def test_images_and_videos_of_a_sample_are_in_the_order_of_their_names_or_numbers() -> None:
    parts = {"a.png": b"a", "b.png": b"b"}
    assert cooked({"messages": TURNS, "images": ["b.png", "a.png"]}, **parts)[1] == [b"b", b"a"]
    assert cooked({"messages": TURNS, "images": ["x/b.png", "x/a.png"]}, **parts)[1] == [b"a", b"b"]
    sample = cook_conversation(crude(json=TURNS, **{"10.jpg": b"c", "2.png": b"b", "1.jpg": b"a", "clip.mp4": b"v"}))
    assert isinstance(sample, VideoConversationSample)
    assert (sample.images, sample.videos) == ([b"a", b"b", b"c"], [b"v"])
    family = CASES["llava"].make()
    encoder = FamilyTaskEncoder(make_tokenizer(template=family.chat_template), family)
    with pytest.raises(ConfigError, match="got VideoConversationSample; it has videos, which QwenVLTaskEncoder takes"):
        encoder.preencode_sample(sample)


def test_files_are_in_the_auxiliary_data(folder: Path, tmp_path: Path) -> None:
    store, sample = SystemFileStore(folder), crude(json={"messages": TURNS, "image": "1.png"})
    assert cook_conversation(sample, photos=store).images == [png(1)]
    assert cook_conversation(sample, notes=store, images=store).images == [png(1)]
    with pytest.raises(ConfigError, match=r"auxiliary data are called a, b: call those with its images `images`"):
        cook_conversation(sample, a=store, b=store)
    with pytest.raises(SampleError, match=r"there is no file '7\.png'"):
        cook_conversation(crude(json={"messages": TURNS, "image": "7.png"}), photos=store)
    with pytest.raises(SampleError, match="is outside of"):
        cooked({"messages": TURNS, "image": "../1.png"}, folder)
    source = SourceInfo(dataset_path=str(tmp_path), index=0, shard_name="0.tar", file_names=())
    with pytest.raises(ConfigError, match=r"a file of an unknown folder: set `aux: {images: filesystem://FOLDER}`"):
        cook_conversation(sample | {"__sources__": (source,)})


def test_the_placeholder_is_that_of_the_encoder() -> None:
    turns = [{"role": "user", "content": "<image>what"}, TURNS[1]]
    cook = conversation_cooker("<pic>", "<clip>").cook
    assert cook(crude(json=turns, png=b"a")).messages[0]["content"] == "<pic>what"
    assert cook(crude(json=turns)).messages[0]["content"] == "<image>what"
    family = CASES["llava"].make()
    config = FamilyConfig(image_placeholder="<pic>")
    encoder = FamilyTaskEncoder(make_tokenizer(template=family.chat_template), family, config)
    (cooker,) = encoder.cookers
    assert cooker.name == "cook_conversation"
    assert cooker.cook(crude(json=turns, png=b"a")).messages[0]["content"] == "<pic>what"


OPENAI = {"messages": [{"role": "user", "content": "what is this ?"}, {"role": "assistant", "content": "a boat ."}]}
SHAREGPT = {"conversations": [{"from": "human", "value": "what is this ?"}, {"from": "gpt", "value": "a boat ."}]}
LLAVA = {
    "image": "1.png",
    "conversations": [{"from": "human", "value": "<image>\nwhat is this ?"}, {"from": "gpt", "value": "a boat ."}],
}
VISION = {
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "1.png"}},
                {"type": "text", "text": "what is this ?"},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "a boat ."}]},
    ]
}


def module_of(path: Path, lines: list[Mapping[str, Any]]) -> EnergonMultiModalDataModule:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    prepare_jsonl(path)
    return EnergonMultiModalDataModule(
        path,
        words.make_tokenizer(),
        words.image_processor(),
        multimodal_sample_config=MultiModalSampleConfig(patch_size=8),
        num_workers=0,
        micro_batch_size=2,
        global_batch_size=2,
    )


@pytest.mark.parametrize(
    ("line", "num_images"),
    [(OPENAI, 0), (SHAREGPT, 0), (LLAVA, 1), (VISION, 1)],
    ids=["openai", "sharegpt", "llava", "vision"],
)
def test_a_jsonl_file_of_chats_works_in_the_default_data_module(
    line: Mapping[str, Any], num_images: int, folder: Path
) -> None:
    module = module_of(folder / "chat.jsonl", [line] * 8)
    batch = next(module.train_dataloader())
    text = "<user> " + "<image> " * 4 * num_images + "what is this ? <bot> a boat . <end>"
    ids = [words.VOCABULARY[word] for word in text.split()]
    assert batch.tokens.tolist() == [ids, ids]
    learnt = [words.VOCABULARY[word] for word in ("a", "boat", ".", "<end>")]
    for labels, mask in zip(batch.labels, batch.loss_mask, strict=True):
        assert labels[mask.bool()].tolist() == learnt
        assert mask.nonzero().flatten().tolist() == list(range(len(ids) - 5, len(ids) - 1))
    assert len(batch.images) == 2 * num_images
    if num_images:
        pixels = module.image_processor(Image.open(io.BytesIO(png(1))), return_tensors="pt").pixel_values[0]
        assert torch.equal(batch.images[0], pixels)


def test_a_jsonl_file_of_another_shape_shows_its_fields_and_what_to_write(folder: Path) -> None:
    module = module_of(folder / "other.jsonl", [{"ask": "what", "say": "a boat"}] * 200)
    with pytest.raises(FatalSampleError, match=r"(?s)fields are json {ask: str, say: str}\. .*cookers = \["):
        next(module.train_dataloader())


@pytest.mark.parametrize(
    "pair",
    [
        ("instruction", "response"),
        ("prompt", "response"),
        ("question", "response"),
        ("question", "answer"),
        ("problem", "solution"),
        ("inputs", "targets"),
    ],
)
def test_a_question_and_its_answer_go_by_many_names(pair: tuple[str, str]) -> None:
    row = {pair[0]: "1 + 1?", pair[1]: "2", "answer": "2", "id": 7}
    messages = cook_conversation(crude(json=row)).messages
    assert messages == [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    with pytest.raises(SampleError, match=f"Its fields are json {{{pair[0]}: str, id: int}}"):
        cook_conversation(crude(json={pair[0]: "1 + 1?", "id": 7}))
