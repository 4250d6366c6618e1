"""A processor of transformers, called for one conversation at a time, and tried before.

Reads the text of a chat template, images, and videos whose frames are sampled. Returns what the processor makes of
them: tokens with marks on the answers, media, and what there is for each token. `Joining` says how several are joined.
A processor with which answers would be unknown, or batches not those of the processor, is refused when it is tried.
"""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bridge_data.encoders.sequences import Media
from bridge_data.encoders.tokens import MarkedTokens, Span, touching
from bridge_data.encoders.visuals import VideoFrames, VideoSampling, probes
from bridge_data.errors import ConfigError, SampleError
from bridge_data.plugins.encoders.joining import Joining

Made: TypeAlias = Mapping[str, Any]
"""The outputs of a processor for one text."""

MediaKind: TypeAlias = Literal["image", "video"]

Write: TypeAlias = Callable[[MediaKind, str, int], str | None]
"""A conversation with so many images or videos as the chat template writes it, with this token for each; None if the
template writes others."""

_NOT_FOR_MODELS = ("offset_mapping", "text_replacement_offsets", "attention_mask", "video_metadata")

_OTHER_IMAGE_TOKENS = ("boi_token", "image_placeholder_token")
"""Where processors say what a chat template writes for an image, if it is not `image_token`: Gemma 3 before
transformers 5.23, and Qianfan-OCR."""

_NOT_OF_SAMPLING = ("input_data_format", "do_convert_rgb", "do_sample_frames", "device", "video_metadata")

_OWN_FAMILY = "for it, write a VisionFamily for FamilyTaskEncoder, or a task encoder"
"""The way out if a processor cannot be driven."""


@dataclasses.dataclass(frozen=True, slots=True)
class Clip:
    """The sampled frames of a video, uint8 (frames, 3, height, width), and what a processor reads of it."""

    frames: Tensor
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, video: VideoFrames, owner: str) -> "Clip":
        """The frames, decoded.

        Raises:
            SampleError: if one cannot be decoded, or the video has settings that a processor cannot follow.
        """
        given = ("min_pixels", "max_pixels", "total_pixels", "resized_height", "resized_width", "times")
        said = [f"{name}={value}" for name, value in video.own.given.items() if name in given]
        if said:
            raise SampleError(
                f"sample {video.key!r}: a video says {', '.join(said)[:200]}, which {owner} cannot follow; "
                "QwenVLTaskEncoder can. Remove it from the data, or set it for all videos by processor_options"
            )
        pixels = torch.from_numpy(np.stack([np.asarray(frame) for frame in video.pictures()]))
        height, width = video.size
        metadata = {
            "total_num_frames": video.num_frames,
            "fps": video.fps,
            "width": width,
            "height": height,
            "duration": video.num_frames / video.fps,
            "frames_indices": list(video.frames),
        }
        return cls(pixels.permute(0, 3, 1, 2).contiguous(), metadata)


class DrivenProcessor:
    """The `processor` of `owner`, which gets `options` with each call; `begins` says of a text whether the tokenizer
    adds its special tokens, and `write` makes texts for trying it.

    Raises:
        ConfigError: if it does not say what it makes of an image, or is not one for chats.
    """

    def __init__(
        self, owner: str, processor: Any, options: Mapping[str, Any], begins: Callable[[str], bool], write: Write
    ) -> None:
        self._owner, self._processor, self._begins = owner, processor, begins
        self._options = dict(options)
        self._of_kinds = {
            f"{kind}s_kwargs": {"return_tensors": "pt", **self._options.pop(f"{kind}s_kwargs", {})}
            for kind in ("image", "video")
        }
        self.image_token: str | None = getattr(processor, "image_token", None)
        self.video_token: str | None = None
        self.aligned: frozenset[str] = frozenset()
        """The outputs with one number for each token."""
        self._prefix, self._nests = 0, True
        self.joining = Joining(owner, {})
        if getattr(processor, "image_processor", None) is not None:
            self._try_images(write)
        self._no_videos = self._try_videos(write)

    # Calls

    def call(self, text: str, images: Sequence[Image.Image] = (), videos: Sequence[Clip] = ()) -> Made:
        """What the processor makes of a text with these images and videos, in their order."""
        made: Made = self._processor(
            text=[text],
            add_special_tokens=self._begins(text),
            return_offsets_mapping=True,
            return_text_replacement_offsets=True,
            **self._given([images], [videos]),
        )
        made = {**made, **{name: torch.as_tensor(made[name]).tolist() for name in ("input_ids", "offset_mapping")}}
        if "text_replacement_offsets" not in made and (images or videos):
            if videos:
                raise self._mute("a video")
            if self.image_token is not None:
                made = {**made, "text_replacement_offsets": [self._replacements(text, made)]}
        return made

    def _given(self, images: Sequence[Sequence[Image.Image]], videos: Sequence[Sequence[Clip]]) -> dict[str, Any]:
        """The arguments of a call for so many conversations."""
        given: dict[str, Any] = {**self._options, "images": None}
        if any(images):
            nested = [list(own) for own in images]
            given["images"] = nested if self._nests else [image for own in nested for image in own]
            given["images_kwargs"] = self._of_kinds["images_kwargs"]
        if clips := [clip for own in videos for clip in own]:
            given["videos"] = [clip.frames for clip in clips]
            metadata = [dict(clip.metadata) for clip in clips]
            chosen = {"do_sample_frames": False, "return_metadata": True, "video_metadata": metadata}
            given["videos_kwargs"] = {
                name: value
                for name, value in self._of_kinds["videos_kwargs"].items()
                if name not in ("fps", "num_frames")
            } | chosen
        return given

    def sorted(self, made: Made) -> tuple[Media, dict[str, Tensor]]:
        """The outputs of the processor without the tokens: media, and tensors with one number for each token."""
        media, aligned = {}, {}
        length = len(made["input_ids"][0])
        for name, value in made.items():
            if name == "input_ids" or name in _NOT_FOR_MODELS:
                continue
            tensor = torch.as_tensor(value)
            if name in self.aligned or (tensor.shape == (1, length) and not isinstance(value, Tensor)):
                aligned[name] = tensor[0]
            else:
                media[name] = self.joining.own(name, tensor)
        return media, aligned

    def added_before(self, text: str, made: Made) -> int:
        """How many characters the processor wrote before the text, such as a beginning-of-sequence token.

        Raises:
            ConfigError: if it wrote some elsewhere: then it is unknown where the answers are.
        """
        replaced = replacements_in(made)
        tokens = "|".join(re.escape(token) for token in dict.fromkeys(one["text"] for one in replaced))
        places = [match.start() for match in re.finditer(tokens, text)] if replaced else []
        grown = sum(len(one["replacement"]) - len(one["text"]) for one in replaced)
        added = max(0, max((end for _, end in made["offset_mapping"][0]), default=0) - len(text) - grown)
        moved = {one["span"][0] - place for one, place in zip(replaced, places, strict=False)}
        is_known = moved == {added} if replaced else added in (0, self._prefix)
        if len(places) != len(replaced) or not is_known:
            raise ConfigError(
                f"{self._owner}: it writes more into a conversation than the chat template does, so the answers cannot "
                f"be found; {_OWN_FAMILY}"
            )
        return added

    # Videos

    def check_videos(self, key: str) -> None:
        """Raise a ConfigError, for sample `key`, if the processor takes no videos."""
        if self._no_videos is not None:
            raise ConfigError(f"sample {key!r} has videos, and {self._owner} {self._no_videos}")

    def choose_frames(self, num_frames: int, fps: float, sampling: VideoSampling) -> Sequence[int]:
        """Those that the video processor samples by its settings; `sampling` is not read."""
        from transformers.video_utils import VideoMetadata

        videos = self._processor.video_processor
        settings = {name: getattr(videos, name, None) for name in videos.valid_kwargs.__annotations__}
        settings |= {name: value for name, value in self._of_kinds["videos_kwargs"].items() if name in settings}
        if not settings.get("do_sample_frames"):
            return range(num_frames)
        metadata = VideoMetadata(total_num_frames=num_frames, fps=fps, duration=num_frames / fps)
        settings = {name: value for name, value in settings.items() if name not in _NOT_OF_SAMPLING}
        return [int(number) for number in videos.sample_frames(metadata=metadata, **settings)]

    # What the processor is tried with

    def _try_images(self, write: Write) -> None:
        tokens = (self.image_token, *(getattr(self._processor, name, None) for name in _OTHER_IMAGE_TOKENS))
        written = [*dict.fromkeys(str(token) for token in tokens if token is not None)]
        if not written:
            raise ConfigError(
                f"{self._owner}: no token stands for an image in a text (it has no image_token), so it is not one for "
                f"chats; {_OWN_FAMILY}"
            )
        small, wide, tall = probes()
        first: Exception | None = None
        by_template = [(token, self._texts(write, "image", token)) for token in written]
        plain = [(token, [f"{token} a" + f" {token}" * more for more in range(3)]) for token in written]
        for token, texts in [*by_template, *plain]:
            # Some take images without their conversations alone; some, several of one size alone.
            for self._nests, images in itertools.product((True, False), ([wide, tall, small], [small] * 3)):
                self.image_token = token
                try:
                    return self._learn(texts, images, [], pads=images[0] is wide)
                except Exception as error:  # a processor of another kind may raise anything
                    first = first or error
        if isinstance(first, ConfigError):
            raise first
        raise self._mute("an image", first) from first

    def _try_videos(self, write: Write) -> str | None:
        """Why the processor takes no videos; None if it does."""
        token = getattr(self._processor, "video_token", None)
        if getattr(self._processor, "video_processor", None) is None or token is None:
            return "takes none: it has no video_processor, or no video_token"
        texts, first = self._texts(write, "video", str(token)), None
        if not texts:
            return f"has a chat template that writes no {token} for a video; use one that does"
        for numbers in ((8, 6, 4), (8, 8, 8)):
            sides = ((224, 224), (224, 448), (448, 224))  # of whole patches, as some do not resize
            clips = [_noise(number, *size) for number, size in zip(numbers, sides, strict=True)]
            try:
                self._learn(texts, [], clips, pads=len({*numbers}) > 1)
            except Exception as error:  # such as for want of torchvision
                first = first or error
                continue
            self.video_token = str(token)
            return None
        return f"does not take them: {type(first).__name__}: {str(first)[:300]}"

    def _texts(self, write: Write, kind: MediaKind, token: str) -> list[str]:
        """Conversations with one, two and three images or videos; none, if the template writes others."""
        texts = [write(kind, token, number) for number in (1, 2, 3)]
        return [text for text in texts if text is not None] if None not in texts else []

    def _learn(
        self, texts: Sequence[str], images: Sequence[Image.Image], videos: Sequence[Clip], *, pads: bool
    ) -> None:
        """Find how outputs are joined, with conversations of one, two and three images or videos, of which there are
        three; `pads` as of `Joining.and_found`."""
        one, two, three = texts
        parts = [
            (two, images[:2], videos[:2]),
            (one, images[2:], videos[2:]),
        ]
        made = [self.call(*part) for part in parts]
        replaced = replacements_in(made[0])
        if len(replaced) != 2 or len(made[0]["input_ids"]) != 1:
            raise ValueError(f"of 2 in 1 text it makes {len(replaced)} in {len(made[0]['input_ids'])}")
        if "labels" in made[0]:
            raise ConfigError(f"{self._owner}: it makes labels by itself, so it is not one for chats; {_OWN_FAMILY}")
        self._prefix = replaced[0]["span"][0] - two.index(replaced[0]["text"])
        self.added_before(two, made[0])
        lengths = [len(outputs["input_ids"][0]) for outputs in made]
        shapes = [{name: tuple(np.shape(value)) for name, value in outputs.items()} for outputs in made]
        self.aligned |= frozenset(
            name
            for name in (shapes[0].keys() & shapes[1].keys()) - {"input_ids", *_NOT_FOR_MODELS}
            if all(shape[name] == (1, length) for shape, length in zip(shapes, lengths, strict=True))
        )
        batch: Media | None = None
        with contextlib.suppress(Exception):  # some make no batches
            given = self._given([part[1] for part in parts], [part[2] for part in parts])
            batch = self.sorted(self._processor(text=[two, one], padding=True, **given))[0]
        together = self.sorted(self.call(three, images, videos))[0]
        self.joining = self.joining.and_found([self.sorted(outputs)[0] for outputs in made], batch, together, pads=pads)

    def _mute(self, medium: str, why: Exception | None = None) -> ConfigError:
        reason = "" if why is None else f" ({type(why).__name__}: {why})"
        return ConfigError(
            f"{self._owner}: it does not say what it makes of {medium}{reason}; expected a processor that takes "
            "return_offsets_mapping and return_text_replacement_offsets, as those of transformers 5.23 do. Otherwise "
            f"{_OWN_FAMILY}"
        )

    # Processors of older versions of transformers

    def _replacements(self, text: str, made: Made) -> list[dict[str, Any]]:
        """What replaced each image token, if the processor does not report it, as in older versions of transformers
        (5.12): a run of tokens of images, and around it the same characters for each.

        Raises:
            ConfigError: if it is otherwise.
        """
        token, matches = str(self.image_token), list(re.finditer(re.escape(str(self.image_token)), text))
        ids, offsets = made["input_ids"][0], made["offset_mapping"][0]
        runs = self._image_runs(ids, offsets)
        grown = max(end for _, end in offsets) - len(text) - sum(end - start for start, end in runs)
        around, rest = divmod(grown + len(token) * len(matches), max(len(matches), 1))
        before = runs[0][0] - matches[0].start() if matches and runs else 0
        replaced: list[dict[str, Any]] = []
        grown = 0
        for match, (start, end) in zip(matches, runs, strict=False):
            if start != match.start() + grown + before:
                break
            new = start - before, end + around - before
            becomes = " " * (new[1] - new[0])
            one = {"type": "image", "span": match.span(), "text": token, "new_span": new, "replacement": becomes}
            replaced.append(one)
            grown = new[1] - match.end()
        if rest or not 0 <= before <= around or not len(replaced) == len(runs) == len(matches):
            raise self._mute("an image")
        return replaced

    def _image_runs(self, ids: Sequence[int], offsets: Sequence[Span]) -> list[Span]:
        """The ranges of characters of consecutive tokens of images; an image ends with its end token, if it has one."""
        tokenizer = self._processor.tokenizer
        names = (getattr(self._processor, "image_token", None), getattr(self._processor, "image_break_token", None))
        last = getattr(self._processor, "image_end_token", None)
        own = {tokenizer.convert_tokens_to_ids(name) for name in (*names, last) if name is not None}
        end_id = None if last is None else tokenizer.convert_tokens_to_ids(last)
        runs: list[Span] = []
        is_open = False
        for number, (start, end) in zip(ids, offsets, strict=True):
            if number in own:
                runs[-1:] = [(runs[-1][0], end)] if is_open else [*runs[-1:], (start, end)]
            is_open = number in own and number != end_id
        return runs


def _noise(number: int, height: int, width: int) -> Clip:
    """A video to try a processor with."""
    noise = torch.Generator().manual_seed(0)
    frames = torch.randint(256, (number, 3, height, width), dtype=torch.uint8, generator=noise)
    size = {"width": width, "height": height}
    times = {"total_num_frames": number, "fps": 2.0, "duration": number / 2, "frames_indices": list(range(number))}
    return Clip(frames, {**size, **times})


def replacements_in(made: Made) -> list[Mapping[str, Any]]:
    """What the processor put in place of each image and video, in their order."""
    return list((made.get("text_replacement_offsets") or [[]])[0])


def marked_in(made: Made, spans: Sequence[Span]) -> tuple[MarkedTokens, list[Span]]:
    """The tokens, with marks on those of answers but not of images; and the range of tokens of each image and video.
    `spans` are those of the text before its image tokens were replaced."""
    ids, offsets = list(made["input_ids"][0]), made["offset_mapping"][0]
    replaced = replacements_in(made)
    moved = [(_moved(start, replaced), _moved(end, replaced)) for start, end in spans]
    in_answers = touching(offsets, moved)
    in_images = touching(offsets, [one["new_span"] for one in replaced])
    images_at = []
    number = 0
    for one in replaced:
        start, end = one["new_span"]
        while number < len(ids) and not (offsets[number][1] > start and offsets[number][0] < offsets[number][1]):
            number += 1
        first = number
        while number < len(ids) and offsets[number][0] < end and offsets[number][1] > start:
            number += 1
        images_at.append((first, number))
    return MarkedTokens.of(ids, in_answers & ~in_images), images_at


def _moved(offset: int, replaced: Sequence[Mapping[str, Any]]) -> int:
    """The offset of a character of the text after its image tokens were replaced."""
    grown = sum(len(one["replacement"]) - len(one["text"]) for one in replaced if one["span"][1] <= offset)
    return offset + grown
