"""Log-mel spectrograms, as Whisper and Qwen2-Audio hear.

Enters: waveforms. Leaves: features, float32 (mels, frames), of a fixed number of frames. Guarantee: they are those of
transformers' `WhisperFeatureExtractor`.

Source: A. Radford et al., Robust speech recognition (2022); M. Slaney, Auditory toolbox (1998), for the mel scale; J.
Smith, Digital audio resampling (2002), for the resampler.
"""

import dataclasses
import functools
import math
from typing import Any

import torch
from torch import Tensor

from bridge_data.errors import ConfigError

_LINEAR_HZ, _LINEAR_MELS = 1000.0, 15.0
_HZ_A_MEL = _LINEAR_HZ / _LINEAR_MELS
_LOG_STEP = math.log(6.4) / 27
_HIGHEST_HZ = 8000.0
_FLOOR = 1e-10
_ZEROS, _ROLLOFF = 6, 0.99


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LogMel:
    """`num_mels` bands of a spectrum of `n_fft` samples, one every `hop_length`, of `num_samples` samples: a shorter
    waveform is filled up with silence, a longer one cut.

    Raises:
        ConfigError: if a number is out of range.
    """

    num_mels: int = 80
    sampling_rate: int = 16_000
    hop_length: int = 160
    n_fft: int = 400
    num_samples: int = 480_000

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise ConfigError(f"LogMel({field.name}={getattr(self, field.name)}): expected at least 1")

    @classmethod
    def of(cls, feature_extractor: Any) -> "LogMel":
        """The settings of a `WhisperFeatureExtractor`.

        Raises:
            ConfigError: if it is another one, or adds noise.
        """
        names = ("feature_size", "sampling_rate", "hop_length", "n_fft", "n_samples", "dither")
        missing = [name for name in names if not hasattr(feature_extractor, name)]
        if missing or feature_extractor.dither or feature_extractor.padding_value:
            raise ConfigError(
                f"{type(feature_extractor).__name__}: expected a WhisperFeatureExtractor, with dither=0.0 and "
                f"padding_value=0.0{f'; it has no {missing[0]}' if missing else ''}"
            )
        mels, rate, hop, n_fft, num_samples, _ = (getattr(feature_extractor, name) for name in names)
        return cls(num_mels=mels, sampling_rate=rate, hop_length=hop, n_fft=n_fft, num_samples=num_samples)

    @property
    def num_frames(self) -> int:
        """Frames of every spectrogram."""
        return self.num_samples // self.hop_length

    def features(self, waveform: Tensor) -> Tensor:
        """The spectrogram of a waveform, float32 (samples,) in -1..1, at `sampling_rate`."""
        padded = torch.zeros(self.num_samples)
        kept = waveform[: self.num_samples]
        padded[: len(kept)] = kept
        window = torch.hann_window(self.n_fft)
        spectrum = torch.stft(padded, self.n_fft, self.hop_length, window=window, return_complex=True)
        power = (spectrum[:, :-1].abs() ** 2).contiguous()
        mels = mel_filters(self.num_mels, 1 + self.n_fft // 2, self.sampling_rate) @ power
        logs = mels.clamp(min=_FLOOR).log10()
        return (torch.maximum(logs, logs.max() - 8) + 4) / 4

    def mask(self, num_samples: int) -> Tensor:
        """Which frames have sound of a waveform of `num_samples`, int32 (frames,)."""
        places = torch.arange(self.num_frames) * self.hop_length
        return (places < num_samples).to(torch.int32)


@functools.cache
def mel_filters(num_mels: int, num_bins: int, sampling_rate: int) -> Tensor:
    """Triangles over the bins of a spectrum, evenly spread over the mels to 8 kHz, each of area 1: float32 (mels,
    bins)."""
    bins = torch.linspace(0, sampling_rate // 2, num_bins, dtype=torch.float64)
    mels = torch.linspace(0, _to_mel(_HIGHEST_HZ), num_mels + 2, dtype=torch.float64)
    edges = torch.where(
        mels < _LINEAR_MELS, mels * _HZ_A_MEL, _LINEAR_HZ * torch.exp(_LOG_STEP * (mels - _LINEAR_MELS))
    )
    low, middle, high = (edges[first : num_mels + first, None] for first in range(3))
    rising, falling = (bins - low) / (middle - low), (high - bins) / (high - middle)
    return (torch.minimum(rising, falling).clamp(min=0) * 2 / (high - low)).float()


def _to_mel(hertz: float) -> float:
    return _LINEAR_MELS + math.log(hertz / _LINEAR_HZ) / _LOG_STEP


def resampled(waveform: Tensor, rate: int, to: int) -> Tensor:
    """A waveform (samples,) at another rate, by a windowed sinc: frequencies that the new rate cannot hold are gone."""
    if rate == to or not len(waveform):
        return waveform
    common = math.gcd(rate, to)
    old, new = rate // common, to // common
    kernels, width = _sinc_kernels(old, new)
    padded = torch.nn.functional.pad(waveform, (width, width + old))
    made = torch.nn.functional.conv1d(padded[None, None], kernels[:, None], stride=old)[0]
    return made.T.reshape(-1)[: math.ceil(len(waveform) * new / old)]


@functools.lru_cache(maxsize=16)
def _sinc_kernels(old: int, new: int) -> tuple[Tensor, int]:
    """One kernel for each of the `new` samples that `old` ones become, and how far they reach to both sides."""
    cutoff = min(old, new) * _ROLLOFF
    width = math.ceil(_ZEROS * old / cutoff)
    places = torch.arange(-width, width + old, dtype=torch.float64) / old
    shifts = torch.arange(new, dtype=torch.float64)[:, None] / new
    times = ((places - shifts) * cutoff).clamp(-_ZEROS, _ZEROS)
    window = torch.cos(times * math.pi / _ZEROS / 2) ** 2
    return (torch.sinc(times) * window * cutoff / old).float(), width
