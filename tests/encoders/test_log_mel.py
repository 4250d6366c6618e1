"""Spectrograms equal those of transformers' feature extractor."""

import math

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from bridge_data import ConfigError
from bridge_data.encoders import LogMel
from bridge_data.encoders.log_mel import mel_filters, resampled


@pytest.mark.parametrize("num_mels", [80, 128])
def test_the_filters_are_those_of_transformers(num_mels: int) -> None:
    extractor = WhisperFeatureExtractor(feature_size=num_mels)
    assert np.allclose(mel_filters(num_mels, 201, 16_000).numpy(), extractor.mel_filters.T, atol=1e-8)


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize("num_samples", [1, 159, 160, 15_999, 32_000, 40_000])
def test_features_and_mask_are_those_of_the_feature_extractor(num_mels: int, num_samples: int) -> None:
    extractor = WhisperFeatureExtractor(feature_size=num_mels, chunk_length=2)
    waveform = np.random.default_rng(num_samples).normal(0, 0.1, num_samples).astype(np.float32)
    made = extractor(waveform, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True)
    log_mel = LogMel.of(extractor)
    features = log_mel.features(torch.from_numpy(waveform))
    assert features.dtype == torch.float32
    assert torch.allclose(features, made["input_features"][0], atol=1e-5)
    assert torch.equal(log_mel.mask(num_samples), made["attention_mask"][0].to(torch.int32))


@pytest.mark.parametrize(("rate", "to"), [(44_100, 16_000), (8_000, 16_000), (48_000, 16_000), (22_050, 16_000)])
def test_a_tone_is_the_same_tone_at_another_rate(rate: int, to: int) -> None:
    hertz = 440.0
    made = resampled(torch.sin(2 * math.pi * hertz * torch.arange(rate) / rate), rate, to)
    expected = torch.sin(2 * math.pi * hertz * torch.arange(to) / to)
    assert len(made) == to
    assert (made - expected)[200:-200].abs().max() < 0.01


def test_what_the_new_rate_cannot_hold_is_gone() -> None:
    high = torch.sin(2 * math.pi * 12_000 * torch.arange(44_100) / 44_100)
    assert resampled(high, 44_100, 16_000)[200:-200].abs().max() < 0.02


def test_a_waveform_at_its_rate_is_left_alone() -> None:
    waveform = torch.rand(100)
    assert resampled(waveform, 16_000, 16_000) is waveform


def test_other_extractors_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected a WhisperFeatureExtractor"):
        LogMel.of(object())
    with pytest.raises(ConfigError, match=r"dither=0\.0"):
        LogMel.of(WhisperFeatureExtractor(dither=0.1))
    with pytest.raises(ConfigError, match="hop_length=0"):
        LogMel(hop_length=0)
