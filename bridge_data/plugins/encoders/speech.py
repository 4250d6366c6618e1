"""Speech recognition as Whisper learns it: a log-mel spectrogram, and the words as targets of a decoder.

Reads recordings with their words. Returns `SpeechBatch`: features and labels are those of Whisper's processor
(`WhisperFeatureExtractor`). A recording of any rate and number of channels becomes mono at the model's rate. It is
resampled here, not by FFmpeg, whose releases differ: the same recording has the same features everywhere.

Source: A. Radford et al., Robust speech recognition (2022); J. Smith, Digital audio resampling (2002), for the
resampler.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridge_data.decode.av import AV_EXTENSIONS, AVDecoder
from bridge_data.encoders.chat import check_unicode
from bridge_data.encoders.encoder_config import IGNORED, OverlongPolicy, Policy, note_overlong, refuse
from bridge_data.encoders.sequences import padded
from bridge_data.errors import ConfigError, SampleError
from bridge_data.options import check_at_least, check_choices
from bridge_data.samples import Batch, CrudeSample, Sample, edataclass
from bridge_data.task import Cooker, DefaultTaskEncoder, basic_sample_keys, fields_in_words, stateless

_ZEROS, _ROLLOFF = 6, 0.99


def resampled(waveform: Tensor, rate: int, to: int) -> Tensor:
    """Resample a waveform (samples,) by a windowed sinc, which removes frequencies above the new Nyquist frequency."""
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
    """One kernel for each of the `new` samples that replace `old` samples, and its half width in samples."""
    cutoff = min(old, new) * _ROLLOFF
    width = math.ceil(_ZEROS * old / cutoff)
    offsets = torch.arange(-width, width + old, dtype=torch.float64) / old
    shifts = torch.arange(new, dtype=torch.float64)[:, None] / new
    times = ((offsets - shifts) * cutoff).clamp(-_ZEROS, _ZEROS)
    window = torch.cos(times * math.pi / _ZEROS / 2) ** 2
    return (torch.sinc(times) * window * cutoff / old).float(), width


@edataclass
class TranscriptionSample(Sample):
    """A recording and its words. `audio` is an `AVDecoder`, encoded bytes, or a waveform as float32 (samples,) at
    `sampling_rate`. The words are those from `start_s` to `end_s`, in seconds (None: to its end)."""

    audio: Any
    text: str
    sampling_rate: int = 16_000
    start_s: float = 0.0
    end_s: float | None = None


_WORDS = ("text", "transcript", "transcription", "sentence")

_SEGMENTS = (("offset", "duration"), ("start", "end"), ("start_time", "end_time"))
"""Where rows have the part of a recording, in seconds: manifests of NeMo, and others."""

_SLACK_S = 0.1
"""How much later than a recording ends a segment of it may end: times are rounded."""


@stateless
def cook_transcription(sample: CrudeSample) -> TranscriptionSample:
    """A recording of crude data: its only audio or video part, and its words in `txt`; or else at `text`, `transcript`,
    `transcription` or `sentence` of the part `json` or, in a table, of the row. The words may be of a part of it: from
    `offset`, as long as `duration` (as in manifests of NeMo), or from `start` to `end`, or `start_time` to `end_time`,
    all in seconds. A `duration` without an `offset` is not used.

    >>> cook_transcription(CrudeSample({"__key__": "0.tar/7", "wav": b"RIFF", "txt": "hello"})).text
    'hello'

    Raises:
        SampleError: if there is no such part, or several; if different words are named; if times are not those of a
            part.
    """
    media = [name for name in sample if name.rpartition(".")[2] in AV_EXTENSIONS]
    inner = sample.get("json")
    fields = {**inner, **sample} if isinstance(inner, dict) else sample
    names = ("txt",) if "txt" in sample else _WORDS
    words = {name: fields[name] for name in names if isinstance(fields.get(name), str)}
    if len(media) != 1 or len({*words.values()}) != 1:
        raise SampleError(
            f"sample {sample['__key__']!r} has {fields_in_words(sample)}; expected a recording, and its words in txt "
            f"or at one of {', '.join(_WORDS)}: leave others out by `part_filter`, or write a cooker"
        )
    start_s, end_s = _segment(fields, sample["__key__"])
    return TranscriptionSample(
        **basic_sample_keys(sample),
        audio=sample[media[0]],
        text=next(iter(words.values())),
        start_s=start_s,
        end_s=end_s,
    )


def _segment(fields: Mapping[str, Any], key: str) -> tuple[float, float | None]:
    """(start, end) in seconds of the words of a row in its recording."""
    for first, last in _SEGMENTS:
        given: list[Any] = [fields.get(first), fields.get(last)]
        # Lists are the times of each word; NaN is what tables have for no number.
        is_missing = [one in (None, "") or isinstance(one, list | dict) or one != one for one in given]
        if is_missing[0] or (is_missing[1] and first != "offset"):
            continue
        try:
            start, length = float(given[0]), math.inf if is_missing[1] else float(given[1])
        except (TypeError, ValueError):
            raise SampleError(
                f"sample {key!r}: {first}={given[0]!r}, {last}={given[1]!r}: expected seconds, as numbers, of the part "
                "of the recording that has the words; write a cooker for another form"
            ) from None
        end = start + length if first == "offset" else length
        if not 0 <= start < end:
            raise SampleError(
                f"sample {key!r}: {first}={given[0]!r}, {last}={given[1]!r}: no part of a recording is there; expected "
                "seconds from its start on"
            )
        return start, None if end == math.inf else end
    return 0.0, None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SpeechConfig:
    """`max_target_length` limits the tokens of a transcript (448 for Whisper). `overlong` says what happens to longer
    ones, and to recordings longer than the model's input: skipped by default, since truncated words and sound would not
    match. `empty_text` is for transcripts without words.

    Raises:
        ConfigError: for a setting that is unknown or out of range.
    """

    max_target_length: int = 448
    overlong: OverlongPolicy = "skip"
    empty_text: Policy = "skip"
    ignore_place_holder: int = IGNORED

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_target_length")
        check_choices(self)


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
    """Recordings to the batches of Whisper, whose tokenizer and `WhisperFeatureExtractor` it takes.

    The tokenizer adds the tokens before the words (`set_prefix_tokens`). Models put the decoder's start token before
    the labels themselves: pass it as `start_token_id` to keep it out of the labels.

    Raises:
        ConfigError: if the feature extractor is of another class, or adds noise.
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
        _check_extractor(feature_extractor)
        self.tokenizer, self.feature_extractor = tokenizer, feature_extractor
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
        check_unicode(sample.text, key)
        if not sample.text.strip():
            refuse(config.empty_text, key, "its text has no words")
        ids = list(self.tokenizer(sample.text).input_ids)
        if ids[:1] == [self.start_token_id]:
            ids = ids[1:]
        if len(ids) > config.max_target_length:
            reason = f"its text has {len(ids)} tokens, a target holds {config.max_target_length}"
            note_overlong(config.overlong, key, reason)
        waveform = self._waveform(sample)
        most = self.feature_extractor.n_samples
        if len(waveform) > most:
            note_overlong(config.overlong, key, f"its recording has {len(waveform)} samples, the model hears {most}")
        made = self.feature_extractor(
            waveform.numpy(),
            sampling_rate=self.feature_extractor.sampling_rate,
            return_attention_mask=True,
            return_tensors="pt",
        )
        return SpeechSample.derive_from(
            sample,
            input_features=made["input_features"][0],
            attention_mask=made["attention_mask"][0].to(torch.int32).contiguous(),
            labels=torch.tensor(ids[: config.max_target_length]),
        )

    def costs(self, sample: SpeechSample) -> Mapping[str, int]:
        """`tokens` of the words, and `frames` of the spectrogram with sound."""
        return {"tokens": len(sample.labels), "frames": int(sample.attention_mask.sum())}

    @stateless
    def batch(self, samples: list[SpeechSample]) -> SpeechBatch:
        labels = padded([sample.labels for sample in samples], self.config.ignore_place_holder)
        return SpeechBatch.from_samples(samples, labels=labels)

    def _waveform(self, sample: TranscriptionSample) -> Tensor:
        audio, rate, start, end = sample.audio, sample.sampling_rate, sample.start_s, sample.end_s
        is_whole = not start and end is None
        if isinstance(audio, bytes):
            audio = AVDecoder(audio)
        if isinstance(audio, AVDecoder):
            with audio:
                rate = audio.get_audio_samples_per_second()
                if is_whole:
                    (clip,) = audio.get_audio().audio_clips or []
                else:
                    (clip,), _ = audio.get_audio_clips([(start, math.inf if end is None else end)], "seconds")
            waveform = mono(clip)
        else:
            waveform = torch.as_tensor(audio, dtype=torch.float32)
            if waveform.ndim == 1 and not is_whole:
                waveform = waveform[round(start * rate) : None if end is None else round(end * rate)]
        if waveform.ndim != 1 or not len(waveform):
            raise SampleError(
                f"sample {sample.__key__!r}: a waveform has shape {tuple(waveform.shape)}; expected (samples,)"
            )
        if end is not None and len(waveform) / rate < end - start - _SLACK_S:
            raise SampleError(
                f"sample {sample.__key__!r}: its words are from {start:g} to {end:g} s of a recording that ends at "
                f"{start + len(waveform) / rate:g} s"
            )
        return resampled(waveform, rate, self.feature_extractor.sampling_rate)


def _check_extractor(extractor: Any) -> None:
    names = ("n_samples", "sampling_rate", "dither", "padding_value")
    missing = [name for name in names if not hasattr(extractor, name)]
    if missing or extractor.dither or extractor.padding_value:
        raise ConfigError(
            f"{type(extractor).__name__}: expected a WhisperFeatureExtractor, with dither=0.0 and padding_value=0.0"
            f"{f'; it has no {missing[0]}' if missing else ''}"
        )


def mono(clip: Tensor) -> Tensor:
    """The mean of the channels of audio (channels, samples) of any dtype, float32 (samples,) in -1..1."""
    if clip.is_floating_point():
        return clip.float().mean(0)
    if clip.dtype == torch.uint8:
        return ((clip.float() - 128) / 128).mean(0)
    return (clip.double() / -float(np.iinfo(str(clip.dtype).removeprefix("torch.")).min)).mean(0).float()
