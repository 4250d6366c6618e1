"""Task encoders that the tests of `bridge-data prepare --costs` name."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from bridge_data import DefaultTaskEncoder, EnergonMultiModalDataModule, SkipSample
from bridge_data.encoders import FamilyConfig, QwenVLTaskEncoder
from tests.encoders.qwen_parts import make_family, qwen_tokenizer


def qwen() -> QwenVLTaskEncoder:
    config = FamilyConfig(pad_to_multiple_of=4)
    return QwenVLTaskEncoder(qwen_tokenizer("qwen2_vl"), make_family("qwen2_vl"), config, seq_length=256)


def module() -> EnergonMultiModalDataModule:
    """A run over the data at `$BRIDGE_DATA_TEST_PATH`, of which `where` chooses some."""
    return EnergonMultiModalDataModule(
        path=os.environ["BRIDGE_DATA_TEST_PATH"],
        task_encoder=Words(),
        micro_batch_size=2,
        seq_length=64,
        num_workers=0,
        where="index % 2 = 0",
        image_decode="pil",
    )


class Words(DefaultTaskEncoder[Any, Any, Any, Any]):
    """The text of a sample, a number, as so many letters; each ninth sample is skipped, each sixth in two parts."""

    def preencode_sample(self, sample: Any) -> Iterator[Any]:
        number = int(sample.text)
        stop = os.environ.get("BRIDGE_DATA_TEST_STOP")
        if stop and number >= int(stop):
            os._exit(9)
        if number % 9 == 0:
            raise SkipSample(f"sample {sample.__key__!r} is {number}")
        for part in range(2 if number % 6 == 0 else 1):
            yield {"tokens": "x" * number, "part": part}

    def postencode_sample(self, sample: Any) -> Any:
        raise AssertionError("it is not needed to measure")

    def costs(self, sample: Any) -> Mapping[str, int]:
        return {**super().costs(sample), "second": sample["part"]}


class Broken(DefaultTaskEncoder[Any, Any, Any, Any]):
    def encode_sample(self, sample: Any) -> Any:
        raise ValueError("no")


def expected(number: int) -> list[list[int]]:
    """The costs of the parts of a sample, second and tokens."""
    if number % 9 == 0:
        return []
    return [[number, part] for part in range(2 if number % 6 == 0 else 1)]
