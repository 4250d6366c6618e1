"""Runs of the multimodal example of a checkout of Megatron-LM on ours, for `test_megatron_lm.py`, one after the other.

    megatron_lm_job CHECKOUT RUNS

RUNS is a JSON file: a list of runs with `name`, `num_ranks`, `num_steps`, `iteration` (to resume from; 0: none),
`save_as` (an iteration; 0: not saved) and the `arguments` of the example. Its `train.py` and all that it imports are
unedited: the provider of its loaders, its task encoder and tokenizer, `get_batch`, and Megatron-LM's own saving and
loading. Only the model is not there, and what its initialization needs CUDA for. Each rank writes what it saw to
`NAME-RANK.json` beside RUNS.
"""

import json
import sys
from pathlib import Path
from typing import Any

from bridge_data.energon import replace_energon
from recipes.demo import cpu_shim
from tests.compat.alias import stand_ins  # noqa: F401 - for what needs CUDA; it installs itself
from tests.ranks import fork_ranks


def prepare(checkout: Path) -> None:
    """Import what all runs need."""
    example = checkout / "examples/multimodal"
    sys.path[:0] = [str(checkout), str(example)]  # before any `megatron.core` that is installed
    assert "megatron.core" not in sys.modules, "it would be the installed one"
    cpu_shim.install()
    replace_energon()  # what it trusts is in the environment
    import megatron.core.tokenizers.vision.libraries  # type: ignore[import-not-found]  # noqa: F401
    import train  # type: ignore[import-not-found]  # noqa: F401


class Observed:
    """The train iterator, of which `get_batch` takes a batch; the batch is noted."""

    def __init__(self, iterator: Any) -> None:
        self.iterator, self.batch = iterator, None

    def __next__(self) -> Any:
        self.batch = next(self.iterator)
        return self.batch


def run_rank(folder: Path, run: dict[str, Any]) -> None:
    """One rank of a run."""
    import torch
    import train
    from megatron.core import mpu
    from megatron.training import checkpointing, training
    from megatron.training.arguments import parse_and_validate_args
    from multimodal_args import add_multimodal_extra_args  # type: ignore[import-not-found]

    torch.distributed.init_process_group("gloo")
    sys.argv = ["train.py", *run["arguments"]]
    args = parse_and_validate_args(extra_args_provider=add_multimodal_extra_args)
    mpu.initialize_model_parallel()
    args.iteration = run["iteration"]  # as it is after a checkpoint of the model has been loaded
    provider = train.train_valid_test_dataloaders_provider
    provider.is_distributed = True
    iterator, validation, _ = training.build_train_valid_test_data_iterators(provider)
    noted = []
    for _ in range(run["num_steps"]):
        observed = Observed(iterator)
        tokens, labels, loss_mask, _, _, images, _, packing = train.get_batch(
            observed, image_token_index=-1, img_seq_len=4
        )
        assert observed.batch is not None
        lengths = None if packing is None else packing.cu_seqlens_q.tolist()
        sums = [tokens.sum().item(), labels.sum().item(), loss_mask.sum().item(), images.double().sum().item()]
        noted.append({"keys": observed.batch["__key__"], "tokens": tokens.tolist(), "sums": sums, "lengths": lengths})
    if run["save_as"]:
        checkpointing.maybe_save_dataloader_state(iterator, run["save_as"], args.dataloader_save)
    validated = [next(one)["__key__"] for one in (validation if isinstance(validation, list) else [validation])]
    rank = mpu.get_data_parallel_rank()
    (folder / f"{run['name']}-{rank}.json").write_text(json.dumps({"steps": noted, "validated": validated}))
    torch.distributed.destroy_process_group()


def main() -> int:
    checkout, runs = Path(sys.argv[1]), Path(sys.argv[2])
    prepare(checkout)
    for run in json.loads(runs.read_text()):
        if status := fork_ranks(run["num_ranks"], lambda run=run: run_rank(runs.parent, run)):  # type: ignore[misc]
            print(f"the run {run['name']} failed")
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
