"""What a usual job does: images, a blend, packs, JSONL, 0 and 2 workers, save, resume, 2 to 3 ranks, validation, the
data module. It needs no plug-in.

python -m tests.usual_job            runs it; exits 0 if every step came out right
python -m tests.usual_job --trace    counts what of the package is entered, from opening to a batch, a save, a restore
"""

import collections
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import bridge_data
from bridge_data import (
    CaptioningSample,
    Cooker,
    DefaultTaskEncoder,
    SavableDataLoader,
    ShardWriter,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    load_states,
    merge_states,
    save_states,
    stateless,
)

PACKAGE = Path(bridge_data.__file__).parent
NUM_SAMPLES = 400
SHUFFLE = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 100}

BLEND = """\
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: ./images, weight: 3}
      - {path: ./images, weight: 1, subflavors: {again: true}}
  val:
    path: ./images
    split_part: val
"""


class Packs(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Packs of three samples, each of whose tokens is the number of its sample; a batch is the numbers in each pack."""

    @stateless
    def encode_sample(self, sample: CaptioningSample) -> dict[str, Any]:
        number = int(sample.__key__.rpartition("/")[2])
        return {"tokens": torch.full((4 + number % 5,), number)}

    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> dict[str, Any]:
        return {"tokens": torch.cat([sample["tokens"] for sample in samples])}

    @stateless
    def batch(self, packs: list[Any]) -> list[list[int]]:
        return [pack["tokens"].unique().tolist() for pack in packs]


class Lines(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Texts out of lines of JSON."""

    cookers = [Cooker(stateless(lambda line: TextSample(**basic_sample_keys(line), text=line["json"]["text"])))]  # noqa: RUF012


def write_images(folder: Path) -> None:
    """A data set of captioned images: three quarters for training, one for validation."""
    with ShardWriter(
        str(folder),
        split={"train": 3, "val": 1},
        split_by="shard",
        max_samples=50,
        sample_type=CaptioningSample,
        field_map={"image": "jpg", "caption": "txt"},
    ) as writer:
        for number in range(NUM_SAMPLES):
            jpeg = io.BytesIO()
            Image.new("RGB", (48, 32), (number % 256, 90, 30)).save(jpeg, "JPEG")
            writer.write({"__key__": f"{number:06d}", "jpg": jpeg.getvalue(), "txt": f"caption {number}"})


def image_loader(folder: Path, num_workers: int) -> SavableDataLoader:
    """Batches of 4 images for training."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
    return get_savable_loader(get_train_dataset(folder / "images", worker_config=config, batch_size=4, **SHUFFLE))


def keys_of(batches: Any, count: int) -> list[list[str]]:
    """The keys in the next `count` batches."""
    return [batch.__key__ for batch in itertools.islice(batches, count)]


def resume_without_workers(folder: Path) -> None:
    """What two workers save goes on, without a worker, with the batches that follow."""
    with image_loader(folder, 2) as loader:
        batches = iter(loader)
        keys_of(batches, 30)
        state = json.loads(json.dumps(loader.save_state_rank()))
        expected = keys_of(batches, 20)
    with image_loader(folder, 0) as loader:
        loader.restore_state_rank(state)
        assert keys_of(iter(loader), 20) == expected


def pack_loader(folder: Path, rank: int, world_size: int, num_workers: int) -> SavableDataLoader:
    """One pass over the data, in packs."""
    config = WorkerConfig(rank=rank, world_size=world_size, num_workers=num_workers, num_lanes=12)
    dataset = get_train_dataset(
        folder / "images",
        worker_config=config,
        batch_size=2,
        packing_buffer_size=24,
        task_encoder=Packs(),
        repeat=False,
        **SHUFFLE,
    )
    return get_savable_loader(dataset)


def go_on_with_another_rank(folder: Path) -> None:
    """Two ranks save a checkpoint, three go on with it: each sample comes once."""
    seen: collections.Counter[int] = collections.Counter()
    states = []
    for rank, num_workers in enumerate((0, 2)):
        with pack_loader(folder, rank, 2, num_workers) as loader:
            for batch in itertools.islice(loader, 9):
                seen.update(itertools.chain.from_iterable(batch))
            states.append(loader.save_state_rank())
    save_states(folder / "checkpoint", states, step=9, world_size=2)
    assert load_states(folder / "checkpoint") == merge_states(states)
    for rank in range(3):
        with pack_loader(folder, rank, 3, 0) as loader:
            loader.restore_state_rank(load_states(folder / "checkpoint"))
            for batch in loader:
                seen.update(itertools.chain.from_iterable(batch))
    assert len(seen) == seen.total() == NUM_SAMPLES * 3 // 4, seen.most_common(2)


def validate(folder: Path) -> None:
    """A pass of validation is whole, without workers and with them."""
    for num_workers in (0, 2):
        config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
        with get_loader(get_val_dataset(folder / "blend.yaml", worker_config=config, batch_size=8)) as loader:
            assert sum(len(batch.__key__) for batch in loader) == NUM_SAMPLES // 4


def read_lines(folder: Path) -> None:
    """A JSONL file is prepared by the command and read by a cooker."""
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": f"hello {number}"}) + "\n" for number in range(300)))
    command = [sys.executable, "-m", "bridge_data.cli", "prepare", str(file), "--non-interactive"]
    subprocess.run(command, check=True, capture_output=True)
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_val_dataset(file, split_part="train", worker_config=config, batch_size=8, task_encoder=Lines())
    assert sum(len(batch.text) for batch in get_loader(dataset)) == 300


def data_module(folder: Path) -> Any:
    """The blend as a trainer has it, with one worker; here, as what workers import needs no Lightning."""
    return bridge_data.EnergonMultiModalDataModule(
        path=str(folder / "blend.yaml"),
        tokenizer=None,
        micro_batch_size=2,
        global_batch_size=4,
        num_workers=1,
        task_encoder=DefaultTaskEncoder(),
        **SHUFFLE,
    )


def train_by_the_data_module(folder: Path) -> None:
    """The loaders of a data module save, validate and resume."""
    module = data_module(folder)
    batches = iter(module.train_dataloader())
    keys_of(batches, 8)
    state = module.train_dataloader().save_state()
    expected = keys_of(batches, 1)
    next(iter(module.val_dataloader()))
    module = data_module(folder)
    module.train_dataloader().restore_state(state)
    assert keys_of(iter(module.train_dataloader()), 1) == expected


STEPS = (resume_without_workers, go_on_with_another_rank, validate, read_lines, train_by_the_data_module)


class Trace:
    """Counts the calls of functions of the package, by phase."""

    def __init__(self) -> None:
        self._calls: dict[str, collections.Counter[types.CodeType]] = {}

    def begin(self, phase: str) -> None:
        """Count from here on as `phase`."""
        calls = self._calls[phase] = collections.Counter()
        root = f"{PACKAGE}{os.sep}"

        def note(frame: types.FrameType, event: str, _: Any) -> None:
            code = frame.f_code
            if event == "call" and code.co_filename.startswith(root) and code.co_name != "<module>":
                calls[code] += 1

        sys.setprofile(note)

    def end(self) -> None:
        """Count no more, and print what was counted."""
        sys.setprofile(None)
        for phase, calls in self._calls.items():
            files = {code.co_filename for code in calls}
            print(f"{phase:12}  files {len(files):3}  functions {len(calls):4}  calls {calls.total():6}")
        print("modules of bridge_data:", sum(name.startswith("bridge_data") for name in sys.modules))


def trace(folder: Path) -> None:
    """Print how much of the package a job without workers enters."""
    counted = Trace()
    counted.begin("open")
    batches = iter(loader := image_loader(folder, 0))
    next(batches)
    counted.begin("next batch")
    next(batches)
    counted.begin("18 batches")
    keys_of(batches, 18)
    counted.begin("warm batch")
    next(batches)
    counted.begin("save")
    state = loader.save_state_rank()
    counted.begin("open again")
    again = image_loader(folder, 0)
    counted.begin("restore")
    again.restore_state_rank(state)
    counted.end()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder / "images")
        (folder / "blend.yaml").write_text(BLEND)
        if "--trace" in sys.argv:
            trace(folder)
            return
        with image_loader(folder, 1) as kept:
            assert kept.wait_for_workers()  # while it is open, others share the process that starts its workers
            for step in STEPS:
                step(folder)
    print("usual job: right")


if __name__ == "__main__":
    main()
