"""Which hooks an encoder of the user has versions of, and what these say of themselves.

A hook may have several versions, which lead to each other by `super()`: those of its class and of that one's bases, and
for an `AugmentTaskEncoder` those of the encoder inside.
"""

from collections.abc import Iterator
from typing import Any

from bridge_data.task.augment import AugmentTaskEncoder
from bridge_data.task.stateless import Declared, declared
from bridge_data.task.task_encoder import DefaultTaskEncoder, TaskEncoder


def is_overridden(encoder: TaskEncoder[Any, Any, Any, Any], hook: str) -> bool:
    """Whether the user's encoder does something of its own in `hook`."""
    return next(_versions(encoder, hook), None) is not None


def does_something(encoder: TaskEncoder[Any, Any, Any, Any], hook: str) -> bool:
    """Whether calling `hook` may make a difference: not if it is left alone, or told to map to no type."""
    while isinstance(encoder, AugmentTaskEncoder) and hook not in vars(encoder):
        if getattr(type(encoder), hook) is not getattr(AugmentTaskEncoder, hook):
            return True
        encoder = encoder.task_encoder
    return is_overridden(encoder, hook) or (isinstance(encoder, DefaultTaskEncoder) and encoder.maps(hook))


def hook_of(encoder: TaskEncoder[Any, Any, Any, Any], hook: str) -> Any:
    """The callable to call for `hook`: of the encoder, or of the one inside that it leaves the hook to."""
    while isinstance(encoder, AugmentTaskEncoder):
        if hook in vars(encoder) or getattr(type(encoder), hook) is not getattr(AugmentTaskEncoder, hook):
            break
        encoder = encoder.task_encoder
    return getattr(encoder, hook)


def declaration(encoder: TaskEncoder[Any, Any, Any, Any], hook: str) -> Declared:
    """What `hook` declares: seeded if any of its versions is, for it may call the others; and the failure tolerance of
    the outermost version that has one."""
    versions = [declared(version) for version in _versions(encoder, hook)]
    if hook == "cook_crude_sample":
        versions += [declared(cooker.cook) for cooker in encoder.cookers]
    tolerances = [version.failure_tolerance for version in versions if version.failure_tolerance is not None]
    return Declared(
        seeded=any(version.seeded for version in versions), failure_tolerance=tolerances[0] if tolerances else None
    )


def _versions(encoder: TaskEncoder[Any, Any, Any, Any], hook: str) -> Iterator[Any]:
    """The user's versions of a hook, from the one that is called to the one that `super()` comes to last."""
    if hook in vars(encoder):
        yield vars(encoder)[hook]
    for cls in type(encoder).__mro__:
        if cls is AugmentTaskEncoder:
            assert isinstance(encoder, AugmentTaskEncoder)
            yield from _versions(encoder.task_encoder, hook)
            return
        if cls in (DefaultTaskEncoder, TaskEncoder):
            return
        if hook in vars(cls):
            yield vars(cls)[hook]
