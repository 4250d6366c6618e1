import dataclasses
from typing import Any

import pytest
import torch

from bridge_data import (
    CaptioningSample,
    ConfigError,
    Sample,
    SampleError,
    SkipSample,
    TextSample,
    VQASample,
    edataclass,
)
from bridge_data.encoders import (
    Conversation,
    ConversationSample,
    ConversationTemplateConfig,
    ImageTextBatch,
    ImageToken,
    MultiModalSampleConfig,
    MultiModalTaskEncoder,
)
from tests.encoders.multimodal_parts import (
    CONFIG,
    PAD,
    TOKENS_PER_IMAGE,
    make_encoder,
    make_tokenizer,
    png,
    words,
)
from tests.encoders.parts import encode

IMAGES = " ".join(["<image>"] * TOKENS_PER_IMAGE)


def caption(text: str = "a boat", key: str = "k") -> CaptioningSample:
    return CaptioningSample(__key__=key, image=png(), caption=text)


def talk(*turns: str, images: int = 0) -> ConversationSample:
    """Questions and answers by turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(turns)]
    return ConversationSample(__key__="k", messages=messages, images=[png(shade) for shade in range(images)])


def test_tokens_labels_and_loss_mask_of_a_caption() -> None:
    encoded = encode(make_encoder(), caption())
    assert words(encoded.tokens) == f"<user> {IMAGES} Describe the image . <bot> a boat <end>"
    assert words(encoded.labels) == "- - - - - - - - - a boat <end> -"
    assert encoded.loss_mask.tolist() == (encoded.labels != -100).float().tolist()
    assert encoded.position_ids.tolist() == list(range(len(encoded.tokens)))
    assert encoded.cu_seqlens.tolist() == [0, 13]
    assert encoded.media["pixel_values"].shape == (1, 3, 16, 16)
    dtypes = {name: getattr(encoded, name).dtype for name in ("tokens", "labels", "loss_mask", "cu_seqlens")}
    dtypes["images"] = encoded.media["pixel_values"].dtype
    assert list(dtypes.values()) == [torch.int64, torch.int64, torch.float32, torch.int32, torch.float32]


def test_questions_and_plain_text_are_taken_too() -> None:
    question = VQASample(__key__="k", image=png(), context="what is red ?", answers=["the boat"])
    assert words(encode(make_encoder(), question).tokens) == f"<user> {IMAGES} what is red ? <bot> the boat <end>"
    text = encode(make_encoder(), TextSample(__key__="k", text="a red boat"))
    assert words(text.tokens) == "a red boat <end>"
    assert words(text.labels) == "red boat <end> -"
    assert text.media == {}
    batch = make_encoder().batch([text])
    assert batch.images.shape == (0, 3, 16, 16) and batch.num_image_tiles.shape == (0,)


def test_settings_of_the_sample_config_are_seen_in_the_sequence() -> None:
    template = ConversationTemplateConfig(system="a sea", stop_string=" .")
    config = MultiModalSampleConfig(
        image_token=ImageToken(token_id=-200),
        ignore_place_holder=-1,
        caption_prompt="what is this ?",
        tokens_per_image=2,
        conversation_template_config=template,
    )
    encoded = encode(make_encoder(config=config), caption())
    kept = encoded.tokens[encoded.tokens != -200]
    assert words(kept) == "<system> a sea <user> what is this ? <bot> a boat . <end>"
    assert (encoded.tokens == -200).sum() == 2
    assert set(encoded.labels[encoded.loss_mask == 0].tolist()) == {-1}


@pytest.mark.parametrize("length", range(13, 5, -1))
def test_truncation_cuts_the_end_and_leaves_out_what_has_nothing_to_learn(length: int) -> None:
    """The caption's sequence is 13 tokens long; its answer begins with the eleventh."""
    encoder = make_encoder(seq_length=length)
    if length >= 11:
        encoded = encode(encoder, caption())
        assert len(encoded.tokens) == length
        assert encoded.loss_mask.sum() == length - 10
        assert len(encoded.media["pixel_values"]) == 1
    else:
        with pytest.raises(SkipSample):
            encode(encoder, caption())


def test_images_are_decoded_after_packs_are_chosen() -> None:
    encoder = make_encoder()
    waiting = encoder.preencode_sample(caption())
    assert waiting.images == [png()]
    broken = CaptioningSample(__key__="k", image=b"no image", caption="a boat")
    waiting = encoder.preencode_sample(broken)
    with pytest.raises(SampleError, match="cannot be decoded"):
        encoder.postencode_sample(waiting)


def test_an_encoder_and_a_decoder_get_prompt_and_answer_apart() -> None:
    encoder = make_encoder(decoder_seq_length=2)
    encoded = encode(
        encoder, talk("<image> what is this ?", "a boat", "what is red ?", "the boat on the sea", images=1)
    )
    assert words(encoded.tokens) == f"<user> {IMAGES} what is this ? <bot> a boat <end> <user> what is red ? <bot>"
    assert words(encoded.labels) == "the boat"
    assert encoded.loss_mask.tolist() == [1, 1]
    longer = encode(make_encoder(decoder_seq_length=9), caption())
    assert words(longer.labels) == "a boat <end>"
    batch = encoder.batch([encoded, encode(encoder, caption("a"))])
    assert batch.tokens.shape == (2, len(encoded.tokens))
    assert batch.labels.shape == batch.loss_mask.shape == (2, 2)
    with pytest.raises(ConfigError, match="has no prompt"):
        encode(encoder, TextSample(__key__="k", text="a boat"))
    with pytest.raises(ConfigError, match="leave out decoder_seq_length"):
        encoder.select_samples_to_pack([])


def test_a_batch_is_padded_to_its_longest_sequence_or_to_seq_length() -> None:
    for config, length in ((CONFIG, 13), (MultiModalSampleConfig(patch_size=8, pad_to_max_length=True), 20)):
        encoder = make_encoder(config=config, seq_length=20)
        samples = [encode(encoder, caption()), encode(encoder, TextSample(__key__="t", text="a boat"))]
        batch = encoder.batch(samples)
        assert isinstance(batch, ImageTextBatch)
        assert batch.tokens.shape == batch.labels.shape == batch.loss_mask.shape == (2, length)
        assert batch.lengths.tolist() == batch.max_seqlen.tolist() == [13, 3]
        assert batch.tokens[1, 3:].eq(PAD).all()
        assert batch.labels[1, 3:].eq(-100).all()
        assert batch.loss_mask[1, 3:].eq(0).all()
        assert batch.images.shape == (1, 3, 16, 16)
        assert batch.__key__ == ["k", "t"]


def test_a_pack_is_one_sequence_whose_samples_can_be_told_apart() -> None:
    encoder = make_encoder()
    samples = [encode(encoder, s) for s in (caption(key="x"), TextSample(__key__="y", text="a"), caption("the", "z"))]
    pack = encoder.pack_selected_samples(samples)
    lengths = [len(sample.tokens) for sample in samples]
    assert pack.cu_seqlens.tolist() == [0, lengths[0], lengths[0] + lengths[1], sum(lengths)]
    assert (pack.cu_seqlens.dtype, pack.max_seqlen.item()) == (torch.int32, max(lengths))
    for start, end, sample in zip(pack.cu_seqlens, pack.cu_seqlens[1:], samples, strict=False):
        for name in ("tokens", "labels", "loss_mask", "position_ids"):
            assert torch.equal(getattr(pack, name)[start:end], getattr(sample, name))
    assert pack.position_ids[pack.cu_seqlens[:-1].long()].tolist() == [0, 0, 0]
    assert pack.labels[pack.cu_seqlens[1:].long() - 1].eq(-100).all(), "no sample may learn the next one's first token"
    assert pack.media["pixel_values"].shape[0] == 2
    assert pack.__key__ == "x,y,z"
    batch = encoder.batch([pack, samples[1]])
    assert batch.cu_seqlens.tolist() == [pack.cu_seqlens.tolist(), [0, 2, 2, 2]]


def test_bridge_s_layout_is_a_dict_with_the_same_labels() -> None:
    config = dataclasses.replace(CONFIG, pad_to_multiple_of=8)
    native = make_encoder(config=dataclasses.replace(config, pad_to_multiple_of=1))
    bridge = make_encoder(config=dataclasses.replace(config, layout="bridge"))
    given = [caption("a boat", "x"), caption("a", "y")]
    expected = native.batch([encode(native, sample) for sample in given])
    got = bridge.batch([encode(bridge, sample) for sample in given])
    assert isinstance(got, dict)
    learnt = expected.loss_mask > 0
    length = learnt.shape[1]
    assert got["input_ids"].shape[1] % 8 == 0 and torch.equal(got["input_ids"][:, :length], expected.tokens)
    assert torch.equal(got["labels"][:, :length][learnt], expected.labels[learnt])
    pixels = got["visual_inputs"].pixel_values
    assert pixels.dtype == torch.bfloat16 and torch.equal(pixels, expected.images.to(torch.bfloat16))
    text = bridge.batch([encode(bridge, TextSample(__key__="k", text="a boat on the sea"))])
    assert text["visual_inputs"] is None


def test_packs_for_bridge_count_the_padding_of_their_samples() -> None:
    encoder = make_encoder(config=dataclasses.replace(CONFIG, layout="bridge", pad_to_multiple_of=16), seq_length=32)
    samples = [encoder.preencode_sample(talk("a", "b")) for _ in range(5)]
    assert all(len(sample.tokens) < 8 for sample in samples)
    assert [len(pack) for pack in encoder.select_samples_to_pack(samples)] == [2, 2, 1]


def test_images_without_an_image_processor_are_refused() -> None:
    encoder = MultiModalTaskEncoder(make_tokenizer())
    assert words(encode(encoder, talk("what is this ?", "a boat")).labels[-4:]) == "a boat <end> -"
    with pytest.raises(ConfigError, match="has no image_processor"):
        encode(encoder, caption())


@edataclass
class Sketch(Sample):
    about: str


class SketchEncoder(MultiModalTaskEncoder):
    def conversation(self, sample: Any) -> Conversation:
        return Conversation(text=sample.about)


def test_classes_of_ones_own_need_but_one_method() -> None:
    encoded = encode(SketchEncoder(make_tokenizer()), Sketch(__key__="k", about="a boat"))
    assert words(encoded.tokens) == "a boat <end>"
