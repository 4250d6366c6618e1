"""Speech equals what Whisper's processor makes of it."""

import copy
import dataclasses
import io
import math
import random
import re
import wave
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing

from bridge_data import ConfigError, SampleError, SkipSample, TextSample
from bridge_data.decode.av import AVDecoder
from bridge_data.encoders import SpeechConfig, SpeechTaskEncoder, TranscriptionSample, cook_transcription
from bridge_data.plugins.encoders.speech import mono, resampled
from bridge_data.samples import CrudeSample
from tests.encoders.parts import TEXT, learn, make_tokenizer, unchecked
from tests.later import hf

SECONDS = 1


def extractor() -> Any:
    return hf.WhisperFeatureExtractor(chunk_length=SECONDS)


def speech_tokenizer() -> Any:
    """One that writes a start token before the words and an end token behind them, as Whisper's does."""
    tokenizer = copy.deepcopy(make_tokenizer(begin=True))
    ids = [("<s>", tokenizer.bos_token_id), ("<|im_end|>", tokenizer.eos_token_id)]
    post = TemplateProcessing(single="<s> $A <|im_end|>", special_tokens=ids)
    tokenizer.backend_tokenizer.post_processor = post
    return tokenizer


def wav(samples: Any, rate: int = 16_000) -> bytes:
    """Samples (n,) or (n, channels) of int16 as a file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(samples.tobytes())
    return file.getvalue()


def draw_speech(seed: int) -> tuple[Any, str]:
    draw = random.Random(seed)
    count = draw.randint(1, 16_000 * SECONDS)
    noise = np.random.default_rng(seed).normal(0, 3000, count).astype(np.int16)
    return noise, " ".join(draw.choice(TEXT.split()) for _ in range(draw.randint(1, 12)))


def test_fifty_recordings_are_as_the_processor_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = speech_tokenizer()
    processor = unchecked(hf.WhisperProcessor)(extractor(), tokenizer)
    drawn = [draw_speech(seed) for seed in range(50)]
    expected = [
        (
            processor.feature_extractor(
                noise.astype(np.float32) / 32768, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True
            ),
            processor(text=text)["input_ids"],
        )
        for noise, text in drawn
    ]
    monkeypatch.setattr(hf.WhisperProcessor, "__call__", None)
    encoder = SpeechTaskEncoder(tokenizer, extractor())
    samples = [
        encoder.encode_sample(TranscriptionSample(__key__=str(number), audio=wav(noise), text=text))
        for number, (noise, text) in enumerate(drawn)
    ]
    for start in range(0, 50, 5):
        batch = encoder.batch(samples[start : start + 5]).model_inputs()
        for row, (made, ids) in enumerate(expected[start : start + 5]):
            assert torch.equal(batch["input_features"][row], made["input_features"][0])
            assert torch.equal(batch["attention_mask"][row], made["attention_mask"][0].to(torch.int32))
            assert batch["labels"][row, : len(ids)].tolist() == ids
            assert (batch["labels"][row, len(ids) :] == -100).all()


def test_a_tiny_model_learns() -> None:
    tokenizer = speech_tokenizer()
    encoder = SpeechTaskEncoder(tokenizer, extractor(), start_token_id=tokenizer.bos_token_id)
    drawn = [draw_speech(seed) for seed in range(4)]
    samples = [TranscriptionSample(__key__="s", audio=wav(noise), text=text) for noise, text in drawn]
    batch = encoder.batch([encoder.encode_sample(sample) for sample in samples])
    assert (batch.labels[:, 0] != tokenizer.bos_token_id).all()
    sizes = {f"{part}_{name}": value for part in ("encoder", "decoder")
             for name, value in {"layers": 1, "attention_heads": 2, "ffn_dim": 32}.items()}  # fmt: skip
    tokens = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = hf.WhisperConfig(
        vocab_size=len(tokenizer), d_model=32, max_source_positions=50 * SECONDS, max_target_positions=128,
        decoder_start_token_id=tokenizer.bos_token_id, **sizes, **tokens,
    )  # fmt: skip
    torch.manual_seed(0)
    model = hf.WhisperForConditionalGeneration(config)
    losses = learn(model, [batch])
    assert losses[-1] < 0.7 * losses[0], losses


def test_recordings_of_any_form_become_mono_at_the_rate_of_the_model() -> None:
    encoder = SpeechTaskEncoder(speech_tokenizer(), extractor())
    stereo = np.random.default_rng(0).normal(0, 3000, (22_050, 2)).astype(np.int16)
    waveform = torch.from_numpy(stereo.astype(np.float32).mean(1)) / 32768
    heard = resampled(waveform, 44_100, 16_000).numpy()
    expected = extractor()(heard, sampling_rate=16_000, return_tensors="pt")["input_features"][0]
    given = [
        TranscriptionSample(__key__="s", audio=wav(stereo, 44_100), text="a"),
        TranscriptionSample(__key__="s", audio=AVDecoder(wav(stereo, 44_100)), text="a"),
        TranscriptionSample(__key__="s", audio=waveform, text="a", sampling_rate=44_100),
    ]
    for sample in given:
        made = encoder.encode_sample(sample)
        assert torch.allclose(made.input_features, expected, atol=1e-5)
        assert made.attention_mask.sum() == 50


def test_wrong_samples_are_refused_as_declared() -> None:
    tokenizer = speech_tokenizer()
    encoder = SpeechTaskEncoder(tokenizer, extractor(), SpeechConfig(max_target_length=8))
    strict = SpeechTaskEncoder(
        tokenizer, extractor(), SpeechConfig(max_target_length=8, overlong="error", empty_text="error")
    )
    cut = SpeechTaskEncoder(tokenizer, extractor(), SpeechConfig(max_target_length=8, overlong="truncate"))
    short, long = torch.zeros(100), torch.zeros(16_001 * SECONDS)
    for audio, text, message in (
        (short, " ", "its text has no words"),
        (short, "one two three and where of sails", "tokens, a target holds 8"),
        (long, "a", "its recording has 16001 samples, the model hears 16000"),
    ):
        sample = TranscriptionSample(__key__="s", audio=audio, text=text)
        with pytest.raises(SkipSample):
            encoder.encode_sample(sample)
        with pytest.raises(SampleError, match=f"'s': .*{message}"):
            strict.encode_sample(sample)
        if text.strip():
            assert len(cut.encode_sample(sample).labels) <= 8
    with pytest.raises(SampleError, match=r"shape \(2, 100\)"):
        encoder.encode_sample(TranscriptionSample(__key__="s", audio=torch.zeros(2, 100), text="a"))
    with pytest.raises(ConfigError, match="takes TranscriptionSample, got TextSample"):
        encoder.encode_sample(TextSample(__key__="t", text="a"))


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize("num_samples", [1, 160, 15_999, 40_000])
def test_features_and_mask_are_those_of_the_feature_extractor(num_mels: int, num_samples: int) -> None:
    extractor = hf.WhisperFeatureExtractor(feature_size=num_mels, chunk_length=2)
    waveform = np.random.default_rng(num_samples).normal(0, 0.1, num_samples).astype(np.float32)
    made = extractor(waveform, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True)
    encoder = SpeechTaskEncoder(speech_tokenizer(), extractor, SpeechConfig(overlong="truncate"))
    sample = encoder.encode_sample(TranscriptionSample(__key__="s", audio=torch.from_numpy(waveform), text="a"))
    assert sample.input_features.dtype == torch.float32
    assert torch.equal(sample.input_features, made["input_features"][0])
    assert sample.attention_mask.dtype == torch.int32
    assert sample.attention_mask.untyped_storage().nbytes() == 4 * len(sample.attention_mask)
    assert torch.equal(sample.attention_mask, made["attention_mask"][0].to(torch.int32))


@pytest.mark.parametrize("rate", [44_100, 8_000, 48_000, 22_050, 16_000])
def test_a_tone_is_the_same_tone_at_the_rate_of_the_model(rate: int) -> None:
    tone = torch.sin(2 * math.pi * 440.0 * torch.arange(rate) / rate)
    made = resampled(tone, rate, 16_000)
    expected = torch.sin(2 * math.pi * 440.0 * torch.arange(16_000) / 16_000)
    assert len(made) == 16_000
    assert (made - expected)[200:-200].abs().max() < 0.01
    high = torch.sin(2 * math.pi * 12_000 * torch.arange(44_100) / 44_100)
    assert resampled(high, 44_100, 16_000)[200:-200].abs().max() < 0.02, "what the new rate cannot hold is gone"


def test_samples_of_every_type_are_between_minus_one_and_one() -> None:
    assert mono(torch.tensor([[0, 128, 255]], dtype=torch.uint8)).tolist() == [-1.0, 0.0, 127 / 128]
    assert mono(torch.tensor([[-(2**31), 0], [0, 2**30]], dtype=torch.int32)).tolist() == [-0.5, 0.25]
    assert mono(torch.tensor([[0.5], [-1.0]])).tolist() == [-0.25]


@pytest.mark.parametrize(
    "parts",
    [
        {"audio.wav": b"RIFF", "id": 3, "transcription": "a boat", "raw_transcription": "A boat."},  # FLEURS
        {"mp3": b"RIFF", "json": {"client_id": "x", "sentence": "a boat", "up_votes": "2"}},  # Common Voice, converted
        {"audio.wav": b"RIFF", "text": "a boat", "speaker_id": 3},  # LibriSpeech of the hub
        {"wav": b"RIFF", "txt": "a boat", "json": {"text": "a ship"}},
    ],
)
def test_words_are_where_published_recordings_have_them(parts: dict[str, Any]) -> None:
    sample = cook_transcription(CrudeSample({"__key__": "a/1", **parts}))
    assert (sample.audio, sample.text) == (b"RIFF", "a boat")


def test_two_texts_of_a_recording_are_refused() -> None:
    with pytest.raises(SampleError, match=r"'a/1' has wav \(bytes\), text \(str\), sentence \(str\); expected"):
        cook_transcription(CrudeSample({"__key__": "a/1", "wav": b"RIFF", "text": "a boat", "sentence": "A boat."}))


def test_crude_recordings_are_cooked_and_other_extractors_refused() -> None:
    sample = cook_transcription(CrudeSample({"__key__": "a/1", "wav": b"RIFF", "txt": "a boat"}))
    assert (sample.__key__, sample.audio, sample.text) == ("a/1", b"RIFF", "a boat")
    with pytest.raises(SampleError, match=r"'a/1' has txt \(str\); expected a recording, and its words in txt"):
        cook_transcription(CrudeSample({"__key__": "a/1", "txt": "a boat"}))
    with pytest.raises(ConfigError, match=r"object.* WhisperFeatureExtractor"):
        SpeechTaskEncoder(speech_tokenizer(), object())
    with pytest.raises(ConfigError, match=r"WhisperFeatureExtractor.*dither=0\.0"):
        SpeechTaskEncoder(speech_tokenizer(), hf.WhisperFeatureExtractor(dither=0.1))


@pytest.mark.parametrize(
    ("times", "part"),
    [
        ({}, (0, 16_000)),
        ({"duration": 0.25}, (0, 16_000)),  # of the recording: nothing says where the words are
        ({"offset": 0.5, "duration": 0.25}, (8_000, 12_000)),
        ({"offset": 0.5, "duration": None}, (8_000, 16_000)),
        ({"offset": "0", "duration": "0.25"}, (0, 4_000)),
        ({"start": 0.25, "end": 0.75}, (4_000, 12_000)),
        ({"offset": math.nan, "duration": 0.25}, (0, 16_000)),  # as tables have no number
        ({"start": [0.0, 0.5], "end": [0.5, 1.0]}, (0, 16_000)),  # those of the words
        ({"start_time": 0.25, "end_time": 1.04}, (4_000, 16_000)),
    ],
)
def test_words_of_a_part_of_a_recording_come_with_that_part(times: dict[str, Any], part: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).normal(0, 3000, 16_000).astype(np.int16)
    encoder = SpeechTaskEncoder(speech_tokenizer(), extractor())
    rows = {"__key__": "a", "wav": wav(noise), "json": {"text": "hello", **times}}
    made = encoder.encode_sample(cook_transcription(CrudeSample(rows)))
    alone = TranscriptionSample(__key__="b", audio=wav(noise[slice(*part)]), text="hello")
    assert torch.equal(made.input_features, encoder.encode_sample(alone).input_features)
    tensor = torch.from_numpy(noise.astype(np.float32) / 32768)
    decoded = dataclasses.replace(cook_transcription(CrudeSample(rows)), audio=tensor)
    assert torch.equal(made.input_features, encoder.encode_sample(decoded).input_features)


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ({"offset": 0, "duration": 250}, "its words are from 0 to 250 s of a recording that ends at 1 s"),  # ms
        ({"start": 2.0, "end": 3.0}, "holds no sample of the audio"),
        ({"start": -0.5, "end": 0.5}, "start=-0.5, end=0.5: no part of a recording is there"),
        ({"offset": 0.5, "duration": -1}, "offset=0.5, duration=-1: no part of a recording is there"),
        ({"start": "00:00:01", "end": "00:00:02"}, "start='00:00:01', end='00:00:02': expected seconds"),
    ],
)
def test_a_part_that_a_recording_does_not_have_is_a_failure(times: dict[str, Any], told: str) -> None:
    noise = np.random.default_rng(0).normal(0, 3000, 16_000).astype(np.int16)
    rows = {"__key__": "a", "wav": wav(noise), "json": {"text": "hello", **times}}
    with pytest.raises(SampleError, match=re.escape(told)):
        SpeechTaskEncoder(speech_tokenizer(), extractor()).encode_sample(cook_transcription(CrudeSample(rows)))
