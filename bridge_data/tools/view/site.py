"""What one `bridge-data view` shows: data, batches, a run; each opened when it is first looked at."""

import functools
import threading
from collections.abc import Callable
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.tools.view.catalog import DataCatalog
from bridge_data.tools.view.named_runs import NamedRun
from bridge_data.tools.view.trainer_batches import BatchSequence


class Site:
    """What there is to look at. `open_run` opens the data of the run when batches are asked for (None: there are no
    batches to show); they begin at `state`, if it is given."""

    def __init__(
        self, catalog: DataCatalog, open_run: Callable[[], NamedRun] | None, state: dict[str, Any] | None = None
    ) -> None:
        self.catalog = catalog
        self._open_run, self._state = open_run, state
        self._opening = threading.RLock()

    @property
    def title(self) -> str:
        """What is looked at."""
        return str(self.catalog.path)

    @property
    def parts(self) -> list[str]:
        """The names of the split parts."""
        return self.catalog.part_names

    @property
    def pages(self) -> list[tuple[str, str]]:
        """(name, address) of the pages."""
        found = [("Samples", "/samples"), ("Blend", "/blend"), ("Sizes", "/shapes")]
        return [*found, *([] if self._open_run is None else [("Batches", "/batches")])]

    @property
    def run(self) -> NamedRun:
        """The data of the run. Raises a ConfigError if there is none, or it cannot be opened."""
        with self._opening:
            return self._run

    @property
    def batches(self) -> BatchSequence:
        """The batches of the run."""
        with self._opening:
            return self._batches

    @property
    def batches_from(self) -> str:
        """A sentence about the batches."""
        start = "" if self._state is None else f" They begin at the state, with number {self.batches.first:,}."
        return self.run.told + start

    @functools.cached_property
    def _run(self) -> NamedRun:
        if self._open_run is None:
            raise ConfigError("there are no batches to show; give --config")
        return self._open_run()

    @functools.cached_property
    def _batches(self) -> BatchSequence:
        return BatchSequence(self._run.dataset, self._state)
