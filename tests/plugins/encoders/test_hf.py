import copy
from typing import Any

import pytest
import torch

from bridge_data import ConfigError, SkipSample
from bridge_data.encoders import ConversationTemplateConfig, FamilyConfig, HFTaskEncoder, SamplePolicies
from tests.bridge import hf_processors
from tests.encoders.parts import CASES, draw_talk, make_tokenizer, of_transformers
from tests.encoders.qwen_parts import make_processor


def driven(name: str, **options: Any) -> tuple[Any, str, HFTaskEncoder]:
    template = str(CASES[name].make().chat_template)
    processor = CASES[name].processor(make_tokenizer())
    config = FamilyConfig(conversation_template_config=ConversationTemplateConfig(chat_template=template))
    return processor, template, HFTaskEncoder(processor, config, **options)


@pytest.mark.parametrize("name", ["llava_next", "idefics3", "internvl"])
def test_what_there_is_for_each_token_is_cut_packed_and_padded_with_them(name: str) -> None:
    options = {"return_mm_token_type_ids": True}
    processor, template, encoder = driven(name, processor_options=options)
    talks = [draw_talk(seed, count) for seed, count in ((1, 1), (2, 3), (3, 1))]
    samples = [encoder.encode_sample(talk.sample) for talk in talks]
    got = encoder.batch(samples).model_inputs()
    made, _ = of_transformers(processor, template, talks, **options)
    assert torch.equal(got["mm_token_type_ids"], made["mm_token_type_ids"])
    assert got["mm_token_type_ids"].any()
    pack = encoder.batch([encoder.pack_selected_samples(samples)])
    assert torch.equal(
        pack.aligned["mm_token_type_ids"][0], torch.cat([s.aligned["mm_token_type_ids"] for s in samples])
    )
    *_, short = driven(name, processor_options=options, seq_length=samples[1].length - 1)
    cut = short.encode_sample(talks[1].sample)
    assert torch.equal(cut.aligned["mm_token_type_ids"], samples[1].aligned["mm_token_type_ids"][: cut.length])


def test_a_processor_of_its_own_template_is_written_with_it() -> None:
    template = str(CASES["llava"].make().chat_template)
    processor = CASES["llava"].processor(make_tokenizer(template="{{ 'another one' }}"))
    processor.chat_template = template
    assert HFTaskEncoder(processor).chat_template == template


def silent(processor: Any) -> Any:
    """The processor as older versions of transformers have it: it does not say what it put in place of images."""
    kind = type(processor)

    def call(self: Any, **options: Any) -> dict[str, Any]:
        made = kind.__call__(self, **options)
        return {name: value for name, value in made.items() if name != "text_replacement_offsets"}

    made = copy.copy(processor)
    made.__class__ = type(kind.__name__, (kind,), {"__call__": call})
    return made


PROCESSORS = {"qwen2_5_vl": make_processor, "gemma3": hf_processors.make_processor}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("seq_length", [60, 2048])
def test_runs_of_image_tokens_are_found_without_the_help_of_the_processor(seq_length: int, name: str) -> None:
    processor = PROCESSORS[name](name)
    encoders = [HFTaskEncoder(each, seq_length=seq_length) for each in (processor, silent(processor))]
    num_cut = 0
    for seed in range(12):
        sample = draw_talk(seed).sample
        try:
            expected = encoders[0].encode_sample(sample)
        except SkipSample:
            num_cut += 1
            with pytest.raises(SkipSample):
                encoders[1].encode_sample(sample)
            continue
        got = encoders[1].encode_sample(sample)
        assert torch.equal(got.tokens, expected.tokens) and torch.equal(got.labels, expected.labels)
        assert got.media.keys() == expected.media.keys()
        assert all(torch.equal(value, expected.media[name]) for name, value in got.media.items())
        num_cut += expected.length == seq_length
    assert bool(num_cut) == (seq_length == 60)


class Mute:
    """A processor that does not say what it makes of an image."""

    image_token = "<image>"
    image_processor = object()
    chat_template = "{{ messages }}"

    def __init__(self) -> None:
        self.tokenizer = make_tokenizer()

    def __call__(self, **_: Any) -> dict[str, Any]:
        return {"input_ids": [[1, 2]]}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HFTaskEncoder(make_tokenizer()), "expected a processor of transformers with a fast tokenizer"),
        (lambda: HFTaskEncoder(CASES["llava"].processor(make_tokenizer())), "has no chat template"),
        (
            lambda: HFTaskEncoder(silent(CASES["idefics3"].processor(make_tokenizer(template="{{ messages }}")))),
            "it does not say what it makes of an image",
        ),
        (lambda: HFTaskEncoder(Mute()), r"Mute\): it does not say what it makes of an image"),
        (lambda: HFTaskEncoder(Mute(), FamilyConfig(policies=SamplePolicies(overlong="no"))), "overlong='no'"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
