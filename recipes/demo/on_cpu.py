"""`recipes.megatron.train_vlm` without a GPU: `torchrun -m recipes.demo.on_cpu`, with the arguments of the script.

It is the script as it stands, over gloo. Only what Megatron takes from CUDA and Transformer Engine is another.
"""

from recipes.demo import cpu_shim

cpu_shim.install()

from jsonargparse import auto_cli  # noqa: E402
from megatron.core.models.vision.vit_layer_specs import get_vit_layer_with_local_spec  # noqa: E402
from torch.distributed.elastic.multiprocessing.errors import record  # noqa: E402

from recipes.demo.cpu_attention import gpt_layer  # noqa: E402
from recipes.megatron import train_vlm, vlm  # noqa: E402

vlm.gpt_layer, vlm.vit_layer = gpt_layer, get_vit_layer_with_local_spec


@record  # torchrun has an exception in the rank's error file
def main() -> None:
    auto_cli(train_vlm.main)


if __name__ == "__main__":
    main()
