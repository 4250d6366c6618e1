"""Chat rows as they are published, each with a field that changes what is learnt: it is refused by name, or honoured.

Asked at the seam data set -> loader: which answers have a loss, which text is read, and which images the batch holds.
"""

import dataclasses
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge_data import WorkerConfig, get_loader, get_val_dataset
from bridge_data.encoders import (
    ConversationSample,
    ConversationTemplateConfig,
    FamilyConfig,
    QwenVLTaskEncoder,
    SamplePolicies,
    cook_conversation,
    text_encoder,
)
from bridge_data.errors import SampleError, SkipSample
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.samples import CrudeSample
from tests.decode.av.media import sound
from tests.encoders.multimodal_parts import png
from tests.encoders.qwen_parts import make_family, qwen_tokenizer
from tests.plugins.convert.originals import converted

Row = Mapping[str, Any]


def user(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def answer(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def human(text: str, **more: Any) -> dict[str, Any]:
    return {"from": "human", "value": text, **more}


def gpt(text: str, **more: Any) -> dict[str, Any]:
    return {"from": "gpt", "value": text, **more}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


ASK, SAY = user("what is this ?"), answer("a boat")
LOOK, TELL = human("<image>\nwhat is this ?"), gpt("a boat")
MORE = [user("and where ?"), answer("on the sea")]
PICTURE = {"type": "image", "image": "0.png"}
URL = {"type": "image_url", "image_url": {"url": "0.png"}}
NO = {"role": "assistant", "content": "red"}

SHAPES: dict[str, dict[str, Any]] = {
    "OpenAI": {"messages": [{"role": "system", "content": "be brief"}, ASK, SAY], "parallel_tool_calls": True},
    "OpenAI with images": {"messages": [user([URL, text("what is this ?")]), SAY]},
    "transformers": {"messages": [user([PICTURE, text("what is this ?")]), answer([text("a boat")])]},
    "TRL": {"messages": [ASK, SAY], "source": "x", "chat_template_kwargs": {}},
    "TRL, prompt and completion": {"prompt": [ASK], "completion": [SAY]},
    "TRL, KTO": {"prompt": "what is this ?", "completion": "a boat", "label": True},
    "TRL, texts": {"prompt": "what is this ?", "completion": "a boat"},
    "ShareGPT": {"id": "Q1_0", "conversations": [human("what is this ?", markdown=None), gpt("a boat", markdown=None)]},
    "OpenHermes": {
        "conversations": [{"from": "human", "value": "what is this ?", "weight": None}, {**TELL, "weight": 1}],
        "source": "airoboros",
        "category": "coding",
        "system_prompt": None,
        "title": "",
        "model": None,
        "views": None,
    },
    "LLaVA": {"id": "000000033471", "image": "0.png", "conversations": [LOOK, TELL], "model": ""},
    "LLaVA-OneVision": {"id": "1", "image": "0.png", "conversations": [LOOK, TELL], "data_source": "x"},
    "Cambrian": {"id": 7, "image": "0.png", "source": "coco.json", "conversations": [LOOK, TELL]},
    "InternVL": {
        "id": 0,
        "image": ["0.png", "1.png"],
        "width_list": [24, 24],
        "height_list": [20, 20],
        "conversations": [human("<image>\n<image>\nwhat is this ?"), TELL],
    },
    "LLaVA, text alone": {"id": "wgByO4Y_0", "model": "", "image": "", "conversations": [human("what ?"), TELL]},
    "ms-swift": {"messages": [user("<image>what is this ?"), SAY], "images": ["0.png"], "channel": "x", "loss": None},
    "LLaMA-Factory, ShareGPT": {"conversations": [human("what ?"), TELL], "system": "be brief", "tools": "[]"},
    "LLaMA-Factory, images": {"messages": [user("<image>what is this ?"), SAY], "images": ["0.png"]},
    "Alpaca": {"instruction": "what is this ?", "input": "", "output": "a boat", "history": [], "system": ""},
    "the Cauldron": {
        "images": ["0.png", "1.png"],
        "texts": [{"user": "what is this ?", "assistant": "a boat", "source": "AI2D"}],
    },
    "FineVision": {
        "images": ["0.png"],
        "texts": [{"user": "what is this ?", "assistant": "a boat"}],
        "source": "x",
        "relevance_ratings": [5],
        "relevance_min": 5,
        "formatting_ratings": [4],
        "formatting_min": 4,
    },
    "turns as a text of JSON": {
        "messages": json.dumps([user([{"type": "image"}, text("what is this ?")]), SAY]),
        "images": ["0.png"],
    },
    "ms-swift, query and response": {"query": "<image>what is this ?", "response": "a boat", "images": ["0.png"]},
    "axolotl": {"conversations": [human("what ?", train=False), gpt("a boat", train=True)]},
    "torchtune": {"messages": [user("what ?", masked=True), answer("a boat", masked=False)]},
    "llava-instruct-mix": {
        "messages": [
            user(
                [{"index": None, "type": "text", "text": "what is this ?"}, {"index": 0, "type": "image", "text": None}]
            ),
            answer([{"index": None, "type": "text", "text": "a boat"}]),
        ],
        "images": ["0.png"],
    },
    "Tulu": {"id": "x_1", "messages": [ASK, SAY], "source": "ai2"},
    "no robots": {"prompt": "what is this ?", "prompt_id": "8a", "messages": [ASK, SAY], "category": "Chat"},
    "Magpie": {
        "uuid": "u",
        "instruction": "what is this ?",
        "response": "a boat",
        "conversations": [human("what is this ?"), TELL],
        "gen_input_configs": {"temperature": 1.0},
        "intent": "look",
        "difficulty": "easy",
        "language": "EN",
        "input_quality": "good",
        "instruct_reward": 1.5,
        "reward_model": "x",
        "min_neighbor_distance": 0.4,
    },
    "WildChat": {
        "conversation_hash": "c",
        "model": "x",
        "timestamp": "2024",
        "turn": 1,
        "language": "English",
        "toxic": False,
        "redacted": False,
        "country": "X",
        "hashed_ip": "f",
        "messages": [
            user("what ?", turn_identifier=1, toxic=False),
            answer("a boat", turn_identifier=1, redacted=False),
        ],
    },
    "LMSYS": {
        "conversation_id": "c",
        "model": "x",
        "conversation": [ASK, SAY],
        "turn": 1,
        "openai_moderation": [{"a": 0}],
    },
    "OpenR1": {
        "problem": "what is this ?",
        "solution": "it is a boat",
        "messages": [ASK, SAY],
        "generations": ["a boat", "red"],
        "is_reasoning_complete": [True, False],
        "reasoning_tokens": 12,
        "correctness_math_verify": [True, False],
    },
    "OpenHermes, an avatar": {"conversations": [human("what ?"), TELL], "avatarUrl": "https://x/a.png", "views": 1},
    "of a class": {"messages": [ASK, SAY], "label": "boat", "region": "EU", "points": 5, "bbox": None},
    "a class by number": {"image": "0.png", "conversations": [LOOK, TELL], "label": 3, "has_bbox": False},
    "MOSS": {"system": "be brief", "conversation": [{"human": "what is this ?", "assistant": "a boat"}]},
    "ShareGPT, a bot": {"conversations": [{"from": "user", "value": "what ?"}, {"from": "bot", "value": "a boat"}]},
    "OpenOrca": {"id": "flan.1", "system_prompt": "be brief", "question": "what ?", "response": "a boat"},
    "GSM8K": {"question": "what ?", "answer": "a boat"},
    "questions about pictures": {"image": "0.png", "question": "what ?", "answer": "a boat"},
    "OpenThoughts": {"system": "be brief", "conversations": [human("what ?"), gpt("one two , a boat")]},
}
ANSWERS = {"OpenThoughts": "one two , a boat"}
IMAGES = {"InternVL": 2, "the Cauldron": 2} | dict.fromkeys(
    [
        "OpenAI with images",
        "transformers",
        "LLaVA",
        "LLaVA-OneVision",
        "Cambrian",
        "ms-swift",
        "llava-instruct-mix",
        "LLaMA-Factory, images",
        "FineVision",
        "turns as a text of JSON",
        "ms-swift, query and response",
        "a class by number",
        "questions about pictures",
    ],
    1,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A row of a shape with other fields; `field` is what an error names. If it were honoured, `learnt` are the
    answers with a loss, `read` is in the text, and `images` is the number of pictures; None: it is to be refused."""

    shape: str
    more: Row
    field: str
    learnt: str | None = None
    read: str = ""
    images: int | None = None

    @property
    def row(self) -> dict[str, Any]:
        return {**SHAPES[self.shape], **self.more}


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}
OBJECTS = {"ref": ["boat"], "bbox": [[1, 2, 3, 4]], "image_id": [0]}
TWICE = [ASK, NO, *MORE]
ONLY_LAST = "on the sea"

CASES = [
    # what an answer says of its loss
    Case("ms-swift", {"messages": [user("<image>"), answer("red", loss=False), *MORE]}, "loss", ONLY_LAST),
    Case("ms-swift", {"messages": [user("<image>"), answer("red", loss=0.0), *MORE]}, "loss", ONLY_LAST),
    Case("ms-swift", {"messages": [user("<image>"), answer("red", loss_scale=0), *MORE]}, "loss_scale", ONLY_LAST),
    Case("ms-swift", {"messages": [user("<image>"), answer("red", loss_scale=0.5), *MORE]}, "loss_scale"),
    Case("OpenAI", {"messages": [ASK, answer("red", weight=0), *MORE]}, "weight", ONLY_LAST),
    Case("OpenAI", {"messages": [ASK, answer("red", weight=0.5), *MORE]}, "weight"),
    Case("OpenAI", {"messages": [ASK, answer("red", weight="0"), *MORE]}, "weight", ONLY_LAST),
    Case("OpenAI", {"messages": [ASK, answer("red", weight=0, loss=True), *MORE]}, "loss"),
    Case(
        "axolotl",
        {"conversations": [human("what ?"), gpt("red", train=False), human("and ?"), TELL]},
        "train",
        "a boat",
    ),
    Case("axolotl", {"conversations": [human("what ?", train=True), TELL]}, "train"),
    Case(
        "axolotl", {"conversations": [human("what ?"), gpt("red", training=0), human("and ?"), TELL]}, "train", "a boat"
    ),
    Case(
        "axolotl",
        {
            "conversations": [
                human("what ?"),
                gpt("a boat", train_detail=[{"begin_offset": 0, "end_offset": 1, "train": False}]),
            ]
        },
        "train_detail",
    ),
    Case("torchtune", {"messages": [ASK, answer("red", masked=True), *MORE]}, "masked", ONLY_LAST),
    Case("torchtune", {"messages": [user("what ?", masked=False), SAY]}, "masked"),
    Case("TRL", {"messages": [ASK, answer("red", loss_mask=[0, 1]), *MORE]}, "loss_mask"),
    Case("TRL", {"messages": [ASK | {"loss_mask": 0}, answer("red", loss_mask=0), *MORE]}, "loss_mask", ONLY_LAST),
    Case("TRL", {"loss": [True, False]}, "loss"),
    Case("TRL", {"mask_turns": [0]}, "mask_turns"),
    Case("TRL", {"messages": [ASK, answer("a boat", loss_weight=0.3)]}, "loss_weight"),
    Case("TRL", {"messages": [ASK, answer("a boat", train_on_input=True)]}, "train_on_input"),
    Case("TRL", {"messages": [user("what ?", train_on_input=True), SAY]}, "train_on_input"),
    Case("TRL, prompt and completion", {"prompt": TWICE[:3], "completion": TWICE[3:]}, "prompt", ONLY_LAST),
    Case("TRL", {"messages": [ASK, answer("red", calc_loss=False), *MORE]}, "calc_loss", ONLY_LAST),
    # what a row says of its loss
    Case("TRL", {"weight": 0.2}, "weight"),
    Case("TRL", {"loss": False}, "loss"),
    Case("ms-swift", {"loss_scale": [0.0, 1.0]}, "loss_scale"),
    Case("Alpaca", {"train_on_inputs": True}, "train_on_inputs"),
    Case("ShareGPT", {"mask": "gpt"}, "mask"),
    Case("LLaMA-Factory, ShareGPT", {"mask_history": True}, "mask_history"),
    # whether it is a good answer, and preferences
    Case("TRL, KTO", {"label": False}, "label"),
    Case("ms-swift", {"label": False}, "label"),
    Case("ms-swift", {"label": 0.0}, "label"),
    Case("ms-swift", {"label": "rejected"}, "label"),
    Case("LMSYS", {"conversation": [ASK, answer("red", loss=False), *MORE]}, "loss", ONLY_LAST),
    Case("LMSYS", {"messages": [ASK, NO]}, "conversation"),
    Case("LLaMA-Factory, ShareGPT", {"kto_tag": False}, "kto_tag"),
    Case("TRL", {"is_correct": False}, "is_correct"),
    Case("ms-swift", {"rejected_response": "red"}, "rejected_response"),
    Case("ms-swift", {"rejected_messages": [ASK, NO]}, "rejected_messages"),
    Case("ms-swift", {"rejected_images": ["1.png"]}, "rejected_images"),
    Case("ms-swift", {"margin": 2.5}, "margin"),
    Case("LLaMA-Factory, ShareGPT", {"chosen": gpt("on the sea"), "rejected": gpt("red")}, "chosen"),
    Case(
        "no robots", {"chosen": [ASK, SAY], "rejected": [ASK, NO], "score_chosen": 9.0, "score_rejected": 1.0}, "chosen"
    ),
    Case("OpenAI", {"preferred_output": [SAY], "non_preferred_output": [NO]}, "preferred_output"),
    Case("Alpaca", {"rejected": "red"}, "rejected"),
    Case("TRL", {"dispreferred_completion": "red"}, "dispreferred_completion"),
    Case("TRL", {"candidates": ["a boat", "red"]}, "candidates"),
    # sound
    Case("ms-swift", {"messages": [user("<audio>what ?"), SAY], "images": [], "audios": ["0.wav"]}, "audio"),
    Case("LLaMA-Factory, images", {"audios": ["0.wav"]}, "audios"),
    Case("LLaVA", {"audio": "0.wav"}, "audio"),
    Case("LLaVA", {"sound_file": "a/0.flac"}, "sound_file"),
    Case("OpenAI", {"messages": [user([SOUND, text("what ?")]), SAY]}, "input_audio"),
    Case("OpenAI", {"messages": [ASK, answer("a boat", audio={"id": "audio_1"})]}, "audio"),
    Case("TRL", {"messages": [user("<|audio_1|>what ?"), SAY]}, "<|audio_1|>"),
    # pictures and videos elsewhere, or other ones
    Case("ShareGPT", {"image_path": "0.png"}, "image_path", "a boat", images=1),
    Case("ShareGPT", {"figure": {"bytes": None, "path": "0.png"}}, "figure", "a boat", images=1),
    Case("ShareGPT", {"clip": "0.mp4"}, "clip"),
    Case("ShareGPT", {"jpgs": ["a"]}, "jpgs"),  # as Megatron-Bridge's ChatML has them
    Case("ShareGPT", {"video_path": "clips/abc"}, "video_path"),
    Case("ShareGPT", {"image_base64": "iVBORw0KGgo="}, "image_base64"),
    Case("ShareGPT", {"audio_path": "abc"}, "audio_path"),
    Case("LLaVA", {"target_image": "1.png"}, "target_image", "a boat", images=2),
    Case("LLaVA", {"image2": "1.png"}, "image2", "a boat", images=2),
    Case("LLaVA", {"images": ["1.png"]}, "images", "a boat", images=2),
    Case("OpenAI with images", {"images": ["1.png"]}, "images", "a boat", images=2),
    Case("LLaVA", {"conversations": [human("<image_1>\nwhat ?"), TELL]}, "<image_1>", "a boat", images=1),
    Case(
        "ShareGPT", {"conversations": [human("Picture 1: <img>0.png</img>\nwhat ?"), TELL]}, "<img>", "a boat", images=1
    ),
    Case("ShareGPT", {"conversations": [human("<video>\nwhat ?"), TELL]}, "<video>"),
    Case("TRL", {"messages": [user("<image_placeholder>what ?", images=["0.png"]), SAY]}, "images", "a boat", images=1),
    Case(
        "OpenAI with images",
        {
            "messages": [
                user([{"type": "image_url", "image_url": {"url": "0.png", "detail": "low"}}, text("what ?")]),
                SAY,
            ]
        },
        "detail",
    ),
    Case("transformers", {"messages": [user([text("what ?", image="0.png")]), SAY]}, "image", "a boat", images=1),
    Case(
        "transformers",
        {"messages": [user([{**PICTURE, "text": "red"}, text("what ?")]), SAY]},
        "text",
        "a boat",
        "red",
        1,
    ),
    Case(
        "llava-instruct-mix",
        {
            "images": ["0.png", "1.png"],
            "messages": [user([{"type": "image", "index": 1}, {"type": "image", "index": 0}]), SAY],
        },
        "index",
        "a boat",
        images=2,
    ),
    Case("LLaMA-Factory, images", {"images": [""]}, "images"),
    Case("ShareGPT", {"video": "0.mp4", "start": 1.5, "end": 3.0}, "start"),
    Case("LLaVA", {"max_pixels": 400}, "max_pixels", "a boat"),  # test_visual_settings.py: its pixels are fewer
    # places in a picture
    Case("ms-swift", {"messages": [user("<image>find <ref-object>"), answer("<bbox>")], "objects": OBJECTS}, "objects"),
    Case("ms-swift", {"messages": [user("<image>find it"), answer("<bbox>")]}, "<bbox>"),
    Case("LLaVA", {"bbox": [1, 2, 3, 4]}, "bbox"),
    Case("LLaVA", {"masks": ["1.png"]}, "masks"),
    Case("LLaVA", {"points": [[1, 2]]}, "points"),
    Case(
        "transformers",
        {"messages": [user([PICTURE, text("what ?")]), answer([text("a boat", bbox=[1, 2, 3, 4])])]},
        "bbox",
    ),
    # texts that no turn has
    Case("OpenAI", {"system": "one two three"}, "system"),
    Case("OpenHermes", {"system": "one", "system_prompt": "two"}, "system_prompt"),
    Case("ShareGPT", {"system": ["one"]}, "system"),
    Case("ShareGPT", {"system_message": "one two"}, "system_message", "a boat", "one two"),
    Case("Alpaca", {"history": [["one ?", "two"]]}, "history", "twoa boat", "one ?"),
    Case("Alpaca", {"history": [["one ?", "two", "three"]]}, "history"),
    Case("Alpaca", {"history": ["one ?", "two"]}, "history"),
    Case("Alpaca", {"history": '[["one ?", "two"]]'}, "history", "twoa boat", "one ?"),
    Case("Alpaca", {"instruction": "", "input": "one ?"}, "input", "a boat", "user\none ?"),
    Case("GSM8K", {"choices": ["a boat", "red"]}, "choices"),
    Case("ms-swift, query and response", {"history": [["one ?", "two"]]}, "history", "twoa boat", "one ?"),
    Case(
        "the Cauldron",
        {"texts": [{"user": "one ?", "assistant": "red", "weight": 0}, {"user": "two ?", "assistant": "a boat"}]},
        "texts",
        "a boat",
    ),
    Case("the Cauldron", {"texts": [{"user": "one ?", "assistant": None}]}, "assistant"),
    Case("the Cauldron", {"texts": ["one", None]}, "texts"),
    Case("Alpaca", {"context": "one two three"}, "context", "a boat", "one two three"),
    Case("Alpaca", {"reasoning": "one two three"}, "reasoning", "one two threea boat"),
    Case("no robots", {"prompt": "where is it ?"}, "prompt"),
    Case("Tulu", {"conversations": [human("where is it ?"), gpt("red")]}, "conversations"),
    Case("Magpie", {"response": "red"}, "response"),
    Case("TRL", {"messages": [{**ASK, "value": "red"}, SAY]}, "value"),
    Case(
        "OpenAI",
        {"messages": [ASK, answer("a boat", reasoning_content="one two")]},
        "reasoning_content",
        "one twoa boat",
    ),
    Case("TRL", {"messages": [ASK, answer("a boat", thinking="one two")]}, "thinking", "one twoa boat"),
    Case("OpenAI", {"messages": [user("what ?", name="sailor"), SAY]}, "name", "a boat", "sailor"),
    Case("OpenAI", {"messages": [ASK, answer("", refusal="red")]}, "refusal"),
    Case("TRL", {"documents": [{"title": "x", "text": "one two three"}]}, "documents", "a boat", "one two three"),
    # tools, and how the chat is written
    Case("OpenAI", {"tools": [TOOL]}, "tools", "a boat", "look"),
    Case("OpenAI", {"functions": [TOOL["function"]]}, "tools", "a boat", "look"),
    Case("OpenAI", {"messages": [ASK, answer(None, tool_calls=[CALL])]}, "tool_calls"),
    Case(
        "OpenAI",
        {"messages": [ASK, answer("a boat", function_call={"name": "look", "arguments": "{}"})]},
        "tool_calls",
    ),
    Case("OpenAI", {"tool_choice": "required"}, "tool_choice"),
    Case("ms-swift", {"mm_processor_kwargs": {"max_pixels": 64}}, "mm_processor_kwargs"),
    Case("ms-swift", {"add_eos": False}, "add_eos"),
    Case("TRL", {"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
    Case("TRL", {"messages": [ASK, answer("a boat", prefix=True)]}, "prefix"),
    Case("torchtune", {"messages": [ASK, answer("a boat", eot=False)]}, "eot"),
    Case("WildChat", {"messages": [ASK, answer("red", deleted=True)]}, "deleted"),
]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a row: an error, or what is learnt, what is read, and the number of images."""

    error: str = ""
    learnt: str | None = None
    read: str = ""
    images: int = 0


def outcomes(rows: list[Row], folder: Path) -> list[Outcome]:
    """What becomes of the lines of a JSONL file, each in a batch of its own."""
    path = written(rows, folder)
    prepare_jsonl(path)
    return learnt_of(path, len(rows))


def written(rows: list[Row], folder: Path) -> Path:
    """The rows as a JSONL file, and the media that they name."""
    for number in range(2):
        (folder / f"{number}.png").write_bytes(png(number))
    (folder / "0.wav").write_bytes(sound("wav")[0])
    path = folder / "chat.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def as_tars(row: Row, folder: Path, *more: Row) -> Path:
    return converted(written([row, *more], folder), folder / "out")


def as_columns(row: Row, folder: Path) -> Path:
    """A table with a column for each field, and pictures as `datasets` stores them."""

    def stored(value: Any) -> Any:
        if isinstance(value, list):
            return [stored(one) for one in value]
        is_name = isinstance(value, str) and value.endswith(".png")
        return {"bytes": png(int(value[0])), "path": value} if is_name else value

    columns = {name: stored(value) for name, value in row.items() if value not in ({}, None)}
    pq.write_table(pa.Table.from_pylist([columns]), folder / "chat.parquet")
    return folder / "chat.parquet"


def learnt_of(path: Path, number: int) -> list[Outcome]:
    errors: dict[int, Outcome] = {}

    def note(error: Exception, _: Any, sources: Any) -> None:
        errors[sources[0].index] = Outcome(f"{type(error).__name__}: {error}")

    tokenizer = qwen_tokenizer("qwen2_5_vl")
    encoder = QwenVLTaskEncoder(tokenizer, make_family("qwen2_5_vl"))
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=note)
    found = [Outcome()] * number
    options = {"worker_config": config, "batch_size": 1, "task_encoder": encoder, "split_part": "train"}
    for batch in get_loader(get_val_dataset(path, **options)):
        ids, labels, mask = batch.tokens[0], batch.labels[0], batch.loss_mask[0]
        found[batch.__sources__[0].index] = Outcome(
            learnt=tokenizer.decode(labels[mask > 0]).replace("<|im_end|>", ""),
            read=tokenizer.decode(ids),
            images=len(batch.media.get("image_grid_thw", ())),
        )
    return [errors.get(number, one) for number, one in enumerate(found)]


@pytest.fixture(scope="module")
def of_shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    found = outcomes([*SHAPES.values()], tmp_path_factory.mktemp("shapes"))
    return dict(zip(SHAPES, found, strict=True))


@pytest.fixture(scope="module")
def of_cases(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    return outcomes([case.row for case in CASES], tmp_path_factory.mktemp("cases"))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_published_shape_is_learnt(shape: str, of_shapes: dict[str, Outcome]) -> None:
    got = of_shapes[shape]
    assert (got.error, got.learnt) == ("", ANSWERS.get(shape, "a boat"))
    assert got.images == IMAGES.get(shape, 0)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{case.shape}: {case.field}" for case in CASES])
def test_a_field_that_changes_what_is_learnt_is_honoured_or_refused_by_name(
    number: int, of_cases: list[Outcome]
) -> None:
    check(CASES[number], of_cases[number])


def check(case: Case, got: Outcome) -> None:
    if got.error:
        names = (case.field, "'0.wav'") if case.field == "audios" else (case.field,)  # which is a part, once converted
        assert got.error.startswith("SampleError") and any(name in got.error for name in names)
        return
    assert (got.learnt, got.images) == (case.learnt, IMAGES.get(case.shape, 0) if case.images is None else case.images)
    assert case.read in got.read


_ELSEWHERE = frozenset(
    (
        "loss",
        "weight",
        "masked",
        "train_on_input",
        "label",
        "rejected_response",
        "rejected_images",
        "chosen",
        "audios",
        "audio",
        "objects",
        "<bbox>",
        "<image_1>",
        "system",
        "context",
        "reasoning",
        "thinking",
        "response",
        "deleted",
    )
)
ELSEWHERE = [case for name, case in {case.field: case for case in CASES}.items() if name in _ELSEWHERE]


@pytest.mark.parametrize("way", [as_tars, as_columns])
@pytest.mark.parametrize("case", ELSEWHERE, ids=[case.field for case in ELSEWHERE])
def test_so_it_is_in_tars_and_in_the_columns_of_tables(case: Case, way: Any, tmp_path: Path) -> None:
    (got,) = learnt_of(way(case.row, tmp_path), 1)
    check(case, got)


@pytest.mark.parametrize("way", [as_tars, as_columns])
@pytest.mark.parametrize(
    "shape",
    [
        "OpenAI",
        "LLaVA",
        "InternVL",
        "ms-swift",
        "llava-instruct-mix",
        "Alpaca",
        "Magpie",
        "LMSYS",
        "OpenR1",
        "FineVision",
        "turns as a text of JSON",
        "ms-swift, query and response",
    ],
)
def test_published_shapes_are_learnt_from_tars_and_tables(shape: str, way: Any, tmp_path: Path) -> None:
    (got,) = learnt_of(way(SHAPES[shape], tmp_path), 1)
    assert (got.error, got.learnt, got.images) == ("", "a boat", IMAGES.get(shape, 0))


@pytest.mark.parametrize("at", ["image", "images"])
@pytest.mark.parametrize("name", ["", [""], [None], {"bytes": None, "path": None}, {"path": ""}])
def test_an_empty_name_is_no_image(at: str, name: Any, tmp_path: Path) -> None:
    row = {"messages": [ASK, SAY], at: name}
    (got,) = outcomes([row], tmp_path)
    assert (got.error, got.learnt, got.images) == ("", "a boat", 0)
    if isinstance(name, list) and at == "images":
        with_one = {**SHAPES["ms-swift"], at: ["0.png"]}
        got = learnt_of(as_tars(with_one, tmp_path, row), 2)
        assert [(one.error, one.learnt, one.images) for one in got] == [("", "a boat", 1), ("", "a boat", 0)]


LONE = "a \ud83d boat"
"""As json.loads reads half of an emoji."""


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [user(LONE), SAY]},
        {"messages": [ASK, answer(LONE)]},
        {"conversations": [human("what ?"), gpt(LONE)]},
        {"messages": [user([text(LONE)]), SAY]},
        {"messages": [ASK, SAY], "system": LONE},
        {"instruction": "what ?", "output": LONE},
    ],
)
def test_half_of_a_surrogate_pair_is_named_with_its_key(row: Row, tmp_path: Path) -> None:
    (got,) = outcomes([row], tmp_path)
    assert got.error.startswith("SampleError: sample '0': character 2 ") and r"'\ud83d'" in got.error


def test_an_unknown_field_is_told_once_a_data_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{**SHAPES["Tulu"], "flavour": number, "messages": [{**ASK, "mood": "x"}, SAY]} for number in range(3)]
    with caplog.at_level(logging.WARNING):
        assert [one.learnt for one in outcomes(rows, tmp_path)] == ["a boat"] * 3
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and all(str(tmp_path / "chat.jsonl") in one for one in told)
    assert "'flavour'" in told[1] and "'mood'" in told[0]


def turns(*messages: dict[str, Any]) -> ConversationSample:
    return ConversationSample(__key__="k", messages=list(messages))


@pytest.mark.parametrize(
    ("more", "learnt"),
    [({"loss": False}, False), ({"train": 0}, False), ({"masked": True}, False), ({"weight": 1}, True), ({}, True)],
)
def test_turns_of_other_cookers_say_what_is_learnt_too(more: Row, learnt: bool) -> None:
    encoder = text_encoder(qwen_tokenizer("qwen2_5_vl"))
    made = encoder.preencode_sample(turns(ASK, answer("red", **more), *MORE))
    assert ("red" in encoder.tokenizer.decode(made.tokens[made.loss_mask > 0])) is learnt
    with pytest.raises(SampleError, match="'k': a turn has 'train_on_input': True"):
        encoder.preencode_sample(turns({**ASK, "train_on_input": True}, answer("red", **more)))


THINKS = """\
{%- for message in messages -%}
{{ message.role }}: {% if message.role == 'assistant' %}{% generation %}
{%- if message.reasoning_content %}({{ message.reasoning_content }}) {% endif -%}
{{ message.content }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}
{% endfor -%}
"""


@pytest.mark.parametrize("role", ["system", "observation", "function_call"])
def test_a_turn_that_the_template_leaves_out_is_refused(role: str) -> None:
    template = THINKS.replace("in messages -%}", "in messages if message.role in ('user', 'assistant') -%}")
    template_config = ConversationTemplateConfig(chat_template=template)
    policies = SamplePolicies(roles_out_of_order="keep")
    encoder = text_encoder(
        qwen_tokenizer("qwen2_5_vl"), FamilyConfig(conversation_template_config=template_config, policies=policies)
    )
    with pytest.raises(SampleError, match=f"{role}.*one two three"):
        encoder.preencode_sample(turns({"role": role, "content": "one two three !"}, ASK, SAY))


def test_what_only_a_template_can_write_is_learnt_if_it_does() -> None:
    config = FamilyConfig(conversation_template_config=ConversationTemplateConfig(chat_template=THINKS))
    encoder = text_encoder(qwen_tokenizer("qwen2_5_vl"), config)
    row = {"messages": [ASK, answer("a boat", reasoning_content="one two")]}
    made = encoder.preencode_sample(cook_conversation(CrudeSample(__key__="k", json=row)))
    learnt = made.labels[made.loss_mask > 0]
    assert encoder.tokenizer.decode(learnt) == "(one two) a boat"


@pytest.mark.parametrize(
    "tag",
    [
        "<audio>",
        "<AUDIO>",
        "<|audio|>",
        "<|audio_1|>",
        "<speech>",
        "<image_0>",
        "<image 1>",
        "<|image_1|>",
        "<img>",
        "<|image_pad|>",
        "<ImageHere>",
        "<image_placeholder>",
        "<start_of_image>",
        "<|vision_start|>",
        "<im_patch>",
        "<video_3>",
        "<vila/video>",
        "<bbox>",
        "<ref-object>",
        "<region1>",
        "<point_cloud>",
        "<start-image>",
        "<cot-process>",
    ],
)
def test_a_tag_of_a_medium_that_is_not_filled_in_is_refused_or_kept_as_text(tag: str) -> None:
    tokenizer, sample = qwen_tokenizer("qwen2_5_vl"), turns(user(f"what is {tag} ?"), SAY)
    with pytest.raises(SampleError, match=re.escape(f"'k': a turn has {tag!r}")):
        text_encoder(tokenizer).preencode_sample(sample)
    with pytest.raises(SkipSample):
        text_encoder(tokenizer, FamilyConfig(policies=SamplePolicies(media_tags="skip"))).preencode_sample(sample)
    kept = text_encoder(tokenizer, FamilyConfig(policies=SamplePolicies(media_tags="keep")))
    assert f"what is {tag} ?" in tokenizer.decode(kept.preencode_sample(sample).tokens)


@pytest.mark.parametrize(
    "said", ["<think> a boat </think>", "a <b> c", "<|im_start|>", "<imagine>", "<box>[1, 2]</box>"]
)
def test_other_tags_are_text(said: str) -> None:
    tokenizer = qwen_tokenizer("qwen2_5_vl")
    made = text_encoder(tokenizer).preencode_sample(turns(user(said), SAY))
    assert said in tokenizer.decode(made.tokens)
