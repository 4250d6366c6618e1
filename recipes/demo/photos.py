"""Real data for the demo: crops of photos that pip packages ship, with captions and with questions.

Writes two prepared data sets into an empty folder, and the YAML that blends them.

    captions/raw    caption000000.jpg + .txt      "a grey crop of the cat, from the top left, dark"
    captions/tars   the same, converted
    questions/...   question000000.jpg + .json    {"question": "Which photo is this from?", "answers": ["the cat"]}

The names of the files become the keys of the samples, so that a key says which data set it is from. Where a crop is
taken is a function of its number, so every machine makes the same data.
"""

import dataclasses
import importlib.util
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bridge_data.errors import DatasetError
from bridge_data.options import check_at_least

if TYPE_CHECKING:
    from PIL.Image import Image

PHOTOS = {
    "the astronaut": ("skimage", "data/astronaut.png"),
    "the cat": ("skimage", "data/chelsea.png"),
    "the coffee": ("skimage", "data/coffee.png"),
    "the galaxies": ("skimage", "data/hubble_deep_field.jpg"),
    "the motorcycle": ("skimage", "data/motorcycle_left.png"),
    "the retina": ("skimage", "data/retina.jpg"),
    "the rocket": ("skimage", "data/rocket.jpg"),
    "the cameraman": ("skimage", "data/camera.png"),
    "the moon": ("skimage", "data/moon.png"),
    "the grass": ("skimage", "data/grass.png"),
    "the temple": ("sklearn", "datasets/images/china.jpg"),
    "the flower": ("sklearn", "datasets/images/flower.jpg"),
}
COLOURS = {
    "black": (20, 20, 20),
    "grey": (128, 128, 128),
    "white": (235, 235, 235),
    "red": (190, 40, 40),
    "orange": (220, 130, 50),
    "brown": (120, 80, 50),
    "yellow": (220, 210, 90),
    "green": (70, 130, 60),
    "blue": (60, 90, 190),
    "pink": (220, 150, 170),
}
ROWS = ("top", "middle", "bottom")
COLUMNS = ("left", "centre", "right")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DemoDataConfig:
    """How many crops there are, and how many of them share a shard."""

    num_captions: int = 400
    num_questions: int = 240
    samples_per_shard: int = 40
    seed: int = 7

    def __post_init__(self) -> None:
        check_at_least(self, 1, *(field.name for field in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Crop:
    """One piece of a photo, and what can be said of it."""

    photo: str
    row: str
    column: str
    colour: str
    brightness: str
    image: "Image"

    @property
    def caption(self) -> str:
        """All of it in a sentence."""
        return f"a {self.colour} crop of {self.photo}, from the {self.row} {self.column}, {self.brightness}"

    @property
    def questions(self) -> list[tuple[str, str]]:
        """Questions with their answers."""
        return [
            ("Which photo is this from?", self.photo),
            ("Which part of the photo is this?", f"the {self.row} {self.column}"),
            ("What is the main colour?", self.colour),
        ]


def find_photos() -> dict[str, Path]:
    """The photos that are installed, by name.

    Raises:
        DatasetError: if a package that ships them is not installed.
    """
    found = {}
    for name, (package, file) in PHOTOS.items():
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            distribution = {"skimage": "scikit-image", "sklearn": "scikit-learn"}[package]
            raise DatasetError(f"the photo of {name} is part of {distribution}: pip install {distribution}")
        found[name] = Path(spec.submodule_search_locations[0]) / file
    missing = [str(path) for path in found.values() if not path.is_file()]
    if missing:
        raise DatasetError(f"these photos are missing from their packages: {', '.join(missing)}; reinstall them")
    return found


def crops(num_crops: int, seed: int) -> Iterator[Crop]:
    """`num_crops` crops; crop number i is the same for the same seed, however many there are."""
    from PIL import Image

    photos = {name: Image.open(path).convert("RGB") for name, path in find_photos().items()}
    names = list(photos)
    for number in range(num_crops):
        rng = random.Random(f"{seed}/{number}")
        name = rng.choice(names)
        photo = photos[name]
        side = int(min(photo.size) * rng.uniform(0.2, 0.45))
        left, top = rng.randrange(photo.width - side), rng.randrange(photo.height - side)
        pixels = rng.choice((40, 48, 56, 64))
        piece = photo.crop((left, top, left + side, top + side)).resize((pixels, pixels))
        mean = piece.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
        assert isinstance(mean, tuple)
        yield Crop(
            photo=name,
            row=ROWS[3 * (top + side // 2) // photo.height],
            column=COLUMNS[3 * (left + side // 2) // photo.width],
            colour=min(COLOURS, key=lambda c: sum((a - b) ** 2 for a, b in zip(COLOURS[c], mean, strict=True))),
            brightness="dark" if sum(mean) < 3 * 90 else "bright",
            image=piece,
        )


def make_demo_data(folder: Path, config: DemoDataConfig, tick: Callable[[str], None] = lambda what: None) -> Path:
    """Make and convert both data sets under `folder`; return the path of the blend. Complete data is kept."""
    blend = folder / "blend.yaml"
    recipe = json.dumps(dataclasses.asdict(config))
    if blend.is_file() and recipe in blend.read_text():
        return blend
    if folder.exists():
        shutil.rmtree(folder)
    _write_captions(folder / "captions" / "raw", config, tick)
    _write_questions(folder / "questions" / "raw", config, tick)
    fields = {"captions": '{"image": "jpg", "caption": "txt"}', "questions": _QUESTION_FIELDS}
    types = {"captions": "CaptioningSample", "questions": "VQASample"}
    for name in fields:
        tick(f"converting {name}")
        raw, tars = folder / name / "raw", folder / name / "tars"
        flags = ["--sample-type", types[name], "--field-map", fields[name], "--num-workers", "1", "--non-interactive"]
        flags += ["--split", "train=8,val=2", "--split-by", "shard", "--max-samples", str(config.samples_per_shard)]
        _bridge_data("convert", *flags, str(raw), str(tars))
    template = Path(__file__).with_name("blend.yaml")
    blend.write_text(f"# made for {recipe}\n{template.read_text()}")
    return blend


_QUESTION_FIELDS = '{"image": "jpg", "context": "json[question]", "answers": "json[answers]"}'


def _write_captions(folder: Path, config: DemoDataConfig, tick: Callable[[str], None]) -> None:
    folder.mkdir(parents=True)
    for number, crop in enumerate(crops(config.num_captions, config.seed)):
        crop.image.save(folder / f"caption{number:06d}.jpg", quality=92)
        (folder / f"caption{number:06d}.txt").write_text(crop.caption)
        tick("cutting crops with captions")


def _write_questions(folder: Path, config: DemoDataConfig, tick: Callable[[str], None]) -> None:
    folder.mkdir(parents=True)
    for number, crop in enumerate(crops(config.num_questions, config.seed + 1)):
        question, answer = random.Random(f"{config.seed}/{number}").choice(crop.questions)
        crop.image.save(folder / f"question{number:06d}.jpg", quality=92)
        (folder / f"question{number:06d}.json").write_text(json.dumps({"question": question, "answers": [answer]}))
        tick("cutting crops with questions")


def _bridge_data(*arguments: str) -> None:
    """Run the command line as a user would.

    Raises:
        DatasetError: with what it printed, if it fails.
    """
    command = [sys.executable, "-m", "bridge_data.cli", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise DatasetError(f"`bridge-data {' '.join(arguments)}` failed:\n{done.stdout}{done.stderr}")
