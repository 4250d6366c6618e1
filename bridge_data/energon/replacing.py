"""`bridge_data` in place of Megatron-Energon, for code that imports `megatron.energon` and cannot be edited.

`replace_energon` reads what such code may trust, and makes it the `Replacement` of this process and of the workers of
its loaders. So the task encoders of an installed Megatron-Bridge, and the examples of Megatron-LM, work with our
loaders. Where a default differs from Energon's in a way that its users rely on, they get Energon's.
"""

import dataclasses
import os
from collections.abc import Collection
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.import_hook import install
from bridge_data.options import check_flag, checked_names
from bridge_data.replacement import Replacement, replacement
from bridge_data.topology import WorkerConfig

TRUST_CODE_VARIABLE = "BRIDGE_DATA_TRUST_DATASET_CODE"
TRUSTED_MODULES_VARIABLE = "BRIDGE_DATA_TRUSTED_MODULES"

_TRUTHS = {"1": True, "true": True, "0": False, "false": False, "": False}


def replace_energon(
    *,
    trust_dataset_code: bool | None = None,
    trusted_modules: Collection[str] | None = None,
    gathers_states: bool | None = None,
) -> None:
    """From now on, `import megatron.energon` imports `bridge_data.energon` in this process, those it forks, and the
    workers of its loaders; and what the program opens may be trusted without a word in its code.

    Call it before anything imports Energon. A second call may leave the settings out, or repeat them.

    Args:
        trust_dataset_code: whether to run Python files next to the data (`sample_loader.py`), as Energon does. None: as
            the environment variable `BRIDGE_DATA_TRUST_DATASET_CODE` says, 1 or 0; 0 if it is not set.
        trusted_modules: modules (and their submodules) from which YAML files may name classes and functions. None:
            those in the environment variable `BRIDGE_DATA_TRUSTED_MODULES`, separated by commas.
        gathers_states: see `get_savable_loader`. True by default: training code of Megatron calls `save_state_rank` on
            all data-parallel ranks together.

    Raises:
        ConfigError: if Energon itself has been imported, if an earlier call had other settings, or if a setting or
            variable is wrong.
    """
    before = replacement()
    settings = before if before.as_energon else _of_environment()
    if trusted_modules is not None:
        given = checked_names("replace_energon: trusted_modules", trusted_modules)
        settings = dataclasses.replace(settings, trusted_modules=given)
    if trust_dataset_code is not None:
        check_flag("replace_energon: trust_dataset_code", trust_dataset_code)
        settings = dataclasses.replace(settings, trust_dataset_code=bool(trust_dataset_code))
    if gathers_states is not None:
        check_flag("replace_energon: gathers_states", gathers_states)
        settings = dataclasses.replace(settings, gathers_states=bool(gathers_states))
    if before.as_energon and settings != before:
        raise ConfigError(
            f"replace_energon: got {_shown(settings)}, but it has been called with {_shown(before)}, and data may have "
            "been opened since: call it once, where the program starts"
        )
    install(settings)


def _shown(settings: Replacement) -> str:
    shown = ("trust_dataset_code", "trusted_modules", "gathers_states")
    return ", ".join(f"{name}={getattr(settings, name)}" for name in shown)


def _of_environment() -> Replacement:
    """The settings of a call without arguments."""
    text = os.environ.get(TRUST_CODE_VARIABLE, "").lower()
    if text not in _TRUTHS:
        raise ConfigError(f"the environment variable {TRUST_CODE_VARIABLE}={text!r}: expected 1 or 0")
    listed = [name.strip() for name in os.environ.get(TRUSTED_MODULES_VARIABLE, "").split(",")]
    found = tuple(name for name in listed if name)
    for name in found:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(
                f"the environment variable {TRUSTED_MODULES_VARIABLE}: {name!r} is not the name of a module; expected "
                "names separated by commas, such as my_samples,my_package.data"
            )
    return Replacement(
        replaces_imports=True,
        as_energon=True,
        trust_dataset_code=_TRUTHS[text],
        trusted_modules=found,
        gathers_states=True,
    )


class EnergonWorkerConfig(WorkerConfig):
    """A `WorkerConfig` with as many lanes as the job has workers, at least one per rank. So the number of all workers
    decides the order, as in Energon: 1 rank with 4 workers has the global batches of 2 ranks with 2."""

    def _default_lanes_per_rank(self) -> int:
        return max(1, self.num_workers)


DEFAULTS: dict[str, Any] = {"WorkerConfig": EnergonWorkerConfig}
"""What has other defaults for code that imports it from `megatron.energon`."""
