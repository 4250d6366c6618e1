"""The random generators that hooks share with the process in which they run: those of Python, numpy and torch (on the
CPU), seeded for a hook. The caller's states are restored afterwards.

numpy takes 60 µs each to return its state and to set it: together a quarter of the time that a batch of 32 short texts
takes. So the words of its state are copied as memory, which takes 1 µs.
"""

import ctypes
import random
from typing import Any, NamedTuple

import numpy as np

from bridge_data.later import torch

_STATE_BYTES = 625 * 4
"""624 words and the number of those taken, as in `mt19937_state` of numpy."""


def seed_generators(key: int) -> None:
    """Seed Python's, numpy's and torch's CPU generators."""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key & 0x7FFFFFFFFFFFFFFF)


class Generators:
    """A snapshot of the states of Python's, numpy's and torch's CPU generators."""

    def __init__(self) -> None:
        self._python, self._numpy, self._torch = random.getstate(), _numpy.snapshot(), torch.get_rng_state()

    def restore(self) -> None:
        """Set them as they were."""
        random.setstate(self._python)
        _numpy.restore(self._numpy)
        torch.set_rng_state(self._torch)


class _Snapshot(NamedTuple):
    """The state of numpy's generator: its words, and the second normal number of a pair if only the first was drawn; or
    what numpy returns as the state of another kind of generator."""

    words: bytes
    normal: float | None = None
    other: Any = None


class _NumpyGenerator:
    """numpy's global generator."""

    def __init__(self) -> None:
        self._generator: Any = None
        self._address = 0

    def snapshot(self) -> _Snapshot:
        """The state now."""
        self._find()
        if not self._address:
            return _Snapshot(b"", None, np.random.get_state(legacy=False))
        words = self._words()
        normal = np.random.standard_normal()  # draws words, unless the second of a pair is there
        found = _Snapshot(words, normal if self._words() == words else None)
        self.restore(found)
        return found

    def restore(self, snapshot: _Snapshot) -> None:
        """Set the state that `snapshot` returned."""
        self._find()
        if snapshot.other is not None:
            np.random.set_state(snapshot.other)
        elif snapshot.normal is not None or not self._address:
            *key, taken = np.frombuffer(snapshot.words, dtype=np.uint32).tolist()
            waits = snapshot.normal is not None
            np.random.set_state(("MT19937", key, taken, int(waits), snapshot.normal or 0.0))
        else:
            np.random.seed(0)  # drops the second normal number of a pair
            with self._generator.lock:
                ctypes.memmove(self._address, snapshot.words, _STATE_BYTES)

    def _words(self) -> bytes:
        return ctypes.string_at(self._address, _STATE_BYTES)

    def _find(self) -> None:
        """Note where the generator has its state; nowhere if it is of another kind than numpy makes."""
        generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
        if generator is self._generator:
            return
        self._generator, self._address = generator, 0
        if type(generator) is np.random.MT19937:
            address, known = generator.ctypes.state_address, generator.state["state"]
            words = np.frombuffer(ctypes.string_at(address, _STATE_BYTES), dtype=np.uint32).tolist()
            if words == [*known["key"].tolist(), known["pos"]]:
                self._address = address


_numpy = _NumpyGenerator()
