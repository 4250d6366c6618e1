"""Lets `import torchvision` succeed beside the CPU build of torch; import this first.

mosaicml-streaming imports torchvision, whose wheels on PyPI are built for CUDA, so that its operators do not load here.
Nothing of the benchmark uses them: Pillow decodes and resizes. Declaring those that torchvision asks for while it is
imported is all that is needed.
"""

import torch

for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
