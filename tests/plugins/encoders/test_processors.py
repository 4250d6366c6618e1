"""`HFTaskEncoder` with the processor of every family: batches are the processor's own, and answers alone are learnt; or
it is refused when the encoder is made."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bridge_data import ConfigError
from bridge_data.encoders import ConversationSample, FamilyConfig, HFTaskEncoder, QwenVLTaskEncoder
from tests.bridge import hf_processors
from tests.encoders.parts import Talk, assert_equal
from tests.encoders.processors import answers, make_processor, of_processor, processors, talk
from tests.encoders.qwen_parts import make_family, qwen_tokenizer
from tests.encoders.qwen_parts import make_processor as qwen_processor
from tests.later import hf
from tests.plugins.encoders.test_qwen_encoder import draw_videos

QUICK = (
    "Glm4vProcessor",
    "Glm46VProcessor",
    "Gemma4Processor",
    "Gemma3nProcessor",
    "Qwen3VLProcessor",
    "LlavaOnevisionProcessor",
    "HunYuanVLProcessor",
    "PaddleOCRVLProcessor",
    "Ovis2Processor",
    "Lfm3VlProcessor",
)

REFUSED = (
    "Blip2Processor",
    "BlipProcessor",
    "ChameleonProcessor",
    "Florence2Processor",
    "FuyuProcessor",
    "GitProcessor",
    "IdeficsProcessor",
    "InstructBlipProcessor",
    "MllamaProcessor",
    "PPChart2TableProcessor",
    "PaliGemmaProcessor",
    "Pix2StructProcessor",
    "ShieldGemma2Processor",
    "UdopProcessor",
)

IMAGES_ALONE = ("GotOcr2Processor",)
"""Those that take no text without an image, nor images by conversation."""

OTHERS = ("EvollaProcessor", "InstructBlipVideoProcessor", "Idefics2Processor")
"""Of proteins and videos; and one that does not say where images are."""

TALKS = [
    talk([(60, 40)], seed=1),
    talk([(64, 64), (90, 20)], [(31, 77)], seed=2),
    talk([], [], seed=3),
]


def check(name: str, talks: list[Talk]) -> None:
    processor = make_processor(name)
    encoder = HFTaskEncoder(processor, seq_length=100_000)
    samples = [encoder.encode_sample(one.sample) for one in talks]
    got = encoder.batch(samples).model_inputs()
    labels = got.pop("labels")
    assert_equal(got, of_processor(processor, talks))
    learnt = [processor.tokenizer.decode(row[row != -100].tolist()) for row in labels]
    assert learnt == [answers(one) for one in talks]


@pytest.mark.parametrize("name", QUICK)
def test_batches_are_those_of_the_processor(name: str) -> None:
    check(name, TALKS)


def test_labels_are_where_a_processor_that_writes_more_put_the_answers() -> None:
    processor = make_processor("Emu3Processor")  # it writes a beginning-of-sequence token before the template's text
    encoder = HFTaskEncoder(processor, seq_length=100_000)
    for one in TALKS[::2]:
        sample = encoder.encode_sample(one.sample)
        assert sample.tokens[0] == processor.tokenizer.bos_token_id
        assert processor.tokenizer.decode(sample.labels[sample.labels != -100]) == answers(one)


def test_what_was_found_out_travels_to_workers_with_the_encoder() -> None:
    encoder = HFTaskEncoder(hf_processors.make_processor("gemma3"), seq_length=4096)
    sent = pickle.loads(pickle.dumps(encoder))
    samples = [TALKS[0].sample, TALKS[2].sample]
    got, expected = (one.batch([one.encode_sample(sample) for sample in samples]) for one in (sent, encoder))
    assert_equal(got.model_inputs(), expected.model_inputs())


@pytest.mark.slow
def test_every_processor_is_driven_with_its_own_batches_or_refused() -> None:
    equal, refused, unbuilt = [], [], []
    for name in processors():
        if name in OTHERS:
            continue
        try:
            processor = make_processor(name)
        except ImportError:  # it needs torchvision
            processor = None
        if processor is None:
            unbuilt.append(name)
            continue
        try:
            HFTaskEncoder(processor)
        except ConfigError as error:
            assert name in str(error) and "task encoder" in str(error)
            refused.append(name)
            continue
        if name not in IMAGES_ALONE and name != "Emu3Processor":
            for talks in (TALKS, [TALKS[2]], [TALKS[0], talk([(200, 90)])]):
                check(name, talks)
        equal.append(name)
    assert refused == list(REFUSED)
    assert len(equal) > 35 and {*equal} >= {*QUICK}, (equal, unbuilt)


def test_a_pack_of_qwen_or_glm_has_the_positions_of_the_model() -> None:
    for name, config in (("Qwen3VLProcessor", hf.Qwen3VLConfig()), ("Glm4vProcessor", hf.Glm4vConfig())):
        processor = make_processor(name)
        encoder = HFTaskEncoder(processor, seq_length=100_000, model_config=config)
        samples = [encoder.encode_sample(one.sample) for one in TALKS]
        inputs = encoder.batch([encoder.pack_selected_samples(samples)]).model_inputs()
        positions, start = inputs["position_ids"], 0
        assert positions.shape == (4, 1, sum(sample.length for sample in samples))
        for one, sample in zip(TALKS, samples, strict=True):
            own = positions[:, 0, start : start + sample.length]
            assert torch.equal(own[0], torch.arange(sample.length))
            assert torch.equal(own[1:], positions_of(processor, config, one))
            start += sample.length
        assert not torch.equal(positions[0], positions[1])


def positions_of(processor: Any, config: Any, one: Talk) -> torch.Tensor:
    """The positions that the model itself computes of a conversation, without packing."""
    module = __import__(type(config).__module__.replace("configuration", "modeling"), fromlist=["*"])
    kind = next(
        kind for name, kind in vars(module).items() if name.endswith("Model") and hasattr(kind, "get_rope_index")
    )
    model = object.__new__(kind)
    model.__dict__["config"] = config
    made = of_processor(processor, [one])
    names = ("input_ids", "mm_token_type_ids", "image_grid_thw", "attention_mask")
    return kind.get_rope_index(model, **{name: made[name] for name in names if name in made})[0][:, 0]


def gemma4(attention: str | None) -> Any:
    config = hf.Gemma4Config()
    config.get_text_config().use_bidirectional_attention = attention
    return config


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("Qwen3VLProcessor", lambda: None, "pass model_config"),
        ("Gemma4Processor", lambda: None, "pass model_config"),
        ("Qwen3VLProcessor", lambda: hf.Qwen3_5Config(), "'linear_attention'"),
        ("Lfm3VlProcessor", lambda: hf.Lfm3VlConfig(), "'conv'"),
        ("Gemma4Processor", lambda: gemma4("vision"), "tokens of an image see each other"),
    ],
)
def test_packs_that_transformers_does_not_keep_apart_are_refused(
    name: str, config: Callable[[], Any], message: str
) -> None:
    encoder = HFTaskEncoder(make_processor(name), seq_length=100_000, model_config=config())
    samples = [encoder.encode_sample(one.sample) for one in TALKS[:2]]
    assert encoder.batch(samples).tokens.shape[0] == 2
    with pytest.raises(ConfigError, match=message):
        encoder.pack_selected_samples(samples)


def test_a_model_of_gemma4_whose_images_are_causal_is_packed() -> None:
    encoder = HFTaskEncoder(make_processor("Gemma4Processor"), seq_length=100_000, model_config=gemma4(None))
    samples = [encoder.encode_sample(one.sample) for one in TALKS]
    inputs = encoder.batch([encoder.pack_selected_samples(samples)]).model_inputs()
    assert inputs["pixel_values"].shape[0] == inputs["image_position_ids"].shape[0] == 4
    assert torch.equal(inputs["mm_token_type_ids"][0], torch.cat([one.aligned["mm_token_type_ids"] for one in samples]))


def test_a_text_without_turns_has_types_of_tokens_too() -> None:
    from bridge_data import TextSample

    encoder = HFTaskEncoder(make_processor("Glm4vProcessor"), model_config=hf.Glm4vConfig())
    plain = encoder.encode_sample(TextSample(__key__="plain", text="a boat on the sea"))
    pair = [plain, encoder.encode_sample(TALKS[0].sample)]
    types = encoder.batch(pair).model_inputs()["mm_token_type_ids"]
    assert not types[0].any() and types[1].any()


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_videos_are_those_of_the_own_encoder(name: str) -> None:
    ours = QwenVLTaskEncoder(qwen_tokenizer(name), make_family(name), seq_length=4096)
    driven = HFTaskEncoder(qwen_processor(name), seq_length=4096)
    for seed in range(4):
        _, sample = draw_videos(seed)
        expected = ours.batch([ours.postencode_sample(ours.preencode_sample(sample))])
        assert_equal(driven.batch([driven.encode_sample(sample)]).model_inputs(), expected.model_inputs())


def test_videos_without_torchvision_are_refused_with_the_reason() -> None:
    from bridge_data.encoders import VideoConversationSample

    encoder = HFTaskEncoder(make_processor("Glm4vProcessor"))
    said = [{"role": "user", "content": "<video> what"}, {"role": "assistant", "content": "a boat"}]
    frames = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    with pytest.raises(ConfigError, match="'clip' has videos, and HFTaskEncoder"):
        encoder.encode_sample(VideoConversationSample(__key__="clip", messages=said, videos=[frames]))


def test_images_are_refused_by_a_processor_without_an_image_processor() -> None:
    class Deaf:
        tokenizer = qwen_tokenizer("qwen3_vl")
        chat_template = tokenizer.chat_template

        def __call__(self, **_: Any) -> Any:
            raise AssertionError("it was called")

    with pytest.raises(ConfigError, match="no image_processor"):
        HFTaskEncoder(Deaf()).encode_sample(TALKS[0].sample)
    assert isinstance(TALKS[0].sample, ConversationSample) and FamilyConfig().placeholder == "<image>"
