from typing import Any

import pytest
import torch
from PIL import Image

from bridge_data import CaptioningSample, TextSample, VQASample
from bridge_data.encoders import (
    PLAIN_CHAT_TEMPLATE,
    ContrastiveTaskEncoder,
    ConversationSample,
    ConversationTemplateConfig,
    FamilyConfig,
    FamilyTaskEncoder,
    PretrainingTaskEncoder,
    SpeechTaskEncoder,
    TranscriptionSample,
    text_encoder,
)
from bridge_data.encoders.chat import _warn_unended, chat_template_of, chatml, render_conversation
from bridge_data.encoders.sequences import last_answer
from bridge_data.encoders.tokens import MarkedTokens, tokenize_spans, tokenize_text
from bridge_data.errors import ConfigError, SampleError
from tests.encoders.multimodal_parts import (
    END,
    TURNS,
    TURNS_WITHOUT_MARKS,
    VOCABULARY,
    Words,
    make_tokenizer,
    slow_tokenizer,
)
from tests.tiny_models.parts import tiny_image_processor, tiny_tokenizer

CONFIG = ConversationTemplateConfig()
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "what is this ?"},
    {"role": "assistant", "content": "a boat"},
    {"role": "user", "content": "what is on the boat ?"},
    {"role": "assistant", "content": "the sea"},
]
WHOLE = "<user> what is this ? <bot> a boat <end> <user> what is on the boat ? <bot> the sea <end>"


def answers(tokenizer: Any, messages: list[dict[str, Any]] = MESSAGES, config: Any = CONFIG) -> tuple[str, str]:
    """All words, and those of answers."""
    template = chat_template_of(tokenizer, config)
    (marked,) = tokenize_spans(tokenizer, [render_conversation(tokenizer, messages, template, config.roles[1])])
    names = {number: word for word, number in VOCABULARY.items()}
    learnt = [names[i] for i, has_loss in zip(marked.ids, marked.has_loss, strict=True) if has_loss]
    return " ".join(names[i] for i in marked.ids), " ".join(learnt)


ROLES_MARKED = TURNS_WITHOUT_MARKS.partition("{%- if add_generation_prompt")[0]
"""It writes no prompt to answer, so that the role cannot be told from the answer."""


@pytest.mark.parametrize(
    ("template", "weights", "learnt"),
    [
        *(
            (template, weights, learnt)
            for template in (TURNS, TURNS_WITHOUT_MARKS)
            for weights, learnt in (
                ((1, 1), "a boat <end> the sea <end>"),
                ((0, 1), "the sea <end>"),
                ((1, 0), "a boat <end>"),
                ((0, 0), ""),
            )
        ),
        (ROLES_MARKED, (1, 1), "<bot> a boat <end> <bot> the sea <end>"),
    ],
)
def test_answers_are_learnt_and_those_with_weight_0_are_context(
    template: str, weights: tuple[int, int], learnt: str
) -> None:
    """With generation marks in the template, and without; by a tokenizer that knows offsets, and one that does not."""
    weighted: list[dict[str, Any]] = [dict(turn) for turn in MESSAGES]
    for turn, weight in zip(weighted[1::2], weights, strict=True):
        turn["weight"] = weight
    slow = slow_tokenizer(chat_template=template)
    assert not slow.is_fast
    for tokenizer in (make_tokenizer(template), slow):
        assert answers(tokenizer, weighted) == (WHOLE, learnt)


def test_a_weight_where_the_template_marks_other_than_one_span_for_each_answer_is_refused() -> None:
    template = (
        "{% for m in messages %}{% if loop.last %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }} {% endif %}{% endfor %}"
    )
    weighted = [*MESSAGES[:3], {**MESSAGES[3], "weight": 0}]
    with pytest.raises(SampleError, match="marks 1 answers of 2, so which one is unknown"):
        render_conversation(make_tokenizer(), weighted, template, "assistant")


def test_a_last_answer_without_its_thoughts_is_refused() -> None:
    drops = TURNS.replace("message['content'] }} <end>", "message['content'].split('</think>')[-1] }} <end>")
    thinks = "<think>\nred\n</think>\n\na boat"
    messages = [MESSAGES[0], {"role": "assistant", "content": thinks}, *MESSAGES[2:]]
    assert "red" not in render_conversation(make_tokenizer(), messages, drops, "assistant")[0]
    with pytest.raises(
        SampleError, match="leaves out a part of the last answer, 'red'; use a template that writes all"
    ):
        render_conversation(make_tokenizer(), messages[:2], drops, "assistant")
    renames = TURNS.replace("message['content'] }} <end>", "message['content'].replace('think>', 'hm>') }} <end>")
    assert "<hm>" in render_conversation(make_tokenizer(), messages[:2], renames, "assistant")[0]


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize("template", [TURNS, TURNS_WITHOUT_MARKS])
def test_tools_go_to_a_template_that_takes_them(template: str) -> None:
    with pytest.raises(SampleError, match="has 'tools', which the chat template does not write"):
        render_conversation(make_tokenizer(), MESSAGES, template, "assistant", TOOLS)
    with_tools = "{% if tools %}{% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif %}" + template
    plain, spans = render_conversation(make_tokenizer(), MESSAGES, with_tools, "assistant")
    text, moved = render_conversation(make_tokenizer(), MESSAGES, with_tools, "assistant", TOOLS)
    assert text == "look " + plain
    assert [text[start:end] for start, end in moved] == [plain[start:end] for start, end in spans]
    calls = [{"type": "function", "function": {"name": "look", "arguments": {}}}]
    called: list[Any] = [MESSAGES[0], {"role": "assistant", "content": "", "tool_calls": calls}]
    with pytest.raises(SampleError, match="has 'tool_calls', which the chat template does not write"):
        render_conversation(make_tokenizer(), called, template, "assistant")
    writes = template + "{% if messages[-1].tool_calls %}{{ messages[-1].tool_calls[0].function.name }}{% endif %}"
    assert render_conversation(make_tokenizer(), called, writes, "assistant")[0].endswith("look")


def test_text_ends_with_the_end_token_where_there_is_one() -> None:
    assert tokenize_text(make_tokenizer(), "a boat").ids.tolist() == [VOCABULARY["a"], VOCABULARY["boat"], END]
    assert tokenize_text(make_tokenizer(), "a boat <end>").ids[-2:].tolist() == [VOCABULARY["boat"], END]
    assert tokenize_text(make_tokenizer(end=False), "a boat").ids.tolist() == [VOCABULARY["a"], VOCABULARY["boat"]]
    assert tokenize_text(make_tokenizer(), "a boat").has_loss.all()


def test_the_template_is_that_of_the_settings_or_one_of_the_tokenizer() -> None:
    own = ConversationTemplateConfig(chat_template=PLAIN_CHAT_TEMPLATE)
    for given in (make_tokenizer(None), make_tokenizer(TURNS)):
        assert answers(given, MESSAGES[:2], own) == ("what is this ? a boat <end>", "a boat <end>")
    assert answers(make_tokenizer(None, end=False), MESSAGES[:2], own)[1] == "a boat"
    fickle = TURNS_WITHOUT_MARKS.replace("<bot> {{", "<bot> {% if not loop.last %}red{% endif %} {{")
    fickle = fickle.replace("<end>", "").replace("<user>", "user :")
    with pytest.raises(SampleError, match=r"put \{% generation %\}"):  # it changes earlier turns, and has no marks
        answers(make_tokenizer(fickle))
    with pytest.raises(ConfigError, match=r"has no chat template.*PLAIN_CHAT_TEMPLATE"):
        answers(make_tokenizer(None))
    tokenizer = make_tokenizer(None)
    tokenizer.chat_template = {"default": TURNS, "plain": PLAIN_CHAT_TEMPLATE}
    assert chat_template_of(tokenizer, CONFIG) == TURNS
    plain = ConversationTemplateConfig(chat_template="plain")
    assert answers(tokenizer, MESSAGES[:2], plain)[0] == "what is this ? a boat <end>"
    with pytest.raises(ConfigError, match=r"'tools' is neither a template .* \(it has 'default', 'plain'\)"):
        chat_template_of(tokenizer, ConversationTemplateConfig(chat_template="tools"))
    tokenizer.chat_template = {"plain": PLAIN_CHAT_TEMPLATE}
    with pytest.raises(ConfigError, match="it has templates named 'plain'"):
        chat_template_of(tokenizer, CONFIG)


class BeginningWords(Words):
    """It begins every text with `<system>`."""

    def build_inputs_with_special_tokens(self, token_ids_0: Any, token_ids_1: Any = None) -> list[int]:
        return [VOCABULARY["<system>"], *token_ids_0]


def test_special_tokens_around_a_conversation_are_not_learnt() -> None:
    text = "what is this ? a boat"
    for add in (True, False):
        (marked,) = tokenize_spans(slow_tokenizer(BeginningWords), [(text, [(15, 21)])], add_special_tokens=add)
        assert marked.has_loss.tolist() == [False] * (4 + add) + [True] * 2
        assert marked.ids[-2:].tolist() == [VOCABULARY["a"], VOCABULARY["boat"]]


ASKED = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize(
    ("template", "error", "told"),
    [
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", SampleError, "RecursionError"),
        ("{{ ().__class__.__mro__[1].__subclasses__() }}", ConfigError, "sandbox forbids"),
        ("{{ raise_exception('roles must alternate') }}", SampleError, "refuses .*: roles must alternate"),
        ("{{ messages[0].content + 1 }}", SampleError, "refuses .*: TypeError"),
        ("{% for message in messages %}\n{% if %}", ConfigError, "error in its line 2"),
        ("{{ range(10 ** 9) | length }}", SampleError, "Range too big"),
    ],
)  # fmt: skip
def test_hostile_templates_are_our_errors(marks: bool, template: str, error: type[Exception], told: str) -> None:
    tokenizer = make_tokenizer()
    if marks:
        template += "{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}{% endfor %}"
    with pytest.raises(error, match=told):
        render_conversation(tokenizer, ASKED, template, "assistant")
    good = "{% for message in messages %}{{ message.content }}{% endfor %}"
    assert render_conversation(tokenizer, ASKED, good, "assistant")[0] == "ab"


def test_the_last_answer_is_cut_off_with_what_follows_it() -> None:
    marked = MarkedTokens.of([1, 2, 3, 4, 5, 6], [False, True, False, True, True, False])
    before, answer = last_answer(marked)
    assert (before.ids.tolist(), answer.ids.tolist()) == ([1, 2, 3], [4, 5])
    before, answer = last_answer(MarkedTokens.of([1, 2], [False, False]))
    assert (before.ids.tolist(), answer.ids.tolist()) == ([], [])


LONE = "a \ud83d boat"


@pytest.mark.parametrize(
    ("kind", "sample"),
    [
        ("text", TextSample(__key__="k", text=LONE)),
        ("pretraining", TextSample(__key__="k", text=LONE)),
        ("text", CaptioningSample(__key__="k", image=None, caption=LONE)),
        ("text", VQASample(__key__="k", image=None, context="what ?", answers=[LONE])),
        ("clip", CaptioningSample(__key__="k", image=Image.new("RGB", (8, 8)), caption=LONE)),
        ("whisper", TranscriptionSample(__key__="k", audio=torch.zeros(100), text=LONE)),
    ],
)
def test_half_of_a_surrogate_pair_is_named_with_its_key_by_every_encoder(kind: str, sample: Any) -> None:
    tokenizer = tiny_tokenizer("text" if kind == "pretraining" else kind)
    encoders: dict[str, Any] = {
        "text": lambda: text_encoder(tokenizer).preencode_sample,
        "pretraining": lambda: lambda sample: list(PretrainingTaskEncoder(tokenizer).preencode_sample(sample)),
        "clip": lambda: ContrastiveTaskEncoder(tokenizer, tiny_image_processor(kind)).encode_sample,
        "whisper": lambda: SpeechTaskEncoder(tokenizer, tiny_image_processor(kind)).encode_sample,
    }
    with pytest.raises(SampleError, match=r"'k': character 2 of a text is '\\ud83d'"):
        encoders[kind]()(sample)


def test_a_template_that_ends_no_answer_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = make_tokenizer()
    open_ended = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"  # as GLM's
    for template, stop, num_warned in (
        (open_ended, None, 1),
        (open_ended, "\n###", 0),
        (open_ended.replace("{% endfor", "{{ eos_token }}{% endfor"), None, 0),
        (chatml(image="<image>"), None, 0),
    ):
        _warn_unended.cache_clear()
        caplog.clear()
        settings = ConversationTemplateConfig(chat_template=template, stop_string=stop)
        encoder = FamilyTaskEncoder(tokenizer, config=FamilyConfig(conversation_template_config=settings))
        for key in "ab":
            encoder.preencode_sample(ConversationSample(__key__=key, __restore_key__=(), messages=[*MESSAGES]))
        told = [record.message for record in caplog.records if "does not learn to end one" in record.message]
        assert len(told) == num_warned, template
