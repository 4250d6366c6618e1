"""The task encoder of the demo's changed run: that of the others, but it skips one sample.

The sample is skipped as user code may skip any. This must turn the demo's table red.
"""

from collections.abc import Iterator
from typing import Any

from bridge_data.encoders import FamilyTaskEncoder, Llava, TokenizedSample
from bridge_data.errors import SkipSample
from bridge_data.samples import Sample
from bridge_data.task import stateless


class SkippingTaskEncoder(FamilyTaskEncoder):
    """LLaVA's, without the sample of the key `skipped_key`."""

    def __init__(self, tokenizer: Any, family: Llava, *, seq_length: int, skipped_key: str) -> None:
        super().__init__(tokenizer, family, seq_length=seq_length)
        self.skipped_key = skipped_key

    @stateless
    def preencode_sample(self, sample: Sample) -> TokenizedSample | Iterator[TokenizedSample]:
        """The tokenized sample, unless it is the one."""
        if sample.__key__ == self.skipped_key:
            raise SkipSample("the demo was asked to leave it out")
        return super().preencode_sample(sample)
