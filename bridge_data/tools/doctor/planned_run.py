"""A planned run, and findings on it: what is wrong or could be better, what to set, and the gain.

Enters: options by name, and the YAML file of a run: one of `recipes/`, one of Megatron-Bridge, or these names at the
top level. Leaves: a `PlannedRun`, for the checks, which make `Finding`s. Guarantee: a mistake in the file is an error
that names file and setting. Settings unrelated to data are ignored.
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self, get_args

from bridge_data.errors import ConfigError
from bridge_data.options import check_integer, check_number
from bridge_data.plan.where_clauses import WHERE_KEYS, given_where
from bridge_data.run_options import RunOptions, option_fields
from bridge_data.shards.plain_data import parse_yaml_file
from bridge_data.tools.bench import BENCH_OPTIONS
from bridge_data.topology import WorkerConfig


class Level(enum.IntEnum):
    """The severity of a finding, the worst first."""

    STOPS = 0
    """The run would stop, or not start."""
    SLOWS = 1
    """The trainer waits for data, or reading costs more than necessary."""
    MIXES = 2
    """Batches are less well mixed, or the order changes when the run is resized."""
    NOTE = 3
    """Good to know."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. `code` is stable, for programs. `change` says what to set or run. `gain` is its effect, if computed
    or measured; `factor` is the same as a number: how many times better the figure gets."""

    code: str
    level: Level
    what: str
    change: str
    gain: str = ""
    factor: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """As plain data; the level by its name in lower case."""
        return dataclasses.asdict(self) | {"level": self.level.name.lower()}


def in_order_of_gain(findings: Iterable[Finding]) -> list[Finding]:
    """Findings by level; within a level, the largest gain first."""
    return sorted(findings, key=lambda finding: (finding.level, -finding.factor))


_SECTIONS = ("data", "dataset", "loader", "training", "train")
_INNER_SECTIONS = ("dataset_kwargs", "options")
"""Sections of sections, of Megatron-Bridge and of recipes."""
_OTHER_NAMES = {"train_steps": "steps", "train_iters": "steps"}
_OTHER_FORMS = (
    *("cache_pool", "global_error_handler", "restore_error_handler", "handler", "limits", "sample_type", "field_map"),
    *("balance", "trusted_modules", "trust_dataset_code"),
)
"""Options that are not read from a file: they need more than plain values, or trust."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A training run with these options. Sizes of batches are in samples; with packing, in packs.

    `num_ranks` are data-parallel ranks; `ranks_per_node` of them share a machine; `later_ranks` are numbers of ranks
    that the run may have later. `steps` is the length of the run, and `step_s` the trainer's seconds per step; None:
    not known.

    Raises:
        ConfigError: if a number is out of range.
    """

    num_ranks: int = 1
    later_ranks: tuple[int, ...] = ()
    ranks_per_node: int = 1
    steps: int | None = None
    step_s: float | None = None
    options: RunOptions = BENCH_OPTIONS

    def __post_init__(self) -> None:
        for name in ("num_ranks", "ranks_per_node"):
            check_integer(name, getattr(self, name), 1)
        check_integer("steps", self.steps, 1, or_none=True)
        for number in self.later_ranks:
            check_integer("ranks", number, 1)
        check_number("step_s", self.step_s, "a positive number of seconds", or_none=True)
        given_where(self.options.data.where, self.options.data.columns)

    @classmethod
    def of(cls, given: Mapping[str, Any], config: Path | None = None) -> Self:
        """The run of the options `given`, its own and those of `RunOptions`, which take precedence, and of a config
        file, if any.

        Raises:
            ConfigError: if the file cannot be understood, has no setting of a run, or one that is out of range.
        """
        found = ({} if config is None else read_config(config)) | dict(given)
        own = {name: found.pop(name) for name in _OWN if name in found}
        try:
            return cls(**own, options=BENCH_OPTIONS.with_options(**found))
        except ConfigError as error:
            raise error if config is None else ConfigError(f"{config}, or an option: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        own = {name: getattr(self, name) for name in _OWN}
        return own | {name: self.options.get(name) for name in _SHOWN} | {"num_lanes": self.num_lanes}

    def worker_config(self) -> WorkerConfig:
        """Lanes and workers of rank 0.

        Raises:
            ConfigError: if the ranks cannot share the lanes equally.
        """
        return self.options.worker.changed(world_size=self.num_ranks)

    @property
    def num_workers(self) -> int:
        """Workers of a rank."""
        return self.options.worker.num_workers

    @property
    def num_lanes(self) -> int | None:
        """Lanes of the job; None: as many as by default."""
        return self.options.worker.num_lanes if self.options.worker.num_lanes_given else None

    @property
    def micro_batch_size(self) -> int:
        """Samples (packs) of a micro-batch."""
        return self.options.data.batch_size or 1

    @property
    def step_size(self) -> int:
        """Samples (packs) of a step, over all ranks."""
        return self.options.trainer.global_batch_size or self.micro_batch_size * self.num_ranks


_OWN = tuple(field.name for field in dataclasses.fields(PlannedRun) if field.name != "options")
_SHOWN = (
    *("num_workers", "num_lanes", "micro_batch_size", "global_batch_size", "packing_buffer_size"),
    *("shuffle_buffer_size", "max_samples_per_sequence", "prefetch_factor", *WHERE_KEYS),
)


def read_config(file: Path) -> dict[str, Any]:
    """The settings of a `PlannedRun` in a YAML file, at its top level or in a section.

    Raises:
        ConfigError: if the file cannot be read, or has none.
    """
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    content = parse_yaml_file(text, str(file))
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: expected a mapping of settings")
    sections = [content, *(content.get(name) for name in _SECTIONS)]
    sections += [one.get(name) for one in sections if isinstance(one, dict) for name in _INNER_SECTIONS]
    fields = {name: field for part in option_fields().values() for name, field in part.items()}
    known = {*_OWN, *fields} - {*_OTHER_FORMS}
    found: dict[str, Any] = {}
    for section in sections:
        for key, value in section.items() if isinstance(section, dict) else ():
            name = _OTHER_NAMES.get(key, key)
            may_be_none = name == "num_lanes" or (name in fields and type(None) in get_args(fields[name].type))
            if name in known and (value is not None or may_be_none):
                found[name] = tuple(value) if isinstance(value, list) else value
    if not found:
        raise ConfigError(
            f"{file}: has no setting of a run at its top level or in {', '.join(_SECTIONS)}; expected some of "
            f"{', '.join((*_OWN, *_SHOWN))}"
        )
    return found
