from typing import Any

import pytest

from bridge_data import ConfigError, SampleError, SkipSample
from bridge_data.encoders import ConversationSample, MultiModalSampleConfig
from bridge_data.encoders.conversation import conversation_of
from bridge_data.encoders.policies import SamplePolicies
from tests.encoders.multimodal_parts import CONFIG, make_encoder

ASK, ANSWER, NOTHING = (
    {"role": "user", "content": "what is this ?"},
    {"role": "assistant", "content": "a boat"},
    {"role": "assistant", "content": " "},
)


def outcome(messages: list[dict[str, str]], **policies: Any) -> Any:
    config = MultiModalSampleConfig(policies=SamplePolicies(**policies))
    return conversation_of(ConversationSample(__key__="k", messages=messages), config).messages


@pytest.mark.parametrize(
    "messages", [[ASK, ANSWER], [{"role": "system", "content": "a"}, ASK, ANSWER], [ASK, ANSWER, ASK, ANSWER, ASK]]
)
def test_what_is_in_order_stays(messages: list[dict[str, str]]) -> None:
    assert outcome(messages) == messages


@pytest.mark.parametrize(
    "messages", [[ANSWER, ASK], [ASK, ANSWER, ANSWER], [{"role": "human", "content": "a"}, ANSWER]]
)
def test_roles_out_of_order(messages: list[dict[str, str]]) -> None:
    with pytest.raises(SampleError, match=r"its roles are .*; expected one 'system' at most, then 'user'"):
        outcome(messages)
    with pytest.raises(SkipSample):
        outcome(messages, roles_out_of_order="skip")
    assert outcome(messages, roles_out_of_order="keep") == messages


def test_empty_answers() -> None:
    messages = [ASK, ANSWER, ASK, NOTHING]
    with pytest.raises(SkipSample):
        outcome(messages)
    with pytest.raises(SampleError, match="answer 2 of 2 has no words"):
        outcome(messages, empty_answer="error")
    assert outcome(messages, empty_answer="keep") == messages
    with pytest.raises(SkipSample):
        outcome([ASK, NOTHING], empty_answer="keep")


def test_too_long_for_the_default_encoder() -> None:
    sample = ConversationSample(__key__="k", messages=[ASK, ANSWER])
    length = len(make_encoder().preencode_sample(sample).tokens)
    for policy, error in (("skip", SkipSample), ("error", SampleError)):
        config = MultiModalSampleConfig(patch_size=8, policies=SamplePolicies(overlong=policy))
        assert len(make_encoder(config=config, seq_length=length).preencode_sample(sample).tokens) == length
        with pytest.raises(error):
            make_encoder(config=config, seq_length=length - 1).preencode_sample(sample)
    assert len(make_encoder(config=CONFIG, seq_length=length - 1).preencode_sample(sample).tokens) == length - 1


@pytest.mark.parametrize("name", ["image_mismatch", "roles_out_of_order", "empty_answer", "overlong"])
def test_other_words_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"SamplePolicies\({name}='drop'\): expected one of"):
        SamplePolicies(**{name: "drop"})
