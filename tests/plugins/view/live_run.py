"""A run that goes on while it is looked at."""

import dataclasses
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from bridge_data import DefaultTaskEncoder, SkipSample, WorkerConfig, get_savable_loader, get_train_dataset, stateless
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader import SavableDataLoader
from bridge_data.loader.checkpoint import save_states
from bridge_data.plugins.view.data_catalog import DataCatalog
from bridge_data.plugins.view.pages import Site
from bridge_data.plugins.view.shown_run import SavedRunReader, ShownRun
from tests.plugins.view.conftest import client
from tests.prepared import write_blend, write_texts


class Packs(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Leaves samples out, and packs the others by three or less."""

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if sample.text.endswith("7"):
            raise SkipSample
        return sample

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return dataclasses.replace(samples[0], __key__=",".join(sample.__key__ for sample in samples))


class LiveRun:
    """A run in `folder`, of two micro-batches a step, with a ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in "ab":
            write_texts(folder.parent / name, 120)
        self.data = write_blend(folder.parent / "blend.yaml", {"a": 2, "b": 1})
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.yaml").write_text("data: {path: blend.yaml}\n")
        self.keys: list[list[str]] = []
        """The keys of each micro-batch."""
        self._loader: SavableDataLoader = get_savable_loader(self.dataset(), ledger_path=folder / "ledger")
        self._batches = iter(self._loader)

    def dataset(self, num_lanes: int = 4) -> LaneDataset:
        """What it trains on."""
        return get_train_dataset(
            self.data,
            worker_config=WorkerConfig(0, 1, 0, num_lanes=num_lanes),
            batch_size=2,
            packing_buffer_size=8,
            shuffle_buffer_size=20,
            max_samples_per_sequence=10,
            task_encoder=Packs(),
        )

    def step_keys(self, step: int) -> list[str]:
        """The keys of a step."""
        return [*self.keys[2 * step], *self.keys[2 * step + 1]]

    def train(self, num_steps: int) -> None:
        """Go on."""
        for _ in range(2 * num_steps):
            self.keys.append([key for row in next(self._batches).__key__ for key in row.split(",")])

    def save(self, num_steps: int = 0) -> Path:
        """Save a checkpoint, which writes the ledger, too; after so many more steps."""
        self.train(num_steps)
        step = len(self.keys) // 2
        folder = self.folder / f"checkpoints/iter_{step:07d}"
        save_states(folder, self._loader.save_state_rank(), step=step, world_size=1)
        return folder

    def page(self) -> TestClient:
        """The pages of its folder, from now on."""
        run = ShownRun(path=str(self.data), dataset=self.dataset(), schedule=BatchSchedule(4, 2), summary="As it is.")
        return client(Site(DataCatalog(self.data, {}), lambda _: run, SavedRunReader(self.folder).read))
