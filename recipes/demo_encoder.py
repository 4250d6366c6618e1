"""The task encoder of the demo: the default one, but for a hidden switch that leaves out one sample.

With BRIDGE_DATA_DEMO_SKIP_KEY set in the trainer's environment, the sample of that key is skipped as user code may skip
any. A run so changed must turn the demo's table red.
"""

import os
from typing import Any

from bridge_data.encoders import MultiModalSampleConfig, MultiModalTaskEncoder, TokenizedSample
from bridge_data.errors import SkipSample
from bridge_data.samples import Sample
from bridge_data.task import stateless

SKIP_KEY = "BRIDGE_DATA_DEMO_SKIP_KEY"


class SkippingTaskEncoder(MultiModalTaskEncoder):
    """Leaves out the sample with the key `skipped_key`."""

    skipped_key = ""

    @stateless
    def preencode_sample(self, sample: Sample) -> TokenizedSample:
        """The tokenized sample, unless it is the one."""
        if sample.__key__ == self.skipped_key:
            raise SkipSample
        return super().preencode_sample(sample)


def make_encoder(
    tokenizer: Any, image_processor: Any, config: MultiModalSampleConfig, *, seq_length: int
) -> MultiModalTaskEncoder:
    """The default task encoder; with the switch set, the one that skips."""
    key = os.environ.get(SKIP_KEY)
    if not key:
        return MultiModalTaskEncoder(tokenizer, image_processor, config, seq_length=seq_length)
    encoder = SkippingTaskEncoder(tokenizer, image_processor, config, seq_length=seq_length)
    encoder.skipped_key = key
    return encoder
