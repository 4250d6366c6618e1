"""Speech with transcripts out of pocketsphinx's tests: sentences of a novel and names of playing cards.

A transcript is a line `<s> ten of clubs  </s> (001)`, with the name of the recording in brackets.
"""

import re
from pathlib import Path

from tests.real_data.loading import bridge_data, write_shards

PACKAGE = "pocketsphinx-testdata"
SPEECH = "usr/share/pocketsphinx/test/data"
TRANSCRIPTS = ("librivox/transcription", "cards/cards.transcription")
RATE = 16_000

_LINE = re.compile(r"<s>(?P<text>.*)</s> \((?P<name>.*)\)")


def find_speech(package: Path) -> dict[Path, str]:
    """The transcripts of the recordings, by their files."""
    found = {}
    for file in (package / SPEECH / name for name in TRANSCRIPTS):
        for line in filter(None, file.read_text().splitlines()):
            match = _LINE.fullmatch(line)
            assert match is not None, f"{file}: no transcript: {line!r}"
            found[file.parent / f"{match['name']}.wav"] = " ".join(match["text"].split())
    return found


def prepare_speech(package: Path, folder: Path) -> Path:
    """A crude data set `speech` in `folder`, of `wav` and `txt`, with the metadata of the media."""
    samples = (
        {"__key__": recording.stem, "wav": recording.read_bytes(), "txt": text}
        for recording, text in find_speech(package).items()
    )
    speech = write_shards(folder / "speech", samples, per_shard=3)
    crude = ("--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset", "--no-progress")
    bridge_data("prepare", speech, "--non-interactive", "--media", "extension", *crude)
    return speech
