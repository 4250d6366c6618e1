"""Documents of texts and pictures as people store them, cooked to samples.

Reads the part `json` of a crude sample, or without one the columns of a table. Returns an `InterleavedSample`, whose
pictures are encoded bytes; chats are cooked as `cook_conversation` does. Raises a `SampleError` for any other shape.

    OBELICS, Multimodal-Textbook   {"images": [picture, null, ...], "texts": [null, "text", ...]}, one at each place;
                                    at `image_list` and `text_list` in InfiMM-WebMath
    MMC4                           {"text_list": ["text", ...], "image_info": [{"image_name": "1.jpg",
                                    "matched_text_index": 0}, ...]}: a picture stands before its text
    a list of parts                [{"type": "text", "text": "text"}, {"type": "image", "image": "1.jpg"}, "text", ...]
                                   at `sequence`, `content` or `parts`, or alone
    a text, a caption              {"text": "text <image> text", "images": [...]}; `txt` beside pictures of a tar

A picture is its content, the name of a file (next to the JSONL file, or in the auxiliary data), or one of the picture
parts of the sample, such as `0.jpg`: in the order of their numbers, or if there are fewer, at these places.
One that is not there becomes a `MissingPicture`: the encoder decides.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bridge_data.decode.named_media import (
    DOCUMENT_IMAGES,
    DOCUMENT_PARTS,
    DOCUMENT_TEXTS,
    NamedVisual,
    by_number,
    picture_at,
    visual_in,
    visuals_at,
)
from bridge_data.encoders.chat_fields import MEDIUM, is_empty
from bridge_data.encoders.conversations import IMAGE, VIDEO, cook_conversation, is_chat
from bridge_data.encoders.sample_media import SampleMedia
from bridge_data.encoders.visual_settings import VISUAL_KEYS, naming_sample, settings_in, settings_of_row, with_settings
from bridge_data.errors import SampleError
from bridge_data.samples import CrudeSample, InterleavedSample, Sample
from bridge_data.task import basic_sample_keys, fields_in_words, stateless
from bridge_data.task.stores import FileStore

_TEXT_AT = ("text", "caption", "txt", "content")
"""Where a document is one text, the likeliest first."""

_OTHER_MEDIA = ("video", "videos", "audio", "audios")


@dataclasses.dataclass(frozen=True, slots=True)
class MissingPicture:
    """A picture of a document that is not there, and `why`."""

    why: str


@stateless
def cook_document(
    sample: CrudeSample, *, image_placeholder: str = IMAGE, video_placeholder: str = VIDEO, **stores: FileStore[Any]
) -> Sample:
    """A document of crude data, or a conversation. The placeholders are those of the encoder; `stores` are the
    auxiliary data, as of `cook_conversation`.

    >>> row = {"images": [None, None], "texts": ["A boat.", None]}
    >>> cook_document(CrudeSample({"__key__": "0.tar/7", "json": row})).sequence
    ['A boat.', MissingPicture(why='place 2 has neither a text nor a picture')]

    Raises:
        SampleError: if it is neither, or has something that a document cannot hold.
        ConfigError: if the location of files is unknown.
    """
    media = SampleMedia(sample, stores, {"image": image_placeholder, "video": video_placeholder})
    content = sample.get("json")
    inner = {DOCUMENT_PARTS[0]: content} if isinstance(content, list) else content
    row = {**media.other_parts(), **(inner if isinstance(inner, dict) else {})}
    if is_chat(row) or (isinstance(content, list) and any(_is_turn(part) for part in content)):
        return cook_conversation(
            sample, image_placeholder=image_placeholder, video_placeholder=video_placeholder, **stores
        )
    with naming_sample(media.key):
        others = [name for name in _OTHER_MEDIA if not is_empty(row.get(name))] + media.parts("video")
        if others:
            raise SampleError(f"has {others[0]!r}, but a document has texts and pictures alone: leave such rows out")
        items = _items(row, media, image_placeholder)
        if items is None:
            raise SampleError(
                "expected turns, or a document of texts and pictures: 'texts' with 'images', 'text_list' with "
                f"'image_info', a list of parts at {', '.join(map(repr, DOCUMENT_PARTS))}, or a text at "
                f"{', '.join(map(repr, _TEXT_AT))}. Its fields are {fields_in_words(sample)}. Write a cooker for others"
            )
        items = _with_stored(items, media)
        of_row = iter(settings_of_row(row, "image", sum(isinstance(item, NamedVisual) for item in items)))
        sequence: list[Any] = [
            _opened(item, media, next(of_row)) if isinstance(item, NamedVisual) else item for item in items
        ]
    return InterleavedSample(**basic_sample_keys(sample), sequence=sequence)


def _is_turn(part: Any) -> bool:
    return isinstance(part, dict) and bool(part.keys() & {"role", "from"})


_Item = str | NamedVisual | MissingPicture


def _items(row: Mapping[str, Any], media: SampleMedia, placeholder: str) -> list[_Item] | None:
    """The texts and pictures of a row, in order; None if it is no document."""
    places, sentences = (row.get(name) for name in DOCUMENT_TEXTS)
    are_stored = bool(media.parts("image"))
    if isinstance(places, list):
        return _at_places(places, row.get("images"), are_stored=are_stored)
    if isinstance(sentences, list) and DOCUMENT_IMAGES not in row:
        return _at_places(sentences, row.get("image_list"), are_stored=are_stored)
    if isinstance(sentences, list):
        return [*_matched(sentences, row.get(DOCUMENT_IMAGES) or [])]
    parts = next((row[name] for name in DOCUMENT_PARTS if isinstance(row.get(name), list)), None)
    if parts is not None:
        return [item for part in parts for item in _in_part(part)]
    text = next((row[name] for name in _TEXT_AT if isinstance(row.get(name), str)), None)
    if text is None:
        return None
    named: list[_Item] = [one for at in ("image", "images") for one in visuals_at(row.get(at), "image")]
    if not named and picture_at(row):
        named = [_named(row)]
    pictures = named or [NamedVisual(None)] * len(media.parts("image"))
    pieces = text.split(placeholder)
    if len(pieces) == 1:
        return [*pictures, text]
    if len(pieces) != len(pictures) + 1:
        raise SampleError(f"its text has {len(pieces) - 1} placeholders {placeholder!r} for {len(pictures)} pictures")
    return [item for pair in zip(pieces, [*pictures, ""], strict=True) for item in pair if item != ""]


def _at_places(texts: Sequence[Any], images: Any, *, are_stored: bool) -> list[_Item]:
    """What stands at each place of two lists. Without images, which may be stored as parts, they are where no text is:
    null, or else, if they `are_stored`, an empty text."""
    if images and (not isinstance(images, list) or len(images) != len(texts)):
        got = f"{len(images)} images" if isinstance(images, list) else type(images).__name__
        raise SampleError(f"has {len(texts)} texts and {got}; expected lists of one length, with one set at each place")
    items: list[_Item] = []
    no_text = "" if are_stored and None not in texts else None
    for place, (text, image) in enumerate(zip(texts, images or [None] * len(texts), strict=True)):
        found: list[_Item] = [*visuals_at(image, "image")]
        if not isinstance(text, str | None) or len(found) > 1 or (text and found):
            raise SampleError(f"place {place + 1} has {text!r:.40} and {image!r:.40}; expected a text or a picture")
        if not (found or images or text != no_text):
            found = [NamedVisual(None)]
        elif not found and text is None:
            found = [MissingPicture(f"place {place + 1} has neither a text nor a picture")]
        items += found or [text or ""]
    return items


def _matched(texts: Sequence[Any], infos: Any) -> Iterator[_Item]:
    """Texts, and before each the pictures that belong to it."""
    if not isinstance(infos, list):
        raise SampleError(f"its {DOCUMENT_IMAGES!r} is {infos!r:.40}; expected a list of pictures")
    places = [info.get("matched_text_index") if isinstance(info, dict) else None for info in infos]
    for number, place in enumerate(places):
        if not isinstance(place, int) or not 0 <= place < len(texts):
            raise SampleError(f"picture {number + 1} has the matched_text_index {place!r} of {len(texts)} texts")
    for number, text in enumerate(texts):
        for info, place in zip(infos, places, strict=True):
            if place == number:
                yield _named(info)
        if not isinstance(text, str):
            raise SampleError(f"text {number + 1} is {text!r:.40}; expected a text")
        yield text


def _in_part(part: Any) -> Iterator[_Item]:
    """The texts and pictures of a part, in the order of its fields."""
    if isinstance(part, str):
        yield part
        return
    at, found = picture_at(part), visual_in(part)
    if at is None and found is not None and found[0] == "image":
        yield from found[1]
        return
    names = [name for name in part if name == at or name == "text"] if isinstance(part, dict) else []
    if not names or not isinstance(part.get("text", ""), str | None):
        raise SampleError(f"a part is {part!r:.80}; expected a text, or an object with 'text' or 'image'")
    for name in names:
        yield _named(part) if name == at else part[name] or ""


def _named(part: Mapping[str, Any]) -> NamedVisual:
    """The picture of a part, with its settings; it is stored elsewhere if none is named."""
    at = picture_at(part)
    found = visuals_at(part[at], "image") if at else []
    if len(found) > 1:
        raise SampleError(f"a part has {len(found)} pictures: {part!r:.80}; expected one")
    said = {name: part[name] for name in VISUAL_KEYS & part.keys()}
    return NamedVisual(found[0].source, {**said, **found[0].said}) if found else NamedVisual(None, said)


def _with_stored(items: list[_Item], media: SampleMedia) -> list[_Item]:
    """The items, with the names of the picture parts of the sample, if it has such that none of them names."""
    pictures = {place: item for place, item in enumerate(items) if not isinstance(item, str)}
    names = media.parts("image")
    if not names or any(isinstance(one, NamedVisual) and one.source in names for one in pictures.values()):
        return items
    places = [*pictures]
    if len(names) != len(places):
        places = [by_number(name.rpartition(".")[0])[0][0] for name in names]
        if not {*places} <= pictures.keys() or len({*places}) < len(names):
            raise SampleError(f"has {len(pictures)} places of pictures, but the parts {', '.join(names)}: store all")
    stored = dict(zip(places, names, strict=True))
    for place, item in pictures.items():
        missing = MissingPicture(f"no picture is stored for place {place + 1}")
        items[place] = NamedVisual(stored[place], getattr(item, "said", {})) if place in stored else missing
    return items


def _opened(picture: NamedVisual, media: SampleMedia, of_row: Mapping[str, Any]) -> Any:
    """The content of a picture with its settings, some of which may be those `of_row`."""
    if picture.source is None:
        return MissingPicture("a picture has no name and no content")
    media.check_fields(MEDIUM, picture.said)
    try:
        source = media.read(picture.source, "image")
    except SampleError as error:
        return MissingPicture(str(error))
    return with_settings(source, settings_in({**of_row, **picture.said}, "image"))
