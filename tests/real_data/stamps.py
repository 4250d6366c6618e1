"""The stamps of Tux Paint: pictures with captions in 77 languages, of which some are spoken too.

A stamp is `yak.png` with `yak.txt`, whose first line is the English caption and every other one, as in
`de.utf8=Ein Yak.`, that of a language; `yak_desc_fr.ogg` is the French one spoken.
"""

import dataclasses
import json
import os
from pathlib import Path

from tests.real_data.loading import bridge_data, write_shards

PACKAGE = "tuxpaint-stamps-default"
STAMPS = "usr/share/tuxpaint/stamps"


@dataclasses.dataclass(frozen=True, slots=True)
class Stamp:
    """A picture and what it is called, by language."""

    picture: Path
    captions: dict[str, str]


def find_stamps(package: Path) -> dict[str, Stamp]:
    """The pictures that have captions, by their paths below the stamps without extension."""
    stamps = package / STAMPS
    return {
        picture.relative_to(stamps).with_suffix("").as_posix(): Stamp(picture, _captions(picture.with_suffix(".txt")))
        for picture in sorted(stamps.rglob("*.png"))
        if picture.with_suffix(".txt").is_file()
    }


def _captions(file: Path) -> dict[str, str]:
    english, *others = file.read_text(encoding="utf-8").splitlines()
    pairs = (line.split(".utf8=", 1) for line in others if line)
    return {"en": english.strip()} | {language: caption.strip() for language, caption in pairs}


def prepare_stamps(package: Path, folder: Path) -> Path:
    """A captioning data set `stamps` in `folder`, of `png`, English `txt` and all languages as `json`; its `crude.yaml`
    is for cookers."""
    raw, stamps = folder / "raw", folder / "stamps"
    for key, stamp in find_stamps(package).items():
        target = raw / key
        target.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(stamp.picture, f"{target}.png")
        Path(f"{target}.txt").write_text(stamp.captions["en"], encoding="utf-8")
        Path(f"{target}.json").write_text(json.dumps(stamp.captions), encoding="utf-8")
    fields = ("--field-map", "image=png,caption=txt", "--max-samples", 50, "--same-parts", "--follow-links")
    bridge_data("convert", raw, stamps, "--non-interactive", "--no-progress", *fields)
    crude = ("--force-overwrite", "--dataset-config", "crude.yaml", "--sample-type", "CrudeWebdataset")
    bridge_data("prepare", stamps, "--non-interactive", "--split-ratio", "1,0,0", "--no-progress", *crude)
    return stamps


def prepare_voices(package: Path, folder: Path, language: str) -> Path:
    """A data set `voices` in `folder` of the captions spoken in one language, as auxiliary data: only `ogg`."""
    stamps = package / STAMPS
    samples = (
        {"__key__": spoken.relative_to(stamps).with_suffix("").as_posix(), "ogg": spoken.read_bytes()}
        for spoken in sorted(stamps.rglob(f"*_desc_{language}.ogg"))
    )
    voices = write_shards(folder / "voices", samples, per_shard=200)
    bridge_data("prepare", voices, "--non-interactive", "--split-ratio", "1,0,0", "--no-progress")
    return voices
