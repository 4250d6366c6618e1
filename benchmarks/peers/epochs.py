"""The common code of loaders with the interface of torch's `DataLoader`."""

from collections.abc import Callable, Iterator
from typing import Any

import measure
import work


class EpochLoader(measure.Loader):
    """The loader that `make` makes, epoch after epoch; packs are made of its samples.

    `settings` are what was chosen for the library, but for what is the same for all.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        dataset: Any,
        workload: str,
        workers: int,
        settings: dict[str, Any],
        collate: Callable[[Any], Any] | None = None,
        **order: Any,
    ) -> None:
        self._packs, self._size = workload == "chat", work.BATCH_SIZES[workload]
        self._loader = make(
            dataset,
            batch_size=work.PACKING_BUFFER if self._packs else self._size,
            num_workers=workers,
            collate_fn=collate or (work.packed_buffer if self._packs else work.stacked),
            persistent_workers=workers > 0,
            drop_last=True,
            **order,
        )
        self.settings = settings | {
            "decoder": "Pillow",
            "batch_size": self._size,
            "prefetch": "2 batches a worker (default)",
        }

    def __iter__(self) -> Iterator[Any]:
        batches = self._epochs()
        return work.batches_of((pack for packs in batches for pack in packs), self._size) if self._packs else batches

    def _epochs(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def save(self) -> Any:
        return self._loader.state_dict()

    def restore(self, state: Any) -> None:
        self._loader.load_state_dict(state)
