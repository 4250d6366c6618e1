"""Speech recognition as Whisper learns it: a spectrogram, and the words as the targets of a decoder.

Enters: recordings with their words. Leaves: `SpeechBatch`. Guarantee: features and labels are those that Whisper's
processor makes; recordings of any rate and number of channels become mono at the rate of the model.
"""

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridge_data.decode.av import AV_EXTENSIONS, AVDecoder
from bridge_data.encoders.log_mel import LogMel, resampled
from bridge_data.encoders.policies import OverlongPolicy, Policy, check_policy, refuse
from bridge_data.encoders.sequences import padded
from bridge_data.errors import ConfigError, SampleError
from bridge_data.samples import Batch, CrudeSample, Sample, edataclass
from bridge_data.task import Cooker, DefaultTaskEncoder, basic_sample_keys, stateless


@edataclass
class TranscriptionSample(Sample):
    """A recording and its words. `audio` is an `AVDecoder`, encoded bytes, or a waveform as float32 (samples,) at
    `sampling_rate`."""

    audio: Any
    text: str
    sampling_rate: int = 16_000


@stateless
def cook_transcription(sample: CrudeSample) -> TranscriptionSample:
    """A recording of crude data, in the one part that is a medium, and its words, in `txt`.

    Raises:
        SampleError: if there is no such part, or several.
    """
    media = [name for name in sample if name.rpartition(".")[2] in AV_EXTENSIONS]
    if len(media) != 1 or "txt" not in sample:
        parts = ", ".join(name for name in sample if not name.startswith("__"))
        raise SampleError(f"sample {sample['__key__']!r} has parts {parts}; expected a recording and txt")
    return TranscriptionSample(**basic_sample_keys(sample), audio=sample[media[0]], text=sample["txt"])


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SpeechConfig:
    """`max_target_length` is the most tokens of a transcript (448 for Whisper). `overlong` says what happens to longer
    ones, and to recordings longer than the model hears: left out by default, since words and sounds no longer fit when
    cut. `empty_text` is for transcripts without words.

    Raises:
        ConfigError: for a setting that is unknown or out of range.
    """

    max_target_length: int = 448
    overlong: OverlongPolicy = "skip"
    empty_text: Policy = "skip"
    ignore_place_holder: int = -100

    def __post_init__(self) -> None:
        if self.max_target_length < 1:
            raise ConfigError(f"SpeechConfig(max_target_length={self.max_target_length}): expected at least 1")
        check_policy("SpeechConfig(overlong", self.overlong, ("truncate", "skip", "error"))
        check_policy("SpeechConfig(empty_text", self.empty_text, ("skip", "error"))


@edataclass
class SpeechSample(Sample):
    """`input_features` float32 (mels, frames); `attention_mask` int32 (frames,), 1 where there is sound; `labels` int64
    (tokens,), not shifted."""

    input_features: Tensor
    attention_mask: Tensor
    labels: Tensor


@edataclass
class SpeechBatch(Batch):
    """The fields of `SpeechSample` with B in front; `labels` are padded with the ignored value."""

    input_features: Tensor
    attention_mask: Tensor
    labels: Tensor

    def model_inputs(self) -> dict[str, Tensor]:
        """Keyword arguments of the `forward` of a model of transformers."""
        return {name: getattr(self, name) for name in ("input_features", "attention_mask", "labels")}


class SpeechTaskEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Recordings to the batches of Whisper. `feature_extractor` is Whisper's (it is read, not called), or a `LogMel`.

    The tokenizer says which tokens stand before the words (`set_prefix_tokens`). The token that a decoder starts with,
    which models put before the labels themselves, is left out where `start_token_id` says it.
    """

    cookers = (Cooker(cook_transcription),)

    def __init__(
        self,
        tokenizer: Any,
        feature_extractor: Any,
        config: SpeechConfig | None = None,
        *,
        start_token_id: int | None = None,
    ) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.log_mel = feature_extractor if isinstance(feature_extractor, LogMel) else LogMel.of(feature_extractor)
        self.config = config or SpeechConfig()
        self.start_token_id = start_token_id

    @stateless
    def encode_sample(self, sample: Sample) -> SpeechSample:
        """The spectrogram, and the tokens of the words."""
        if not isinstance(sample, TranscriptionSample):
            raise ConfigError(
                f"{type(self).__name__} takes TranscriptionSample, got {type(sample).__name__}; add a cooker that "
                "makes one"
            )
        key, config = sample.__key__, self.config
        if not sample.text.strip():
            refuse(config.empty_text, key, "its text has no words")
        ids = list(self.tokenizer(sample.text).input_ids)
        if ids[:1] == [self.start_token_id]:
            ids = ids[1:]
        if len(ids) > config.max_target_length and config.overlong != "truncate":
            refuse(config.overlong, key, f"its text has {len(ids)} tokens, a target holds {config.max_target_length}")
        waveform = self._waveform(sample)
        most = self.log_mel.num_samples
        if len(waveform) > most and config.overlong != "truncate":
            refuse(config.overlong, key, f"its recording has {len(waveform)} samples, the model hears {most}")
        return SpeechSample.derive_from(
            sample,
            input_features=self.log_mel.features(waveform),
            attention_mask=self.log_mel.mask(len(waveform)),
            labels=torch.tensor(ids[: config.max_target_length]),
        )

    @stateless
    def batch(self, samples: list[SpeechSample]) -> SpeechBatch:
        """The recordings of a batch."""
        labels = padded([sample.labels for sample in samples], self.config.ignore_place_holder)
        return SpeechBatch.from_samples(samples, labels=labels)

    def _waveform(self, sample: TranscriptionSample) -> Tensor:
        audio, rate = sample.audio, sample.sampling_rate
        if isinstance(audio, bytes):
            audio = AVDecoder(audio)
        if isinstance(audio, AVDecoder):
            with audio:
                rate = audio.get_audio_samples_per_second()
                (clip,) = audio.get_audio().audio_clips or []
            audio = mono(clip)
        waveform = torch.as_tensor(audio, dtype=torch.float32)
        if waveform.ndim != 1 or not len(waveform):
            raise SampleError(
                f"sample {sample.__key__!r}: a waveform has shape {tuple(waveform.shape)}; expected (samples,)"
            )
        return resampled(waveform, rate, self.log_mel.sampling_rate)


def mono(clip: Tensor) -> Tensor:
    """Audio (channels, samples) of any type of sample as the mean of its channels, float32 (samples,) in -1..1."""
    if clip.is_floating_point():
        return clip.float().mean(0)
    if clip.dtype == torch.uint8:
        return ((clip.float() - 128) / 128).mean(0)
    return (clip.double() / -float(np.iinfo(str(clip.dtype).removeprefix("torch.")).min)).mean(0).float()
