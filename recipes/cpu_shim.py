"""Lets megatron-core 0.16 train on a machine without CUDA, over gloo; does nothing where CUDA is.

Megatron-core asks for the current CUDA device in many places. `install()` answers those with the CPU, for demos and
tests only: import nothing of this from `bridge_data`. Call it before anything of megatron-core is built.
"""

import functools
import logging
import warnings
from typing import Any

import torch


def install() -> None:
    """Answer CUDA's questions with the CPU, in this process. A second call changes nothing."""
    if torch.cuda.is_available() or getattr(torch.cuda.current_device, "is_cpu_shim", False):
        return
    warnings.filterwarnings("ignore", message=".*(Apex|Transformer Engine|TransformerEngine).*")
    warnings.filterwarnings("ignore", message="full scope is deprecated")
    _answer_device_questions()
    for name in ("tensor", "zeros", "ones", "empty", "full", "arange"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    _claim_cuda_types()
    _keep_random_state_on_cpu()


def _answer_device_questions() -> None:
    cpu = torch.device("cpu")

    def current_device() -> torch.device:
        return cpu

    current_device.is_cpu_shim = True  # type: ignore[attr-defined]
    answers: dict[str, Any] = {
        "current_device": current_device,
        "synchronize": lambda *args, **kwargs: None,
        "get_rng_state": lambda *args, **kwargs: torch.get_rng_state(),
        "manual_seed": torch.manual_seed,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    for owner in (torch.Tensor, torch.nn.Module):
        setattr(owner, "cuda", lambda self, *args, **kwargs: self)  # noqa: B010


def _on_cpu(factory: Any) -> Any:
    """A factory function of torch that puts on the CPU what was meant for CUDA."""

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return make


def _claim_cuda_types() -> None:
    """Gradient clipping looks for `torch.cuda.*` tensor types."""
    original = torch.Tensor.type

    def type_of(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return original(self, *args, **kwargs)
        return str(original(self)).replace("torch.", "torch.cuda.", 1)

    torch.Tensor.type = type_of  # type: ignore[method-assign, assignment]


def _keep_random_state_on_cpu() -> None:
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    logging.getLogger(random.__name__).setLevel(logging.ERROR)
