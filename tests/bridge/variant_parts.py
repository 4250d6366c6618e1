"""The runs of `variant_job.py`: each differs in one way from that of `run_job.py`."""

import dataclasses

NUM_STEPS, SAVED_AFTER = 6, 3
KILLED_AFTER = 4
"""The number of the step after which a run is killed or fails, counted from 0."""

SKIPPED = 2
"""A step, counted from 1, whose samples are taken and not trained on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """A way to run."""

    family: str = "qwen2_5_vl"
    """Of its tiny model."""
    num_ranks: int = 1


VARIANTS = {
    "lora": Variant(),
    "evaluation": Variant(),
    "skipping": Variant(),
    "pipeline": Variant(family="qwen3_vl", num_ranks=2),
}
"""Adapters are trained by Bridge's `finetune` on a model that it saved before, the others by `pretrain`. The stages of
the pipeline are on two ranks."""
