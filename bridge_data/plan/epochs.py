"""`shuffle_over_epochs_multiplier`: how many epochs of a source are shuffled together.

1 is each epoch by itself. With n, a sample comes n times in n epochs, maybe twice before another comes once. -1 is as
good as infinitely many, so that chunks are drawn as if with replacement, each still as often as any other in the end.
None is no shuffling at all: every lane reads its chunks in the order of the data.
"""

from typing import TypeAlias

from bridge_data.errors import ConfigError

EpochsPerShuffle: TypeAlias = int | None

WITH_REPLACEMENT = -1

MANY_EPOCHS = 256
"""Epochs that are shuffled together for -1: how often a chunk comes in a while varies by 99.6% of what it would if each
were drawn anew."""


def check_epochs(epochs: object) -> EpochsPerShuffle:
    """`epochs`, if it is one of these.

    Raises:
        ConfigError: if it is not.
    """
    if epochs is None or (isinstance(epochs, int) and not isinstance(epochs, bool) and (epochs >= 1 or epochs == -1)):
        return epochs
    raise ConfigError(
        f"shuffle_over_epochs_multiplier: got {epochs!r}, expected a number of epochs from 1 on, -1 for drawing with "
        "replacement, or null for no shuffling"
    )


def multiplied(outer: EpochsPerShuffle, inner: EpochsPerShuffle) -> EpochsPerShuffle:
    """What holds where two levels say something: no shuffling before replacement, and that before the product."""
    if outer is None or inner is None:
        return None
    if WITH_REPLACEMENT in (outer, inner):
        return WITH_REPLACEMENT
    return outer * inner


def together(epochs: EpochsPerShuffle) -> int | None:
    """As how many epochs a `Row` shuffles them."""
    return MANY_EPOCHS if epochs == WITH_REPLACEMENT else epochs
