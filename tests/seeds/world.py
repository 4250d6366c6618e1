"""What the documents only name: data sets, folders and files, really made; and the running of a snippet among them."""

import contextlib
import dataclasses
import io
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import webdataset as wds
from click.testing import CliRunner
from PIL import Image

from bridge_data import SavableDataLoader
from bridge_data.cli import main
from tests.prepared import write_dataset

CAPTIONED = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "jpg", "caption": "txt"},
}
ROOT = Path(__file__).parents[2]

IMPORT = "from megatron.energon", "from bridge_data.energon"
"""The one line of a snippet that may change, beside placeholders."""


@dataclasses.dataclass(frozen=True)
class Snippet:
    """A piece of code of a document, and the line it begins on."""

    document: str
    line: int
    text: str

    @property
    def first(self) -> str:
        """Its first line."""
        return self.text.partition("\n")[0].strip()

    def __str__(self) -> str:
        return f"{self.document}:{self.line} {self.first}"


class EnoughTraining(Exception):
    """Ends the endless loop of a snippet."""


class Training:
    """Stands for the training step: keeps the batches it is given and ends after `num_batches`."""

    def __init__(self, num_batches: int) -> None:
        self.batches: list[Any] = []
        self._num_batches = num_batches

    def __call__(self, batch: Any) -> None:
        self.batches.append(batch)
        if len(self.batches) == self._num_batches:
            raise EnoughTraining


def captioned(seed: int, num_samples: int) -> list[dict[str, Any]]:
    """Small JPEGs of various sizes with their captions, as text and in JSON."""
    chance = random.Random(seed)
    samples = []
    for number in range(num_samples):
        size = chance.randint(8, 24), chance.randint(8, 24)
        content = io.BytesIO()
        Image.effect_noise(size, 64).convert("RGB").save(content, "JPEG")
        caption = f"picture {seed}/{number} " + "of some noise " * chance.randint(1, 4)
        samples.append(
            {"__key__": f"{number:06d}", "jpg": content.getvalue(), "txt": caption, "json": {"caption": caption}}
        )
    return samples


def write_tars(pattern: Path, samples: list[dict[str, Any]], per_shard: int) -> None:
    """Tars that nobody has prepared."""
    pattern.parent.mkdir(parents=True, exist_ok=True)
    with wds.ShardWriter(str(pattern), maxcount=per_shard, verbose=0) as sink:
        for sample in samples:
            sink.write(sample)


def write_datasets(folder: Path) -> None:
    """Two prepared data sets, `coco` and `coyo`, each split into train, val and test."""
    for seed, name in enumerate(("coco", "coyo")):
        write_dataset(folder / name, captioned(seed, 100), per_shard=10, ratio="8,1,1", definition=CAPTIONED)


def python_of(snippet: Snippet, fill: Mapping[str, str]) -> str:
    """The snippet as it is run: with our import, its placeholders filled, and a training step for `pass`."""
    text = snippet.text.replace(*IMPORT).replace("'nccl'", "'gloo'")
    for placeholder, value in fill.items():
        assert placeholder in text, f"{snippet}: no {placeholder!r} to fill in"
        text = text.replace(placeholder, value)
    lines = [line[: -len("pass")] + "train(batch)" if line.strip() == "pass" else line for line in text.splitlines()]
    return "\n".join(lines) + "\n"


def run_python(snippet: Snippet, fill: Mapping[str, str], scope: dict[str, Any]) -> dict[str, Any]:
    """Run a snippet in `scope`, in which it leaves its names; the loaders it made are closed at the end of the test."""
    scope.setdefault("__name__", "__main__")
    with contextlib.suppress(EnoughTraining):
        exec(compile(python_of(snippet, fill), str(snippet), "exec"), scope)
    return scope


def close_loaders(scope: dict[str, Any]) -> None:
    """End the workers of every loader that is left in `scope`."""
    for value in scope.values():
        if isinstance(value, SavableDataLoader):
            value.close()


def answers_in(text: str) -> list[str]:
    """The answers of a dialogue: what follows the last colon of each line, without comments."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line.rpartition(": ")[2] for line in lines if ": " in line]


def ask(command: list[str], answers: list[str]) -> str:
    """Run `bridge-data` with the answers piped in; what it printed."""
    result = CliRunner().invoke(main, command, input="".join(f"{answer}\n" for answer in answers))
    assert result.exit_code == 0, result.output
    return result.output


def run_ranks(script: Path, num_ranks: int, folder: Path) -> None:
    """Run `script` as so many processes of one job, which see each other as torchrun would let them."""
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment = {**os.environ, **single, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.seeds.forked_ranks", str(script), str(num_ranks)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def take(loader: SavableDataLoader, num_batches: int) -> list[Any]:
    """The next batches of a loader."""
    return list(itertools.islice(loader, num_batches))
