"""What fits samples that are no conversations: for the error of the encoder that met one.

Reads a sample without turns. Returns a class of samples that its parts or columns fit, with the command or setting that
says so; or a cooker to fill in. The guess is that of `convert`, a plug-in.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence

from bridge_data.data.metadata import is_jsonl
from bridge_data.decode.media_kinds import kind_of_name
from bridge_data.decode.named_media import is_document
from bridge_data.errors import bridge_command
from bridge_data.extensions import Feature
from bridge_data.plan.folder_contents import kind_of_file
from bridge_data.samples import CaptioningSample, CrudeSample, TextSample, VQASample

GUESS = Feature[Callable[[Sequence[Mapping[str, bytes]]], tuple[str, dict[str, str]]]]("definition_guess")
"""The sample class and the field map that probably fit samples, by their parts, of which only `json` have content."""

_ADVICE = """\
Write a cooker for this shape, and set it as MyEncoder.cookers = [Cooker(cook)]:
  def cook(sample):
      turns = [{"role": "user", "content": %s}, {"role": "assistant", "content": %s}]
      return ConversationSample(**basic_sample_keys(sample), messages=turns)"""


FOR_DOCUMENTS = "DocumentTaskEncoder of bridge_data.encoders takes documents of texts and pictures"


def way_out(sample: CrudeSample) -> str:
    """What makes something to learn of a sample without turns: a class of samples that fits, or a cooker."""
    at = 'sample["json"][...]' if "json" in sample else "sample[...]"
    advice = _ADVICE % (at, at)
    row = sample["json"] if isinstance(sample.get("json"), dict) else sample
    if row.keys() >= {"chosen", "rejected"}:
        return f"'chosen' and 'rejected' compare answers, of which one is learnt here. {advice}"
    if is_document(row):
        return f"These are no turns, but a document: {FOR_DOCUMENTS}"
    shown = {name: value for name, value in sample.items() if not name.startswith("__") and name != "json"}
    media = {name for name in shown if kind_of_name(f"x.{name}") is not None}
    sources, guess = sample.get("__sources__"), GUESS.find()
    if guess is None or not sources:
        return advice
    path, is_tar = sources[0].dataset_path, kind_of_file(sources[0].shard_name) == "webdataset"
    parts = dict.fromkeys(shown if is_tar else media, b"")
    columns = sample.get("json") if "json" in sample else {} if is_tar else {**shown, **dict.fromkeys(media)}
    if columns:
        parts["json"] = json.dumps(columns, default=lambda _: None).encode()
    name, field_map = guess([parts])
    if name not in (CaptioningSample.__name__, VQASample.__name__, TextSample.__name__):
        return advice
    if is_jsonl(path):
        return (
            f"These are no turns, but fit a {name}: `{bridge_command('convert', path, 'DST')}` makes a data set of them"
        )
    if is_tar:
        given = ",".join(f"{field}={access.partition(',')[0]}" for field, access in field_map.items())
        folder = os.path.dirname(path) if kind_of_file(path) else path
        command = bridge_command("prepare", folder, "--sample-type", name, "--field-map", given)
        return f"These are no turns, but fit a {name}: `{command}` makes them such samples"
    given = ", ".join(f"{field}: {access.removeprefix('json[').rstrip(']')}" for field, access in field_map.items())
    return (
        f"These are no turns, but fit a {name}: give `sample_type: {name}` and `field_map: {{{given}}}` beside the path"
    )
