import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import (
    CaptioningSample,
    ConfigError,
    Packing,
    Sample,
    SampleError,
    SkipSample,
    TextSample,
    VQASample,
    WorkerConfig,
    edataclass,
    get_loader,
    get_train_dataset,
    stateless,
)
from bridge_data.encoders import (
    Conversation,
    ConversationSample,
    ConversationTemplateConfig,
    FamilyTaskEncoder,
    ImageTextBatch,
    ImageToken,
    MultiModalSampleConfig,
    MultiModalTaskEncoder,
)
from tests.encoders.multimodal_parts import (
    CONFIG,
    IMAGE,
    PAD,
    TOKENS_PER_IMAGE,
    make_encoder,
    make_tokenizer,
    png,
    words,
)
from tests.prepared import write_dataset

IMAGES = " ".join(["<image>"] * TOKENS_PER_IMAGE)
CAPTIONING = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "png", "caption": "txt"},
}


def caption(text: str = "a boat", key: str = "k") -> CaptioningSample:
    return CaptioningSample(__key__=key, image=png(), caption=text)


def talk(*turns: str, images: int = 0) -> ConversationSample:
    """Questions and answers by turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(turns)]
    return ConversationSample(__key__="k", messages=messages, images=[png(shade) for shade in range(images)])


def encode(encoder: MultiModalTaskEncoder, sample: Any) -> Any:
    return encoder.postencode_sample(encoder.preencode_sample(sample))


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


def test_only_answers_are_learnt_in_several_turns() -> None:
    encoded = encode(make_encoder(), talk("what is this ?", "a boat", "what is red ?", "the sea"))
    assert words(encoded.labels[encoded.loss_mask.bool()]) == "a boat <end> the sea <end>"
    learnt = encoded.loss_mask.nonzero().flatten()
    assert torch.equal(encoded.labels[learnt], encoded.tokens[learnt + 1])


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


def test_truncation_never_cuts_an_image_from_its_tokens() -> None:
    """Two turns with an image each: where the second image does not fit whole, it goes with its tokens."""
    sample = talk("<image> what is this ?", "a boat", "<image> what is this ?", "the sea", images=2)
    whole = encode(make_encoder(), sample)
    first_turn = words(whole.tokens).split().index("<user>", 1) + 1
    for length in range(first_turn, first_turn + TOKENS_PER_IMAGE):
        encoded = encode(make_encoder(seq_length=length), sample)
        assert len(encoded.tokens) == first_turn
        assert len(encoded.media["pixel_values"]) == 1
        assert (encoded.tokens == IMAGE).sum() == TOKENS_PER_IMAGE
        assert torch.equal(encoded.media["pixel_values"][0], whole.media["pixel_values"][0])
    encoder = make_encoder(seq_length=first_turn + TOKENS_PER_IMAGE)
    batch = encoder.batch([encode(encoder, sample)])
    assert (len(batch.images), batch.num_image_tiles.tolist()) == (2, [1, 1])


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


def test_a_micro_batch_is_one_row_with_pack_in_batch() -> None:
    apart, packed = make_encoder(), make_encoder(config=dataclasses.replace(CONFIG, pack_in_batch=True))
    samples = [encode(apart, caption(text, key)) for text, key in (("a boat", "x"), ("a", "y"))]
    batch = packed.batch(samples)
    assert batch.__key__ == ["x", "y"] and batch.tokens.shape[0] == 1
    assert torch.equal(batch.tokens[0], apart.pack_selected_samples(samples).tokens)
    assert batch.images.shape[0] == 2


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


def test_samples_are_filled_up_to_a_multiple_also_within_a_pack() -> None:
    config = dataclasses.replace(CONFIG, pad_to_multiple_of=8)
    plain, encoder = make_encoder(seq_length=64), make_encoder(config=config, seq_length=64)
    from bridge_data.datamodule.parallel import slice_for_context_parallel  # brings Lightning

    said = [
        caption(key="x"),
        TextSample(__key__="y", text="a boat"),
        talk("what is this", "a boat on the sea", images=1),
    ]
    samples = [encode(encoder, sample) for sample in said]
    pack = encoder.pack_selected_samples(samples)
    assert pack.cu_seqlens.diff().remainder(8).eq(0).all()
    for sample, before in zip(samples, [encode(plain, sample) for sample in said], strict=True):
        length = len(before.tokens)
        for name in ("tokens", "labels", "loss_mask"):
            assert torch.equal(getattr(sample, name)[:length], getattr(before, name))
        assert sample.labels[length:].eq(-100).all()
        assert sample.loss_mask[length:].sum() == 0
    parts = [
        slice_for_context_parallel(encoder.batch([pack]), rank, 4, cu_seqlens=pack.cu_seqlens).tokens.shape
        for rank in range(4)
    ]
    assert parts == [(1, len(pack.tokens) // 4)] * 4
    assert encoder.batch(samples).tokens.shape[1] % 8 == 0
    with pytest.raises(ConfigError, match="seq_length=60 is no multiple of pad_to_multiple_of=8"):
        make_encoder(config=config, seq_length=60)


def test_packs_hold_seq_length_tokens() -> None:
    encoder = make_encoder(seq_length=26)
    samples = [encoder.preencode_sample(caption(key=str(number))) for number in range(5)]
    packs = encoder.select_samples_to_pack(samples)
    assert [[sample.__key__ for sample in pack] for pack in packs] == [["0", "1"], ["2", "3"], ["4"]]


@pytest.mark.parametrize(("pad", "end", "expected"), [(True, True, 0), (False, True, 1), (False, False, 0)])
def test_padding_without_a_padding_token(pad: bool, end: bool, expected: int) -> None:
    encoder = make_encoder(make_tokenizer(pad=pad, end=end))
    text = [encode(encoder, TextSample(__key__="k", text=text)) for text in ("a boat on the sea", "a boat")]
    batch = encoder.batch(text)
    length = int(batch.lengths[1])
    assert set(batch.tokens[1, length:].tolist()) == {expected}
    assert batch.loss_mask[1, length:].sum() == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_encoder(seq_length=3), "an image takes 4 tokens, so none fits into seq_length=3"),
        (lambda: make_encoder(seq_length=0), "seq_length=0"),
        (lambda: make_encoder(decoder_seq_length=0), "decoder_seq_length=0"),
        *(
            (lambda config=config: make_encoder(config=config, decoder_seq_length=8), "leave out decoder_seq_length")
            for config in (
                dataclasses.replace(CONFIG, layout="bridge"),
                dataclasses.replace(CONFIG, pack_in_batch=True),
            )
        ),
        (lambda: make_encoder(config=MultiModalSampleConfig()), "set .*patch_size"),
        (lambda: make_encoder(object()), "expected a tokenizer of transformers"),
        (
            lambda: make_encoder(
                config=MultiModalSampleConfig(patch_size=8, image_token=ImageToken(token_str="<pic>"))
            ),
            "placeholder '<pic>' is not a token .* Add it",
        ),
    ],
)
def test_what_cannot_work_is_refused_when_the_encoder_is_made(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


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


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_real_shards_become_packed_batches(tmp_path: Path, num_workers: int) -> None:
    texts = ["a boat", "", "the red boat on the sea", "a sea . " * 40, "one two three"]
    samples = [
        {"__key__": f"{n:04d}", "png": png(n) if n != 7 else b"broken", "txt": texts[n % len(texts)]} for n in range(40)
    ]
    path = write_dataset(tmp_path / "captions", samples, definition=CAPTIONING)
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        batch_size=2,
        packing_buffer_size=10,
        shuffle_buffer_size=10,
        max_samples_per_sequence=10,
        task_encoder=make_encoder(seq_length=48),
        repeat=False,
    )
    with get_loader(dataset) as loader:
        assert loader.wait_for_workers() == bool(num_workers)
        batches = list(loader)
    keys = [key for batch in batches for row in batch.__key__ for key in row.split(",")]
    numbers = sorted(int(key.rpartition("/")[2]) for key in keys)
    assert numbers == [n for n in range(40) if n % 5 != 1 and n != 7]
    assert loader.skipped == {"preencode_sample": 8, "postencode_sample": 1}
    for batch in batches:
        assert batch.tokens.shape[1] <= 48
        assert (batch.tokens == IMAGE).sum() == TOKENS_PER_IMAGE * len(batch.images)
        assert len(batch.images) == sum(len(row.split(",")) for row in batch.__key__)


def test_the_default_encoder_is_a_family_whose_images_take_a_fixed_number_of_tokens() -> None:
    encoder = make_encoder()
    assert isinstance(encoder, FamilyTaskEncoder)
    assert encoder.family is not None
    assert encoder.family.image_text((1, 1), 0) == encoder.family.image_text((900, 20), 0) == [("<image>", 4)]


class Sorted(MultiModalTaskEncoder):
    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return super().select_samples_to_pack(sorted(samples, key=lambda sample: len(sample.tokens)))


class Alone(MultiModalTaskEncoder):
    select_samples_to_pack = Packing(length=len, capacity=4, overlong="alone")  # type: ignore[assignment]


def test_a_subclass_may_pack_in_its_own_way() -> None:
    encoder = Sorted(make_tokenizer(), seq_length=16)
    samples = [encode(encoder, TextSample(__key__="k", text=text)) for text in ("a red boat on the sea", "a", "a boat")]
    assert sum(map(len, encoder.select_samples_to_pack(samples))) == 3
    assert Alone(make_tokenizer(), seq_length=16, decoder_seq_length=8).select_samples_to_pack([[1], [2]]) == [
        [[1], [2]]
    ]
