"""Packs: how the samples of a lane become packed samples, if `packing_buffer_size` is set.

Enters: items, as the cursor draws them, until the packing buffer is full. Leaves: packs, as the encoder chose them.
Guarantee: no sample is lost or packed twice; the members of a pack are chosen once, and are the same after a restore.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Protocol, TypeAlias

from bridge_data.errors import ConfigError, FatalSampleError
from bridge_data.lanes.work import PACK, UNREAD, Item, Work, mark
from bridge_data.order import Cursor
from bridge_data.order.pending import Pending
from bridge_data.task import hook_of, is_overridden


@dataclasses.dataclass(slots=True, eq=False)
class Pack:
    """A packed sample with its items; `num_samples` are left, as `postencode_sample` may have skipped some."""

    items: list[Item]
    sample: Any = UNREAD
    num_samples: int = 0


Unit: TypeAlias = Item | Pack
"""What micro-batches are made of."""


class PackHooks:
    """The packing hooks of the encoder of `work`."""

    def __init__(self, work: Work) -> None:
        self._work, self._encoder = work, work.hooks.encoder
        self._postencodes = is_overridden(self._encoder, "postencode_sample")

    def select(self, items: list[Item]) -> tuple[list[list[Item]], list[Item]]:
        """(packs, items in none of them) from a buffer of items."""
        samples = [item.sample for item in items]
        hook, key = hook_of(self._encoder, "select_samples_to_pack"), self._work.first_key(items[0])
        chosen = self._work.hooks.run("select_samples_to_pack", hook, list(samples), key, len(items))
        if not chosen:
            return [], []
        free = {id(sample): item for sample, item in zip(samples, items, strict=True)}
        try:
            packs = [[free.pop(id(sample)) for sample in pack] for pack in chosen[0]]
        except TypeError:
            raise FatalSampleError(
                f"{type(self._encoder).__name__}.select_samples_to_pack returned an object of type "
                f"{type(chosen[0]).__name__}; it must return a list of lists of samples"
            ) from None
        except KeyError:
            raise FatalSampleError(
                f"{type(self._encoder).__name__}.select_samples_to_pack returned a sample twice, or one that is not "
                "among the samples it was given; it must return those very objects, each at most once"
            ) from None
        return [pack for pack in packs if pack], list(free.values())

    def pack(self, items: list[Item]) -> Pack | None:
        """The packed sample of some items; None if nothing of it is left."""
        members = [(item, sample) for item in items for sample in self.members(item)]
        if not members:
            return None
        kept, samples = [item for item, _ in members], [sample for _, sample in members]
        hook, key = hook_of(self._encoder, "pack_selected_samples"), self._work.first_key(kept[0])
        packed = self._work.hooks.run("pack_selected_samples", hook, samples, key, len(kept))
        if len(packed) > 1:
            raise ConfigError(
                f"pack_selected_samples of {type(self._encoder).__name__} made {len(packed)} samples of one pack, "
                "which a resume could not distinguish; have select_samples_to_pack return a pack for each"
            )
        if not packed:
            return None
        unit = Pack(items, packed[0], len(set(map(id, kept))))
        mark(packed[0], (PACK, *self._work.keys_of([unit])))
        return unit

    def members(self, item: Item) -> list[Any]:
        """What `pack_selected_samples` gets for an item."""
        if not self._postencodes:
            return [item.sample]
        hook, began_ns = hook_of(self._encoder, "postencode_sample"), time.perf_counter_ns()
        made = self._work.hooks.run("postencode_sample", hook, item.sample, self._work.first_key(item))
        self._work.note_time(item.ref, began_ns)
        return made


class ItemStream(Protocol):
    """The items of a lane."""

    def next_item(self, num_missing: int = 1) -> Item:
        """The next part of a sample; the work on the `num_missing` next ones is started together."""

    def read(self, item: Item) -> bool:
        """Ensure that the item's payload is in memory; False if the sample is skipped when read again."""

    def keep(self, what: str) -> None:
        """Count one of `what` that was kept."""

    def leave_out(self, what: str) -> None:
        """Count one of `what` that a hook skipped."""


class LanePacks:
    """The packs of one lane, made from buffers of `buffer_size` items. For a restored lane, `pending` is what it has
    drawn and not emitted yet, and `base` the state of `cursor` from which its draws are counted."""

    def __init__(
        self, work: Work, buffer_size: int, cursor: Cursor, pending: Pending[Item, Unit], base: dict[str, Any] | None
    ) -> None:
        self._hooks, self._encoder = PackHooks(work), type(work.hooks.encoder).__name__
        self._buffer_size, self._cursor, self._pending, self._base = buffer_size, cursor, pending, base
        self._chosen: dict[str, Any] | None = None  # the packs chosen from the buffer, as states keep them

    def next(self, items: ItemStream) -> Pack:
        """The next pack; `StopIteration` at the end of the data."""
        while True:
            while not self._pending.packs:
                self._fill(items)
            pack = self._made(self._pending.packs.popleft(), items)
            if pack is not None:
                items.keep("packs")
                return pack
            items.leave_out("packs")

    def read(self, pack: Pack, items: ItemStream) -> bool:
        """Ensure that a pack is in memory, after a restore too; False if nothing of it is left."""
        if pack.sample is UNREAD and (made := self._made(pack.items, items)) is not None:
            pack.sample, pack.num_samples = made.sample, made.num_samples
        return pack.sample is not UNREAD

    def _made(self, members: list[Item], items: ItemStream) -> Pack | None:
        read = [item for item in members if items.read(item)]
        return self._hooks.pack(read) if read else None

    def _fill(self, items: ItemStream) -> None:
        """Fill the packing buffer, first with what the last one left over, and choose packs from it."""
        pending = self._pending
        self._base = self._cursor.state()
        buffer = [item for item in pending.carried if items.read(item)]
        pending.carried, self._chosen = [], None
        at_end = False
        try:
            while len(buffer) < self._buffer_size:
                item = items.next_item(self._buffer_size - len(buffer))
                if items.read(item):
                    buffer.append(item)
        except StopIteration:
            at_end = True
            if not buffer:
                raise
        packs, pending.carried = self._hooks.select(buffer)
        if not packs and pending.carried:
            if not at_end:
                raise FatalSampleError(
                    f"select_samples_to_pack of {self._encoder} formed no pack out of a "
                    f"full buffer of {len(buffer)} samples. Return a sample that fits nowhere as a pack of its own, "
                    "or raise SkipSample for it before packing."
                )
            packs, pending.carried = [[item] for item in pending.carried], []
        pending.packs.extend(packs)
        if packs:
            items.keep("packing buffers")
        else:
            items.leave_out("packing buffers")

    def encoded(self) -> dict[str, Any]:
        """What is pending, as a state keeps it. Packs are encoded once, when they are chosen."""
        base, pending = self._base, self._pending
        first = self._cursor.draws if base is None else base["draws"]
        if self._chosen is None:
            self._chosen = Pending(carried=pending.carried, packs=pending.packs).encode(first)
        others: Pending[Item, Unit] = Pending(queue=pending.queue, buckets=pending.buckets, open=pending.open)
        encoded = {**others.encode(first), **self._chosen}
        if pending.packs:
            encoded["packs"] = self._chosen["packs"][-len(pending.packs) :]
        else:
            encoded.pop("packs", None)
        return encoded if base is None else {**encoded, "base": base}
