"""Chat templates as they are published, those that TRL has: of each, the answers are learnt and nothing else.

Its templates for training mark answers; where they write the same text, these are the answers found in the plain ones.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from bridge_data.encoders import ConversationTemplateConfig
from bridge_data.encoders.chat import chat_template_of, render_conversation
from bridge_data.encoders.chat_turns import messages_for
from bridge_data.errors import SampleError
from tests.encoders.multimodal_parts import make_tokenizer

pytestmark = pytest.mark.bridge

SPEC = importlib.util.find_spec("trl")  # not imported: it needs more packages
PLACES = [] if SPEC is None else SPEC.submodule_search_locations or []
TEMPLATES = sorted(path for place in PLACES for path in (Path(place) / "chat_templates").glob("*.jinja"))

CALL = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "description": "c"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "w", "parameters": PARAMETERS}}


def says(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


TALK = [says("user", "alpha?"), says("assistant", "beta two"), says("user", "gamma?"), says("assistant", "delta four")]
CHATS = {
    "one answer": TALK[:2],
    "two": TALK,
    "system": [says("system", "omega."), *TALK],
    "thoughts": [TALK[0], {**TALK[1], "reasoning_content": "hm"}, TALK[2], {**TALK[3], "reasoning_content": "well"}],
    "calls": [
        TALK[0],
        says("assistant", "", tool_calls=[CALL]),
        says("tool", "omega", tool_call_id=CALL["id"], name="weather"),
        TALK[1],
        *TALK[2:],
    ],
}
READ_ONLY = re.compile("alpha|gamma|omega")

MAY_REFUSE = ("which the chat template does not write", "System role not supported", "which the chat template writes")
"""What a template cannot write is refused."""

NOT_FOUND = {("gptoss", "thoughts")}
"""Of a last answer there is a part for its thoughts, with a role of its own."""
MARKED_OTHERWISE = {("diffusion_gemma", "calls")}
"""What comes after a call is not marked, but a model has to write it."""


def learnt(template: str, name: str) -> tuple[str, list[str]]:
    tokenizer = make_tokenizer(template)
    tokenizer.bos_token = "<bos>"
    template = chat_template_of(tokenizer, ConversationTemplateConfig())
    messages = messages_for(template, CHATS[name], {})
    tools = [TOOL] if name == "calls" else []
    text, spans = render_conversation(tokenizer, messages, template, "assistant", tools)
    return text, [text[start:end] for start, end in spans]


def test_templates_are_there() -> None:
    assert len(TEMPLATES) > 60


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_answers_are_learnt_and_nothing_else(path: Path, name: str) -> None:
    if (path.stem, name) in NOT_FOUND:
        pytest.skip("refused, as its answers cannot be found")
    try:
        text, answers = learnt(path.read_text(), name)
    except SampleError as error:
        assert any(reason in str(error) for reason in MAY_REFUSE), error
        return
    whole = "\n".join(answers)
    assert not READ_ONLY.search(whole)
    assert [word in whole for word in ("beta two", "delta four")] == [True, len(CHATS[name]) > 2]
    assert ("well" in whole) is (name == "thoughts")
    assert ("Paris" in whole) is (name == "calls")
    assert not answers[-1].endswith("delta four") or text.endswith("delta four")  # the end of a turn is learnt


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize(
    "path",
    [path for path in TEMPLATES if path.with_stem(f"{path.stem}_training") in TEMPLATES],
    ids=lambda path: path.stem,
)
def test_answers_are_those_that_a_template_for_training_marks(path: Path, name: str) -> None:
    made = []
    for one in (path, path.with_stem(f"{path.stem}_training")):
        try:
            made.append(learnt(one.read_text(), name))
        except SampleError:
            return
    (text, answers), (marked_text, marked) = made
    if text != marked_text or (path.stem, name) in MARKED_OTHERWISE:  # some write earlier thoughts
        return
    joined = "".join(marked)
    for answer in answers:  # marks may begin at the role, and go on to the line break
        assert answer in joined
        joined = joined[joined.index(answer) + len(answer) :]
    assert joined.strip() in ("", "<end>")  # some mark what ends the text
