"""Task encoders of which it is known where they spend their time, and things that are none."""

import hashlib
from typing import Any

from bridge_data import DefaultTaskEncoder, TextSample, cooker, stateless
from bridge_data.samples import CrudeSample
from bridge_data.task import Cooker, Packing


def work_hard() -> None:
    """Take a thousand times as long as reading a short text."""
    for _ in range(50):
        hashlib.sha256(bytes(100_000)).digest()


class Hashing(DefaultTaskEncoder):
    """Works hard to encode a sample."""

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        work_hard()
        return sample


class OnlyOdd(DefaultTaskEncoder):
    """Works hard for texts that begin with an `o`, draws random numbers for none."""

    def encode_sample(self, sample: TextSample) -> TextSample:
        if sample.text.startswith("o"):
            work_hard()
        return sample


def _one(sample: TextSample) -> int:
    return 1


class Packed(DefaultTaskEncoder):
    """Packs texts, all as long as each other."""

    select_samples_to_pack = Packing(length=_one, capacity=4, overlong="drop")

    @stateless
    def pack_selected_samples(self, samples: list[TextSample]) -> TextSample:
        work_hard()
        return samples[0]


@stateless
@cooker
def cook(sample: CrudeSample) -> TextSample:
    work_hard()
    return TextSample(__key__=sample["__key__"], text=sample["txt"])


class Cooked(DefaultTaskEncoder):
    """Works hard to cook."""

    cookers = (Cooker(cook),)


def make() -> Hashing:
    return Hashing()


def needs(argument: int) -> Hashing:
    return Hashing()


ready = Hashing()
number = 3
