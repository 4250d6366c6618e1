"""Lets megatron-core train on a machine without CUDA, over gloo; does nothing if there is CUDA.

Megatron-core asks `torch.cuda` about devices, streams, events, memory and random state, and each release asks a little
more. `install()` answers each question, whatever the version of megatron-core: there is one device, the CPU; work
queued on a stream has already happened; memory statistics are empty. A question without an answer is an error that
names this file, instead of torch's "no NVIDIA driver".

For demos and tests only: `bridge_data` never imports it. Call it before anything of megatron-core is built.
"""

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch

CPU = torch.device("cpu")
FACTORIES = ("tensor", "as_tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn", "randint", "eye")


def install() -> None:
    """Answer CUDA's questions with the CPU, in this process. A second call changes nothing."""
    if torch.cuda.is_available() or torch.cuda.Stream is CpuStream:
        return
    warnings.filterwarnings("ignore", message=".*(Apex|Transformer Engine|TransformerEngine).*")
    warnings.filterwarnings("ignore", message="full scope is deprecated")
    for name, answer in ANSWERS.items():
        setattr(torch.cuda, name, answer)
    for name in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, name, _returning(None))
    torch.cuda._lazy_init = _refuse
    for owner in (torch.Tensor, torch.nn.Module):
        setattr(owner, "cuda", lambda self, *args, **kwargs: self)  # noqa: B010
    setattr(torch.Tensor, "record_stream", _returning(None))  # noqa: B010
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    _claim_cuda_types()
    _keep_random_state_on_cpu()
    _compile_nothing()


class CpuStream:
    """A stream on which everything has happened by the time it is queued."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device, self.cuda_stream, self.priority = CPU, 0, 0

    def query(self) -> bool:
        """Whether its work is done: always."""
        return True

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def wait_stream(self, stream: "CpuStream") -> None:
        """There is nothing to wait for."""

    def wait_event(self, event: "CpuEvent") -> None:
        """There is nothing to wait for."""

    def record_event(self, event: "CpuEvent | None" = None) -> "CpuEvent":
        """An event that has passed."""
        return event or CpuEvent()


class CpuEvent:
    """An event that has passed as soon as it is recorded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def query(self) -> bool:
        """Whether it has passed: always."""
        return True

    def record(self, stream: CpuStream | None = None) -> None:
        """It has passed."""

    def wait(self, stream: CpuStream | None = None) -> None:
        """There is nothing to wait for."""

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def elapsed_time(self, end: "CpuEvent") -> float:
        """Milliseconds from this event to `end`: none are measured."""
        return 0.0


class DeviceContext(contextlib.nullcontext[Any]):
    """`with torch.cuda.device(...)`: it is the CPU anyway."""


class StreamContext(contextlib.nullcontext[Any]):
    """`with torch.cuda.stream(...)`: it is the only one anyway."""


def _returning(value: Any) -> Callable[..., Any]:
    """A function that returns `value` for any arguments. Each name of `torch.cuda` gets its own, as torch's
    compiler keeps a table of them by identity."""
    return lambda *args, **kwargs: value


_STREAM = CpuStream()

ANSWERS: dict[str, Callable[..., Any]] = {
    # devices
    "current_device": _returning(CPU),
    "set_device": _returning(None),
    "device": DeviceContext,
    "synchronize": _returning(None),
    "get_device_capability": _returning((0, 0)),
    # streams and events
    "Stream": CpuStream,
    "Event": CpuEvent,
    "current_stream": _returning(_STREAM),
    "default_stream": _returning(_STREAM),
    "stream": StreamContext,
    "set_stream": _returning(None),
    "is_current_stream_capturing": _returning(False),
    # memory
    "empty_cache": _returning(None),
    "memory_stats": _returning({}),
    "memory_allocated": _returning(0),
    "memory_reserved": _returning(0),
    "max_memory_allocated": _returning(0),
    "max_memory_reserved": _returning(0),
    "reset_peak_memory_stats": _returning(None),
    # random state; torch.manual_seed itself calls manual_seed_all
    "get_rng_state": lambda device=None: torch.get_rng_state(),
    "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
    "manual_seed": lambda seed: torch.default_generator.manual_seed(seed),
    "manual_seed_all": lambda seed: torch.default_generator.manual_seed(seed),
}


def _refuse() -> None:
    raise RuntimeError(
        "megatron-core asked CUDA for something that the CPU shim has no answer for (the call is in the traceback "
        "above): add it to ANSWERS in recipes/demo/cpu_shim.py, or run on a machine with a GPU"
    )


def _on_cpu(factory: Any) -> Any:
    """A factory function of torch that uses the CPU in place of CUDA."""

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = CPU
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
    """Megatron-core's tracker of random states reads CUDA's generators by functions of its own."""
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    logging.getLogger(random.__name__).setLevel(logging.ERROR)


def _compile_nothing() -> None:
    """Megatron-core fuses small functions by `torch.compile`, which wants a C++ compiler on the CPU."""
    import torch._dynamo.config

    torch._dynamo.config.disable = True
