"""One rank of a run of a small LLaVA by Megatron-Bridge's `vlm_step`, for `test_run.py`. Run it under torchrun; rank 0
writes the losses of its steps to `FOLDER/losses.json`.

    run_job DATA FOLDER
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.bridge.imports import change_imports

change_imports()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from bridge_data import Cooker, EnergonMultiModalDataModule  # noqa: E402
from bridge_data.encoders import FamilyConfig, FamilyTaskEncoder, Llava, cook_conversation  # noqa: E402
from recipes.tiny_models import tiny_model  # noqa: E402
from recipes.tiny_parts import PATCH, tiny_image_processor, tiny_tokenizer  # noqa: E402

NUM_STEPS, GLOBAL_BATCH, SEQ_LENGTH = 20, 4, 512


def make_data(data: str, groups: Any) -> EnergonMultiModalDataModule:
    """Packs of conversations with and without images, in the layout that Bridge's step takes."""
    tokenizer, image_processor = tiny_tokenizer("llava"), tiny_image_processor("llava")
    family = Llava(image_processor, patch_size=PATCH)
    encoder = FamilyTaskEncoder(tokenizer, family, FamilyConfig(layout="bridge"), seq_length=SEQ_LENGTH)
    encoder.cookers = [Cooker(cook_conversation)]
    return EnergonMultiModalDataModule(
        data,
        tokenizer,
        image_processor,
        seq_length=SEQ_LENGTH,
        micro_batch_size=1,
        global_batch_size=GLOBAL_BATCH,
        num_workers=0,
        num_val_workers=0,
        pin_memory=False,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=encoder,
        packing_buffer_size=8,
        pg_collection=groups,
        num_lanes=4,
    )


def make_model() -> Any:
    """The model of transformers whose weights are trained."""
    return tiny_model("llava", tiny_tokenizer("llava"), seed=7)


def main(data: str, folder: str) -> None:
    from recipes import cpu_shim

    cpu_shim.install()
    from megatron.bridge.training import vlm_step
    from megatron.bridge.training.config import RerunStateMachineConfig
    from megatron.core.timers import Timers
    from megatron.core.utils import StragglerDetector

    from recipes.megatron_model import MegatronModel
    from recipes.packed_attention import sequence_numbers
    from recipes.trainer.config import ParallelConfig, TrainingConfig
    from recipes.trainer.loop import MegatronTrainer, StepReport
    from recipes.trainer.parallel import initialize_parallel

    class BridgeModel(MegatronModel):
        """Our model, called as Bridge's step calls its own."""

        def forward(
            self,
            input_ids: Any,
            position_ids: Any,
            attention_mask: Any,
            labels: Any,
            loss_mask: Any,
            pixel_values: Any = None,
            packed_seq_params: Any = None,
        ) -> Any:
            sequences = sequence_numbers(packed_seq_params.cu_seqlens_q[None], input_ids.shape[1])
            media = {} if pixel_values is None else {"pixel_values": pixel_values}
            return super().forward(input_ids, media, sequences, labels)

    torch.set_num_threads(1)
    groups = initialize_parallel(ParallelConfig(), seed=1)
    settings = SimpleNamespace(dataset=SimpleNamespace(), rerun_state_machine=RerunStateMachineConfig())
    state = SimpleNamespace(cfg=settings, timers=Timers(0, "minmax"), straggler_timer=StragglerDetector())

    def forward_step(iterator: Any, model: Any) -> tuple[Any, Any]:
        output, loss_function = vlm_step.forward_step(state, iterator, model)

        def loss(losses: Any) -> tuple[Any, Any, dict[str, Any]]:
            total, num_tokens, reported = loss_function(losses)
            loss_sum, _ = reported["lm loss"]
            return total, num_tokens, {"loss_sum": loss_sum, "num_tokens": num_tokens}

        return output, loss

    reports: list[StepReport] = []
    trainer = MegatronTrainer(
        TrainingConfig(train_steps=NUM_STEPS, learning_rate=1e-2),
        groups,
        BridgeModel(make_model(), groups, seq_length=SEQ_LENGTH),
        forward_step,
        reports.append,
    )
    trainer.fit(make_data(data, groups))
    if dist.get_rank() == 0:
        losses = [(report.loss, report.num_tokens) for report in reports]
        Path(folder, "losses.json").write_text(json.dumps(losses))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
