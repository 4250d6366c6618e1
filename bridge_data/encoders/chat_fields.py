"""What the fields of a chat mean: those of a row, of a turn, of a part of a turn, and of an image or video named there.

A field is one of four kinds. *Used*: it is read. *Harmless*: an id, an origin, a licence, a score; the model learns the
same without it. *Unsupported*: it would change what is learnt; a `SampleError` names it, what it says, and how to fix
it. *Unknown*: none of these; it is left out, which is logged once a data set and process. An empty value (null, "", [],
{}), or one that says nothing in its field (`label: true`), is as if it were not there.

This is the only table of fields: `ROW`, `TURN`, `PART` and `MEDIUM` have the names that are used there; `_HARMLESS` and
`_UNSUPPORTED` those that are known everywhere; `_BY_WORD` words in names, such as `rejected` in `rejected_images`. To
support a field, read it where the others of its kind are read, and add its name to `used` there.

Source: the formats of OpenAI, transformers and TRL, LLaVA, ShareGPT, Alpaca, LLaMA-Factory, ms-swift, axolotl,
torchtune, NeMo, Qwen-VL and InternVL, and of published data sets in them.
"""

import dataclasses
import functools
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from bridge_data.decode.media_kinds import SOUND_ENDINGS, kind_of_name, known_by_content
from bridge_data.decode.named_media import NAMED_AT
from bridge_data.encoders.visual_settings import VISUAL_KEYS
from bridge_data.errors import SampleError

logger = logging.getLogger("bridge_data")

THROUGH = ("reasoning_content", "reasoning", "thinking", "channel", "recipient", "name")
"""Fields of a turn for the chat template, which has to write them."""

LEARNT = ("weight", "train", "training", "trainable", "loss", "loss_scale", "loss_mask")
"""Fields of a turn that say whether it is learnt."""

NOT_LEARNT = ("masked", "mask", "no_loss", "ignore_loss")
"""Fields of a turn that say whether it is not learnt."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Meaning:
    """What a field `says`, and how to fix it. Values in `neutral` say nothing; with `repeats`, nor do texts that are in
    the turns anyway, nor numbers. If there are `only` some values that say it, the field is unknown with others."""

    says: str
    fix: str
    neutral: tuple[Any, ...] = ()
    repeats: bool = False
    only: tuple[Any, ...] = ()


YES, NO = (True, "1", "true", "yes"), (False, "0", "false", "no", "none")
"""How fields say yes (also by 1) and no (also by 0)."""

_BAD = (*NO, -1, "bad", "wrong", "incorrect", "negative", "rejected", "undesirable", "fail", "failed", "invalid")
"""How fields say that an answer is bad: a label may also be the class of a picture."""

_IMAGE = _Meaning(
    "names a picture where none is looked for", "write it at 'images' of the row, or as a part of content"
)
_VIDEO = _Meaning("names a video where none is looked for", "write it at 'videos' of the row, or as a part of content")
_SOUND = _Meaning("is sound", "the encoders of conversations hear none: leave such rows out, or remove the field")
_OTHER_MEDIA = _Meaning("is a medium that no encoder of conversations takes", "remove it from the data")
_PREFERENCE = _Meaning(
    "compares answers", "one answer is learnt: write it as the last turn of 'messages', and remove the field"
)
_VERDICT = _Meaning(
    "says that an answer is bad", "leave such rows out (`where:`), or write 'weight': 0 into the turn", YES, only=_BAD
)
_WITHDRAWN = _Meaning("says that it is withdrawn", "leave it out of the data", NO)
_LOSS = _Meaning(
    "says what is learnt",
    "an answer is learnt whole or not at all: write 'weight': 1 or 0 into its turn, and remove the field",
    (*YES, "default"),
)
_LOSS_ELSEWHERE = dataclasses.replace(_LOSS, neutral=NO)
_LOSS_SOMEHOW = dataclasses.replace(_LOSS, neutral=())
_MASK = dataclasses.replace(_LOSS, neutral=(*NO, "user", "human"))
_REGIONS = _Meaning(
    "has regions of a picture", "write them into the text, in the form that the model knows, and remove the field", NO
)
_THOUGHTS = _Meaning(
    "has thoughts before an answer",
    "write them as 'reasoning_content' of the turn, if the chat template takes that, or into its text",
    (True, False, "on", "off", "yes", "no", "none"),
    repeats=True,
)
_TEXT = _Meaning("has text that is in no turn", "write it into a turn, or remove the field", repeats=True)
_TURNS = _Meaning("has other turns than those that are learnt", "write all turns at 'messages'", repeats=True)
_TEMPLATE = _Meaning(
    "says how the chat template writes it",
    "set that for all rows, by ConversationTemplateConfig(chat_template_kwargs=...), and remove the field",
    ("auto",),
)
_PROCESSOR = _Meaning(
    "says how a processor reads media", "write 'max_pixels', 'fps' and the like into the row, and remove the field"
)
_TOOLS = _Meaning(
    "has tools, or calls of them, in another form", "write 'tools' of the row, and 'tool_calls' of a turn"
)
_SYSTEM = _Meaning("has a system text", "write it at 'system' of the row, or as the first turn", repeats=True)
_RANGE = _Meaning("says which part of a video is meant", "write it in seconds, as 'video_start' and 'video_end'")
_FRAMES = _Meaning("says which frames are taken", "write 'fps' or 'nframes'; 'sample_fps' of a list of pictures")
_SHAPE = _Meaning("says how a picture is shown", "store it so, or write 'resized_height' and 'resized_width'")
_END = _Meaning("says whether a turn ends", "all turns end as the chat template says; remove the field", YES)
_NO_END = dataclasses.replace(_END, neutral=NO)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _all(meaning: _Meaning, names: str) -> dict[str, _Meaning]:
    return dict.fromkeys(_names(names), meaning)


_RANGES = {
    **_all(_RANGE, "start end begin start_time end_time begin_time start_sec end_sec start_second end_second"),
    **_all(_RANGE, "start_seconds end_seconds start_timestamp end_timestamp video_start_time video_end_time"),
    **_all(_RANGE, "clip_start clip_end t_start t_end segment clip trim span moment interval time_range time_span"),
    **_all(_FRAMES, "start_frame end_frame frame_range frame_idx frame_idxs frame_index frame_indices frame_ids"),
    **_all(_FRAMES, "frames_idx sampled_frames n_frames video_max_frames video_min_frames nframe video_nframes"),
    **_all(_FRAMES, "max_num_frames min_num_frames sampling_fps frame_stride frame_interval"),
}

_UNSUPPORTED: Mapping[str, _Meaning] = {
    **_all(_IMAGE, "jpgs jpegs pngs webps"),
    **_all(_VIDEO, "mp4s"),
    **_all(_SOUND, "audio audios input_audio speech sound sounds voice wav waveform recording"),
    **_all(dataclasses.replace(_SOUND, neutral=NO), "use_audio_in_video use_audio"),
    **_all(_OTHER_MEDIA, "depth pcd lidar point_cloud pointcloud point_clouds tactile thermal"),
    **_all(_PREFERENCE, "chosen rejected rejected_response rejected_messages preferred_output non_preferred_output"),
    **_all(_PREFERENCE, "better_response_id safer_response_id positive_messages negative_messages margin winner"),
    **_all(_VERDICT, "label kto_tag kto_label desirable is_desirable correct is_correct accepted is_accepted valid"),
    **_all(_VERDICT, "is_valid passed good is_good approved"),
    **_all(_WITHDRAWN, "deleted is_deleted removed retracted ignore ignored skip exclude excluded hidden"),
    **_all(_LOSS, "weight weights sample_weight loss_weight token_weights loss loss_scale train training trainable"),
    **_all(_LOSS, "train_on_turn learn learnable supervise supervised is_target"),
    **_all(_LOSS_SOMEHOW, "loss_mask train_detail"),
    **_all(_LOSS_ELSEWHERE, "train_on_input train_on_inputs train_on_prompt mask_history no_loss ignore_loss"),
    **_all(_MASK, "mask masked masks"),
    **_all(_REGIONS, "objects bbox bboxes box boxes region regions segmentation polygon polygons keypoints grounding"),
    **_all(_REGIONS, "crop crops roi rotation rotate flip zoom points point"),
    **_all(_THOUGHTS, "reasoning_content reasoning thought thoughts think cot rationale scratchpad chain_of_thought"),
    "thinking": dataclasses.replace(_THOUGHTS, neutral=()),
    **_all(_TEXT, "context contexts document documents passage passages evidence background persona personas"),
    **_all(_TEXT, "article choices options hint role from content value"),
    **_all(_TURNS, "messages conversations conversation instruction input output prompt completion query response"),
    **_all(_TURNS, "history contents parts dialog dialogue replies children branches alternatives candidates"),
    **_all(_TURNS, "completions responses outputs"),
    **_all(_TEMPLATE, "chat_template chat_template_kwargs template_kwargs prompt_template enable_thinking tool_choice"),
    **_all(_TEMPLATE, "add_generation_prompt continue_final_message response_format thinking_budget"),
    **_all(dataclasses.replace(_TEMPLATE, neutral=YES), "parallel_tool_calls"),
    **_all(_PROCESSOR, "mm_processor_kwargs processor_kwargs images_kwargs videos_kwargs"),
    **_all(_END, "end_turn eot add_eos"),
    **_all(_TOOLS, "tools tool_calls functions function_call function_calls tool_call available_tools"),
    **_all(_SYSTEM, "system_message sys system_instruction developer instructions preamble"),
}
"""Names of fields that change what is learnt."""

_BY_WORD: Mapping[str, _Meaning] = {
    **_all(_PREFERENCE, "chosen rejected reject preferred dispreferred preference negative winner loser better worse"),
    **_all(_PREFERENCE, "bad wrong incorrect"),
    **_all(_LOSS_SOMEHOW, "loss train training trainable learn weight weights"),
    **_all(_MASK, "mask masks masked"),
    **_all(_REGIONS, "bbox bboxes bounding polygon polygons segmentation coordinates coords keypoints roi crop"),
    **_all(_THOUGHTS, "reasoning thinking thoughts cot rationale"),
    **_all(_OTHER_MEDIA, "depth lidar pointcloud"),
    **_all(_TOOLS, "tools functions"),
    **_all(_SYSTEM, "system sys"),
}
"""Words in the names of fields that change what is learnt."""

_HARMLESS = _names(
    """id uid uuid idx index key hash name title url source sources data_source dataset data_name dataset_name subset
    split config origin domain category categories subcategory topic topics tag tags keywords type task task_type
    task_name kind group channel language languages lang locale country license licence licenses copyright attribution
    author authors creator annotator annotators provider website citation score scores rating ratings quality difficulty
    reward rewards perplexity ppl similarity confidence rank votes likes toxic toxicity moderation openai_moderation
    redacted safety model models model_name generator engine version date time created created_at updated_at timestamp
    num_turns turn width height width_list height_list size sizes length lengths num_tokens duration metadata meta info
    extra extra_info note notes comment comments header headers markdown annotations user user_id username hashed_ip
    intent raw_fps system_fingerprint used_in_training cache_control mime_type media_type format avatar avatar_url
    thumbnail thumbnail_url logo icon generations relevance_min visual_dependency_min image_correspondence_min
    formatting_min"""
)
"""Names of fields that change nothing."""

_HARMLESS_ENDS = _names(
    """id ids identifier uid uuid idx index hash md5 sha score scores rating ratings reward quality source sources
    license licence count counts num size width height length lengths duration language lang date time timestamp
    version model type category split format tokens"""
)
"""Last words of the names of fields that change nothing, such as `chosen_score`; `num` is such a first word."""

_MEDIA = _names("image images img imgs picture pictures photo photos frame frames video videos clip clips")
"""Last words of the names of fields with a medium of their own, such as `target_image`; `image_path` may say where the
one that the sample has came from."""

_FILES = _names("path paths file files filename base b bytes")
"""Last words of the names of fields with a medium, such as `video_path` or `image_base64`, whatever their value is."""

_NOT_TO_SEE = (_PREFERENCE, _MASK, _REGIONS, _OTHER_MEDIA)
"""What pictures say that are not to be seen, such as a mask."""

_SOUNDS = SOUND_ENDINGS | {"oga", "opus"}


@dataclasses.dataclass(frozen=True, slots=True)
class FieldOwner:
    """What has fields, such as a turn: its name in messages, the names that are `used`, and those known only there."""

    name: str
    used: frozenset[str]
    unsupported: Mapping[str, _Meaning] = dataclasses.field(default_factory=dict)


ROW = FieldOwner(
    "a row",
    frozenset(("system", "system_prompt", "tools", "functions", "image", "images", "video", "videos", *VISUAL_KEYS)),
)
TURN = FieldOwner(
    "a turn",
    frozenset((*LEARNT, *NOT_LEARNT, *THROUGH, "tool_calls", "function_call", "tool_call_id")),
    unsupported={
        **_all(_IMAGE, "image images"),
        **_all(_VIDEO, "video videos"),
        **_all(_TEXT, "refusal"),
        **_all(_NO_END, "prefix partial"),
    },
)
_DETAIL = _Meaning("says how much of an image is seen", "write 'max_pixels' into its part", ("auto", "high"))

PART = FieldOwner(
    "a part of a turn",
    frozenset(("type", "index", *VISUAL_KEYS)),
    unsupported={
        **_all(_IMAGE, "image image_url images base64 data source"),
        **_all(_VIDEO, "video video_url videos"),
        **_all(_TEXT, "text"),
        **_RANGES,
        **_all(_FRAMES, "num_frames video_fps frame_rate stride"),
        **_all(_SHAPE, "resize crop rotate rotation"),
        "detail": _DETAIL,
    },
)

MEDIUM = dataclasses.replace(PART, name="an image or video")
RANGE = FieldOwner("a row with a video", frozenset(), unsupported=_RANGES)
"""Of a row, the fields that mean something only beside a video."""


def check_fields(
    owner: FieldOwner,
    fields: Mapping[str, Any],
    key: str,
    *,
    used: Collection[str] = (),
    said: Collection[str] = (),
    media: Collection[str] = (),
) -> list[str]:
    """Refuse sample `key` if one of the `fields` of an `owner` is unsupported; the names of unknown ones.

    `used` are names that are used here besides those of the owner. `said` are the texts that are learnt or read, and
    `media` the kinds of media that the sample has ("image", "video"): a field that repeats them says nothing more.

    Raises:
        SampleError: naming the field, what it says, and how to fix it.
    """
    unknown: list[str] = []
    for name, value in fields.items():
        if name in owner.used or name in used or is_empty(value):
            continue
        plain, words = _plain(name)
        meaning = owner.unsupported.get(plain) or _UNSUPPORTED.get(plain)
        if plain in owner.used or plain in used:
            meaning = _Meaning("is written otherwise than it is known", f"call it {plain!r}")
        elif meaning is None and not (plain in _HARMLESS or {*words[-1:]} & _HARMLESS_ENDS or words[:1] == ["num"]):
            meaning = next((_BY_WORD[word] for word in words if word in _BY_WORD), None)
            meaning = meaning or _unseen_medium(words, value, media)
            if meaning is None:
                unknown.append(str(name))
        if meaning is None or _says_nothing(meaning, value, said):
            continue
        if not _says_it(meaning, value) or (meaning is _REGIONS and owner is ROW and not media):
            unknown.append(str(name))
        else:
            raise SampleError(
                f"sample {key!r}: {owner.name} has {name!r}: {repr(value)[:80]}, which {meaning.says}, "
                f"and is not supported: {meaning.fix}; or write a cooker"
            )
    return unknown


def only_of(owner: FieldOwner, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that mean something in this owner alone."""
    return {name: value for name, value in fields.items() if _plain(name)[0] in owner.unsupported}


def check_media_part(part: str, key: str) -> None:
    """Refuse sample `key` if its part, an image or a video by its name, is none to be seen: sound, or a mask.

    Raises:
        SampleError: naming the part, what it is, and how to fix it.
    """
    stem, _, ending = part.rpartition(".")
    _, words = _plain(stem)
    meaning = next((_BY_WORD[word] for word in words if _BY_WORD.get(word) in _NOT_TO_SEE), None)
    meaning = _SOUND if ending.lower() in _SOUNDS else meaning
    if meaning is not None:
        raise SampleError(
            f"sample {key!r}: has the part {part!r}, which {meaning.says}, and is not supported: "
            f"{meaning.fix}; or leave it out by `part_filter`, or write a cooker"
        )


@functools.lru_cache(maxsize=4096)
def _plain(name: Any) -> tuple[str, list[str]]:
    """(name in small letters with `_` between its words, its words without digits)."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(name))
    plain = re.sub(r"\W+", "_", snake).strip("_").lower()
    return plain, re.findall(r"[^\W\d_]+", plain)


def is_empty(value: Any) -> bool:
    """Whether a value is as good as none: null, NaN, or nothing but empty values."""
    if isinstance(value, Mapping):
        return all(map(is_empty, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_empty, value))
    if isinstance(value, float):
        return value != value
    return value is None or (isinstance(value, str | bytes) and not value)


def _says_nothing(meaning: _Meaning, value: Any, said: Collection[str]) -> bool:
    if isinstance(value, list | tuple):  # numbers in a list may be those of turns, or coordinates
        return all(
            is_empty(one) or ((meaning.repeats or not _is_number(one)) and _says_nothing(meaning, one, said))
            for one in value
        )
    plain = _plain_value(value)
    if isinstance(plain, str | bool | int | float) and plain in meaning.neutral:
        return True
    if meaning.repeats and _is_number(plain):
        return True
    texts = [text for text in map(str.strip, _texts(value)) if text]
    return meaning.repeats and bool(texts) and all(any(text in one for one in said) for text in texts)


def _says_it(meaning: _Meaning, value: Any) -> bool:
    """Whether a value is one of the `only` ones that say what the field means, if it has such."""
    values = value if isinstance(value, list | tuple) else [value]
    return not meaning.only or any(_plain_value(one) in meaning.only for one in values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain_value(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value; of turns, those that are said."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        inner = [value[at] for at in ("content", "value", "text") if isinstance(value.get(at), str | list)]
        for one in inner or value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _unseen_medium(words: list[str], value: Any, media: Collection[str]) -> _Meaning | None:
    """What a field says that names or holds a medium which is not among those of the sample."""
    kind = _kind_of(value)
    if kind is None and words[:1] != words[-1:] and {*words[-1:]} & _FILES and isinstance(value, str | bytes | list):
        kind = next((kind for kind in ("image", "video", "audio") if words[0] == kind), None)
    meaning = {"image": _IMAGE, "video": _VIDEO, "audio": _SOUND}.get(kind or "")
    if kind in media and not {*words[-1:]} & _MEDIA:  # where it came from, say
        return None
    return meaning


def _kind_of(value: Any) -> str | None:
    """The kind of medium that a value names or holds, or of all in a list; None if it is none."""
    if isinstance(value, list | tuple):
        kinds = {_kind_of(one) for one in value}
        return kinds.pop() if len(kinds) == 1 else None
    if isinstance(value, Mapping):
        found = next((value[at] for at in ("bytes", *NAMED_AT) if value.get(at)), None)
        return None if isinstance(found, Mapping | list) else _kind_of(found)
    if isinstance(value, bytes):
        known = known_by_content(value, by_magic=True)
        return None if known is None else _kind_of(f"x.{known[0]}")
    if not isinstance(value, str) or "\n" in value:
        return None
    if value.startswith("data:"):
        kind = value[5:].partition("/")[0]
        return kind if kind in ("image", "video", "audio") else None
    medium = kind_of_name(value)
    if medium == "av":
        return "audio" if value.lower().rpartition(".")[2] in _SOUNDS else "video"
    return medium


@functools.lru_cache(maxsize=4096)
def log_unknown_field(data: str, owner: str, name: str) -> None:
    """Log, once, that the data set `data` has the unknown field `name` in an `owner`, such as a turn."""
    logger.warning(
        "%s: %s of a chat has %r, which is not a field that is known: it is left out. If it changes what is to be "
        "learnt, write a cooker",
        data,
        owner,
        name,
    )
