"""Warns when Lightning saves the state of a loader of which it has fetched a batch ahead.

Reads who asks for the state: it is Lightning if its combined loader does. `Trainer.fit` with the DataModule saves the
position of the last batch trained on; with a loader alone, nothing tells the loader which batches the model has got.
"""

import sys
import warnings
from types import FrameType

_ASKS = ".utilities.combined_loader"
"""How the name of the module ends, of `lightning.pytorch` and `pytorch_lightning`."""


def warn_if_fetched_ahead() -> None:
    """Warn if Lightning asks for the state of a loader without a length. What asks is the first caller that is not of
    this package."""
    caller: FrameType | None = sys._getframe()
    stacklevel = 1
    while caller is not None and (name := caller.f_globals.get("__name__", "")).partition(".")[0] == "bridge_data":
        caller, stacklevel = caller.f_back, stacklevel + 1
    if caller is not None and name.endswith(_ASKS):
        warnings.warn(
            "the saved position of the data is one batch after what the model was trained on, so a resume leaves that "
            "batch out: Lightning fetches a batch ahead of a loader whose length it does not know. Set "
            "virtual_epoch_length, or pass it the DataModule: Trainer.fit(model, datamodule=...)",
            stacklevel=stacklevel,
        )
