"""How what a processor of transformers makes of several conversations becomes one batch or pack: found by trying it.

Reads the outputs for two conversations alone, for a batch of them, and for one conversation with the images of both.
Returns for each output along which dimension items follow one another, and whether a batch has a row for each
conversation. An output for which no way gives what the processor itself makes, such as indexes into the pixels of all
images, is joined with no other.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bridge_data.encoders.sequences import Media
from bridge_data.errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """`by_rows`: a batch has an entry for each conversation, rather than for each image. `dim` is where items follow
    one another, in what one conversation has (without the dimension of rows). `pads`: items of different shapes are
    padded with `fill` to one."""

    by_rows: bool = False
    dim: int = 0
    pads: bool = True
    fill: int = 0

    def own(self, value: Tensor) -> Tensor:
        """What a sample has of the output for one conversation."""
        return value[0] if self.by_rows else value

    def in_sequence(self, parts: Sequence[Tensor]) -> Tensor:
        """The parts one after the other."""
        return torch.cat(self._evened(parts), dim=self.dim)

    def in_batch(self, parts: Sequence[Tensor | None]) -> Tensor:
        """The output for a batch of which row i has `parts[i]`."""
        some = [part for part in parts if part is not None]
        if not self.by_rows:
            return self.in_sequence(some)
        evened = iter(self._evened(some))
        rows = [None if part is None else next(evened).movedim(self.dim, 0) for part in parts]
        none = next(row for row in rows if row is not None)[:0]
        filled = [none if row is None else row for row in rows]
        return pad_sequence(filled, batch_first=True, padding_value=self.fill).movedim(1, self.dim + 1)

    def _evened(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The parts with the same shape except for dimension `dim`.

        Raises:
            _Uneven: if they are not, and nothing pads them.
        """
        shape = [max(sides) for sides in zip(*(part.shape for part in parts), strict=True)]
        evened = []
        for part in parts:
            wanted = [*shape[: self.dim], part.shape[self.dim], *shape[self.dim + 1 :]]
            if list(part.shape) == wanted:
                evened.append(part)
                continue
            if not self.pads:
                raise _Uneven(", ".join(str(tuple(one.shape)) for one in parts))
            filled = part.new_full(wanted, self.fill)
            filled[tuple(slice(side) for side in part.shape)] = part
            evened.append(filled)
        return evened

    def fits(self, parts: Sequence[Tensor], batch: Media | None, together: Media, name: str) -> bool:
        """Whether the output `name` is joined this way, of a batch and of a conversation with all images. Of the latter
        alone if there is no batch; outputs for images alone need not be those that one conversation has of them."""
        own = [self.own(part) for part in parts]
        if batch is not None and not _equal(self.in_batch(own), batch.get(name)):
            return False
        if batch is not None and not self.by_rows:
            return True
        whole = together.get(name)
        return whole is not None and _equal(self.in_sequence(own), self.own(whole))


class _Uneven(Exception):
    """Items have different shapes, and nothing pads them."""


def _equal(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.dtype == other.dtype and torch.equal(one, other)


USUAL = Way()

_ALONE = "use batch_size=1 (or micro_batch_size=1) without packing, or write a task encoder"
"""The way out for outputs that cannot be joined."""


class Joining:
    """The ways of all outputs of the processor of `owner`."""

    def __init__(self, owner: str, ways: Mapping[str, Way | None]) -> None:
        self._owner, self._ways = owner, ways

    def and_found(self, alone: Sequence[Media], batch: Media | None, together: Media, *, pads: bool) -> "Joining":
        """Also with the ways of what is here: the outputs for two conversations, for a batch of them (None: the
        processor makes no batches), and for one conversation with all their images or videos. `pads`: these were of
        different sizes; else the processor fails with such.

        Raises:
            ValueError: if an output is joined otherwise than those known before.
        """
        ways = dict(self._ways)
        for name in alone[0].keys() & alone[1].keys():
            parts = [media[name] for media in alone]
            fills = (0, 1, -1) if pads else (0,)
            ways_of = itertools.product(_possible(parts), fills)
            possible = (dataclasses.replace(way, pads=pads, fill=fill) for way, fill in ways_of)
            found = next((way for way in possible if way.fits(parts, batch, together, name)), None)
            if ways.setdefault(name, found) != found:
                raise ValueError(f"it makes {name} of images, too, which follow one another in another way")
        return Joining(self._owner, ways)

    def own(self, name: str, value: Tensor) -> Tensor:
        """What a sample has of the output `name` for one conversation."""
        return (self._ways.get(name, USUAL) or USUAL).own(value)

    def in_sequence(self, rows: Sequence[Media]) -> Media:
        """The media of one sequence, from those of its samples. Raises as `in_batch`."""
        made = {}
        for name, way in self._of(rows):
            with self._named(name):
                made[name] = way.in_sequence([row[name] for row in rows if name in row])
        return made

    def in_batch(self, rows: Sequence[Media]) -> Media:
        """The media of a batch, from those of its rows.

        Raises:
            ConfigError: if an output cannot be joined.
        """
        made = {}
        for name, way in self._of(rows):
            with self._named(name):
                made[name] = way.in_batch([row.get(name) for row in rows])
        return made

    @contextlib.contextmanager
    def _named(self, name: str) -> Iterator[None]:
        try:
            yield
        except _Uneven as error:
            raise ConfigError(
                f"{self._owner}: its {name} of several samples have the shapes {error}, of which it makes no batches; "
                f"set one size or number of frames by processor_options, or {_ALONE}"
            ) from error

    def _of(self, rows: Sequence[Media]) -> Iterator[tuple[str, Way]]:
        names = dict.fromkeys(name for row in rows for name in row)
        by_rows = [name for name in names if (self._ways.get(name) or USUAL).by_rows]
        for name in (*(name for name in names if name not in by_rows), *by_rows):
            way = self._ways.get(name, USUAL)
            if way is None and sum(name in row for row in rows) > 1:
                raise ConfigError(
                    f"{self._owner}: its {name} of several samples is not that of each, one "
                    "after the other, so they cannot be packed or batched after processing; use batch_size=1 (or "
                    "micro_batch_size=1) without packing, or write a task encoder"
                )
            yield name, way or USUAL


def _possible(parts: Sequence[Tensor]) -> Iterator[Way]:
    """The ways in which an output for conversations, one of which has two images, could be joined."""
    num_dims = parts[0].ndim
    if any(part.ndim != num_dims for part in parts):
        return
    has_rows = num_dims > 1 and all(len(part) == 1 for part in parts)
    if has_rows:
        yield from (Way(by_rows=True, dim=dim) for dim in range(num_dims - 1))
    yield from (Way(dim=dim) for dim in range(has_rows, num_dims))
