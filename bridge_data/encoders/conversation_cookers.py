"""Conversations out of crude data: a part `json` with the turns, and the images and videos that they are about.

Enters: crude samples, with turns as transformers has them (`role`, `content`) or as LLaVA has them (`from`, `value`).
Leaves: `ConversationSample`, with videos `VideoConversationSample`. Guarantee: images and videos are in the order of
their parts' names, numbers in them counting as numbers (2.jpg before 10.jpg).
"""

import re
from typing import Any

from bridge_data.decode.av import AV_EXTENSIONS
from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.encoders import ConversationSample
from bridge_data.encoders.videos import VideoConversationSample
from bridge_data.errors import SampleError
from bridge_data.samples import CrudeSample
from bridge_data.task import basic_sample_keys, stateless

_ROLES = {"human": "user", "gpt": "assistant"}


@stateless
def cook_conversation(sample: CrudeSample) -> ConversationSample | VideoConversationSample:
    """The turns in `json`: a list, or what is at its `messages` or `conversations`.

    Raises:
        SampleError: if there is no `json`, or it holds no turns.
    """
    content = sample.get("json")
    turns = content.get("messages", content.get("conversations")) if isinstance(content, dict) else content
    if not isinstance(turns, list) or not turns:
        raise SampleError(
            f"sample {sample['__key__']!r}: expected a part json with a list of turns, or with one at 'messages' or "
            f"'conversations', got {'no such part' if content is None else repr(content)[:80]}"
        )
    names = sorted((name for name in sample if not name.startswith("__")), key=_by_number)
    told = {
        **basic_sample_keys(sample),
        "messages": [_turn(turn, sample["__key__"]) for turn in turns],
        "images": [sample[name] for name in names if name.rpartition(".")[2] in IMAGE_EXTENSIONS],
    }
    videos = [sample[name] for name in names if name.rpartition(".")[2] in AV_EXTENSIONS]
    return VideoConversationSample(**told, videos=videos) if videos else ConversationSample(**told)


def _turn(turn: Any, key: str) -> dict[str, str]:
    for role, content in (("role", "content"), ("from", "value")):
        if isinstance(turn, dict) and isinstance(turn.get(role), str) and isinstance(turn.get(content), str):
            return {"role": _ROLES.get(turn[role], turn[role]), "content": turn[content]}
    raise SampleError(
        f"sample {key!r}: a turn is {repr(turn)[:80]}; expected texts at 'role' and 'content', or at 'from' and 'value'"
    )


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(piece or 0), text) for text, piece in re.findall(r"(\D*)(\d*)", name)]
