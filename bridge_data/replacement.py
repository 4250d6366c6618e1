"""What `replace_energon` has set for this process: a program written for Megatron-Energon runs on this package.

The settings are one frozen `Replacement`, which worker processes get, too. Whatever works otherwise for such a program
asks `replacement()`; without the call, everything is as it is documented for this package.
"""

import dataclasses

ENERGON_VERSION = "7.4.1"
"""The release of Energon whose names, behaviour and formats this package has."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Replacement:
    """The settings of a process.

    `replaces_imports`: `import megatron.energon` imports `bridge_data.energon`. `as_energon`: the program was written
    for Energon and cannot be edited, so where the two differ in form, it gets Energon's. `trust_dataset_code` and
    `trusted_modules`: what is trusted besides that which a call names (see `DatasetOptions`). `gathers_states`: all
    data-parallel ranks save together (see `get_savable_loader`).
    """

    replaces_imports: bool = False
    as_energon: bool = False
    trust_dataset_code: bool = False
    trusted_modules: tuple[str, ...] = ()
    gathers_states: bool = False


_current = Replacement()


def replacement() -> Replacement:
    """The settings of this process."""
    return _current


def set_replacement(settings: Replacement) -> None:
    """Let these be the settings of this process; `import_hook.install` calls it."""
    global _current
    _current = settings
