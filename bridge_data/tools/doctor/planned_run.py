"""A planned run, and findings on it: what is wrong or could be better, what to set, and the gain.

Enters: options by name, and the YAML file of a run: one of `recipes/`, one of Megatron-Bridge, or these names at the
top level. Leaves: a `PlannedRun`, for the checks, which make `Finding`s. Guarantee: a mistake in the file is an error
that names file and setting. Settings unrelated to data are ignored.
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from bridge_data.errors import ConfigError
from bridge_data.options import SHUFFLE_BUFFER_SIZE, check_integer, check_number
from bridge_data.order.plan_order import Shuffle
from bridge_data.plan.where_clauses import WHERE_KEYS, given_where
from bridge_data.shards.plain_data import parse_yaml_file
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
_OTHER_NAMES = {"train_steps": "steps", "train_iters": "steps"}
_OR_NONE = (
    *("num_lanes", "global_batch_size", "packing_buffer_size", "shuffle_buffer_size", "max_samples_per_sequence"),
    *("steps", *WHERE_KEYS),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A training run. Sizes of batches are in samples; with packing, in packs.

    `num_ranks` are data-parallel ranks; `ranks_per_node` of them share a machine; `later_ranks` are numbers of ranks
    that the run may have later. `global_batch_size` None is a micro-batch of each rank. `steps` is the length of the
    run, and `step_s` the trainer's seconds per step; None: not known. `where` and `columns` choose samples.

    Raises:
        ConfigError: if a number is out of range.
    """

    num_ranks: int = 1
    later_ranks: tuple[int, ...] = ()
    ranks_per_node: int = 1
    num_workers: int = 2
    num_lanes: int | None = None
    micro_batch_size: int = 16
    global_batch_size: int | None = None
    packing_buffer_size: int | None = None
    shuffle_buffer_size: int | None = SHUFFLE_BUFFER_SIZE
    max_samples_per_sequence: int | None = 100
    prefetch_factor: int = 2
    steps: int | None = None
    step_s: float | None = None
    where: str | None = None
    columns: str | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name not in ("later_ranks", "step_s", *WHERE_KEYS):
                least = 0 if field.name in ("num_workers", "shuffle_buffer_size") else 1
                check_integer(field.name, getattr(self, field.name), least, or_none=field.name in _OR_NONE)
        for number in self.later_ranks:
            check_integer("ranks", number, 1)
        check_number("step_s", self.step_s, "a positive number of seconds", or_none=True)
        given_where(self.where, self.columns)

    @classmethod
    def of(cls, given: Mapping[str, Any], config: Path | None) -> Self:
        """The run of the options `given`, which take precedence, and of a config file, if any.

        Raises:
            ConfigError: if the file cannot be understood, has no setting of a run, or one that is out of range.
        """
        found = {} if config is None else read_config(config)
        try:
            return cls(**found | dict(given))
        except ConfigError as error:
            raise error if config is None else ConfigError(f"{config}, or an option: {error}") from None

    def worker_config(self) -> WorkerConfig:
        """Lanes and workers of rank 0.

        Raises:
            ConfigError: if the ranks cannot share the lanes equally.
        """
        return WorkerConfig(0, self.num_ranks, self.num_workers, num_lanes=self.num_lanes or 0)

    @property
    def step_size(self) -> int:
        """Samples (packs) of a step, over all ranks."""
        return self.global_batch_size or self.micro_batch_size * self.num_ranks

    @property
    def shuffle(self) -> Shuffle:
        """The settings of the order."""
        return Shuffle(
            shuffle_buffer_size=self.shuffle_buffer_size, max_samples_per_sequence=self.max_samples_per_sequence
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
    dataset = content.get("dataset")
    sections = [content, dataset.get("dataset_kwargs") if isinstance(dataset, dict) else None]
    sections += [content.get(name) for name in _SECTIONS]
    known = {field.name for field in dataclasses.fields(PlannedRun)}
    found: dict[str, Any] = {}
    for section in sections:
        for key, value in section.items() if isinstance(section, dict) else ():
            name = _OTHER_NAMES.get(key, key)
            if name in known and not (value is None and name not in _OR_NONE):
                found[name] = tuple(value) if isinstance(value, list) else value
    if not found:
        raise ConfigError(
            f"{file}: has no setting of a run at its top level or in {', '.join(_SECTIONS)}; expected some of "
            f"{', '.join(sorted(known))}"
        )
    return found
