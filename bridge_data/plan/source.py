"""A source: one split part of one prepared data set, how its samples are built, and how its epochs are shuffled.

A `FieldAccess` says where the value of a field is: which part of a sample, and which value in it. In a field map it is
written as `"jpg"`, `"json[caption]"`, `"json[turns][0][text]"`, or alternatives separated by commas; the first that
exists is used.

Samples may have a part under another name that means the same, such as `JPG` or `jpeg` for `jpg`: cameras and systems
write endings in capitals, and some formats have two. The names in a field map come first: a part that it names itself
stands for no other, and is taken where a sample has it. All names are known before the first sample is read, so reading
asks of each part only whether it is one of a set.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

from bridge_data import storage
from bridge_data.data import Records, Subset, SubsetRange
from bridge_data.data.records import contents_of, count_samples, fingerprint_of, place_of, verified
from bridge_data.data.withheld import Withheld, withheld
from bridge_data.errors import ConfigError, DatasetError, SampleError, did_you_mean, listed
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plan.auxiliary import AuxReference

SampleClass: TypeAlias = type[Any]
"""A class derived from `Sample` or `CrudeSample`."""

EpochsPerShuffle: TypeAlias = int | None
"""How many epochs of a source are shuffled together, `shuffle_over_epochs_multiplier` of a metadataset. With 1, each
epoch is shuffled alone. With n, a sample comes n times in n epochs, maybe twice before another comes once. -1 draws
chunks as if with replacement, each equally often in the long run. None does not shuffle: every lane reads its chunks in
the order of the data."""

WITH_REPLACEMENT = -1

MANY_EPOCHS = 256
"""Epochs that are shuffled together for -1. The number of draws of a chunk then varies 99.6% as much as it would with
replacement."""

Parts: TypeAlias = dict[str, Any]
"""A sample as a dict: its parts by name, and its provenance under the dunder names."""

_OPTION = re.compile(r"(?P<part>[^\[\],]+)(?P<path>(?:\[[^\[\]]+\])*)")
_MISSING = object()


class SampleLoader(Protocol):
    """Makes samples without a field map: by a function next to the data, or in a user's class."""

    def load_function(
        self, decode: Callable[[Parts], Parts] | None, subflavors: dict[str, Any]
    ) -> Callable[[Parts], Any]:
        """A function that makes a sample of its undecoded parts. `decode` is the decoder of the task encoder (None:
        nothing is decoded), `subflavors` are those of the source."""


class Composition(Protocol):
    """How the samples of a source are made of samples of several other sources, as a plug-in does; its text says so, to
    end a sentence."""

    @property
    def members(self) -> tuple[Source, ...]:
        """These sources; a record has a sample (or None) of each."""

    @property
    def joiner(self) -> Callable[..., Any]:
        """What makes one sample of theirs."""

    def reader(self, source: Source, decoder: Any, *, bare_keys: bool) -> Any:
        """The `SourceReader` of the samples; see `decode.source_reader.open_source_reader`."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Samples 0..num_samples-1 of one split part of the data set at `path`, which `records` reads.

    `field_map` gives the fields of `sample_class`; a crude class has none. `parts` are the parts to read, None for all.
    `config_file` is the dataset.yaml. With a `composition`, samples are made of those of its members, which are built
    as these say. A `sample_loader` makes the samples instead of the field map. `aux` is what cookers may read besides;
    `epochs_per_shuffle` is how many epochs are shuffled together. `limits` bound what a sample may cost.
    `values` are the parts that are values already, and are not decoded. `format` is the name of the `formats.Format` of
    the data, empty if code made the source. With `always_decoded`, parts are also decoded for an encoder whose
    `decoder` is None: those of JSONL.
    """

    path: str
    split_part: str
    records: Records
    sample_class: SampleClass
    field_map: Mapping[str, FieldAccess] = dataclasses.field(default_factory=dict)
    parts: Container[str] | None = None
    subflavors: Mapping[str, Any]
    config_file: str
    composition: Composition | None = None
    sample_loader: SampleLoader | None = None
    aux: Mapping[str, AuxReference] = dataclasses.field(default_factory=dict)
    epochs_per_shuffle: EpochsPerShuffle = 1
    limits: Limits = DEFAULT_LIMITS
    values: Collection[str] = ()
    format: str = ""
    always_decoded: bool = False

    @property
    def name(self) -> str:
        """Its name in messages: the folder name and the split part."""
        return f"{self.path.rstrip('/').rpartition('/')[2]}/{self.split_part}"

    @functools.cached_property
    def num_samples(self) -> int:
        """The number of samples."""
        return count_samples(self.records)

    def key_or_place(self, index: int) -> str:
        """The key of a sample, for messages; if it cannot be read, its location."""
        try:
            return self.records.reader().read(index, ()).full_key
        except IndexError:
            return "no sample"
        except DatasetError:
            return place_of(self.records, index)

    @property
    def members(self) -> tuple[Source, ...]:
        """The sources read for it: those that it is made of, or itself."""
        return self.composition.members if self.composition else (self,)

    @functools.cached_property
    def is_remote(self) -> bool:
        """Whether data of it are in an object store."""
        return any(storage.is_remote(member.records.root) for member in self.members)

    @functools.cached_property
    def withheld(self) -> Withheld:
        """The samples that may not be read any more. They are found when a plan is opened, and go to all processes that
        get the source.

        Raises:
            DatasetError: if a list of them is damaged, or files have changed since.
        """
        return withheld(self.records)

    @property
    def needed_extras(self) -> Mapping[str, str]:
        """By the names of extras that a run over it must have (see `order.extras`): what needs each, for messages."""
        return {"withheld": "a data set with samples that may not be read"} if self.withheld else {}

    def verified(self) -> Source:
        """This source; but reading raises a `DatasetError` if a part differs from what was prepared.

        Raises:
            ConfigError: if the data have no digests.
        """
        made = dataclasses.replace(self, records=verified(self.records))
        vars(made)["withheld"] = self.withheld  # as it was when the plan was opened
        return made

    @functools.cached_property
    def fingerprint(self) -> str:
        """24 hex digits that identify the samples and their order: 16 of the names, sizes and sample counts of the
        shards, 8 of the first bytes. It does not depend on the folder, on how they were prepared, or on the sample
        class.

        Raises:
            DatasetError: if a shard is missing.
        """
        return fingerprint_of(self.records)

    @property
    def contents(self) -> str:
        """What tells data with one fingerprint apart, as far as it is known: `more` of `records.Contents`."""
        return contents_of(self.records).more

    def narrowed(self, subset: SubsetRange | None, epochs_per_shuffle: EpochsPerShuffle) -> Source:
        """This source with the samples of `subset` (None: all), and `epochs_per_shuffle` epochs shuffled together."""
        if subset is None and epochs_per_shuffle == self.epochs_per_shuffle:
            return self  # with all that was found of it
        records = self.records
        if subset is not None:
            records = Subset(records, *subset.resolve(self.num_samples))
        return dataclasses.replace(self, records=records, epochs_per_shuffle=epochs_per_shuffle)


def check_epochs(epochs: object) -> EpochsPerShuffle:
    """`epochs`, if it is valid."""
    if epochs is None or (isinstance(epochs, int) and not isinstance(epochs, bool) and (epochs >= 1 or epochs == -1)):
        return epochs
    raise ConfigError(
        f"shuffle_over_epochs_multiplier: got {epochs!r}, expected a number of epochs from 1 on, -1 for drawing with "
        "replacement, or null for no shuffling"
    )


def multiplied(outer: EpochsPerShuffle, inner: EpochsPerShuffle) -> EpochsPerShuffle:
    """The value for a source below two levels that set one: None overrides -1, which overrides the product."""
    if outer is None or inner is None:
        return None
    if WITH_REPLACEMENT in (outer, inner):
        return WITH_REPLACEMENT
    return outer * inner


def num_together(epochs: EpochsPerShuffle) -> int | None:
    """The number of epochs that a `Row` shuffles together; None: none are shuffled."""
    return MANY_EPOCHS if epochs == WITH_REPLACEMENT else epochs


@dataclasses.dataclass(frozen=True)
class FieldAccess:
    """Extracts one value from a sample's decoded parts: from `part`, along `path`, or else from an alternative."""

    part: str
    path: tuple[str, ...] = ()
    alternatives: tuple[FieldAccess, ...] = ()

    @property
    def is_whole_part(self) -> bool:
        """Whether the value is all of one part, for which there is no alternative."""
        return not self.path and not self.alternatives

    @functools.cached_property
    def parts(self) -> tuple[str, ...]:
        """Every part that may be needed: of this access and its alternatives."""
        return tuple(dict.fromkeys([access.part for access in (self, *self.alternatives)]))

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The names that these parts may have in a sample: see `alike`."""
        return all_names(self.parts)

    def get(self, parts: Mapping[str, Any]) -> Any:
        """The value in `parts`, a mapping of part names to decoded contents with the sample's key as `__key__`.

        Raises:
            SampleError: naming the sample, the part or step that is absent and what there is instead.
        """
        for access in (self, *self.alternatives):
            value = access._find(parts)
            if value is not _MISSING:
                return value
        raise SampleError(self._complaint(parts))

    def _find(self, parts: Mapping[str, Any]) -> Any:
        value: Any = parts.get(self.part, _MISSING)
        for step in self.path:
            value = _take(value, step)
        return value

    def _complaint(self, parts: Mapping[str, Any]) -> str:
        reasons = [access._reason(parts) for access in (self, *self.alternatives)]
        return f"sample {parts.get('__key__', '(no key)')!r}: {'; '.join(reasons)}"

    def _reason(self, parts: Mapping[str, Any]) -> str:
        if self.part not in parts:
            return f"part {self.part!r} is absent; {_offer(self.part, (p for p in parts if not p.startswith('__')))}"
        value, walked = parts[self.part], self.part
        for step in self.path:
            inner = _take(value, step)
            if inner is _MISSING:
                return f"{walked} has no [{step}]; {_contents(value, step)}"
            value, walked = inner, f"{walked}[{step}]"
        return f"{walked} is there"

    def __str__(self) -> str:
        own = self.part + "".join(f"[{step}]" for step in self.path)
        return ",".join((own, *map(str, self.alternatives)))


def parse_access(text: str) -> FieldAccess:
    """The access that `text` describes, such as `"jpg"`, `"json[caption]"` or `"png,jpg"`.

    Raises:
        ConfigError: if `text` is malformed.
    """
    options = [_OPTION.fullmatch(option.strip()) for option in text.split(",")]
    accesses = []
    for option in options:
        if option is None:
            raise ConfigError(
                f"field access {text!r}: expected a part, optionally followed by what to take from it in brackets, "
                'such as "jpg", "json[caption]" or "json[turns][0]", and commas between alternatives'
            )
        accesses.append(FieldAccess(option["part"], tuple(re.findall(r"\[([^\[\]]+)\]", option["path"]))))
    return dataclasses.replace(accesses[0], alternatives=tuple(accesses[1:]))


def _take(value: Any, step: str) -> Any:
    """`value[step]`, or `_MISSING`."""
    if isinstance(value, dict):
        return value.get(step, _MISSING)
    if isinstance(value, list):
        try:
            return value[int(step)]
        except (ValueError, IndexError):
            return _MISSING
    return _MISSING


def _contents(value: Any, step: str) -> str:
    if isinstance(value, dict):
        return _offer(step, map(str, value))
    if isinstance(value, list):
        return f"it is a list of {len(value)}"
    return f"it is a {type(value).__name__}"


def _offer(wanted: str, present: Iterable[str]) -> str:
    """The available alternatives, the nearest first."""
    names = sorted(present)
    return f"there is {listed(names, 12)}{did_you_mean(wanted, names)}"


T = TypeVar("T")

_ALIASES = ("jpg jpeg jpe jfif", "tif tiff", "htm html", "mpg mpeg", "yml yaml", "aif aiff", "mid midi")
"""Endings of the same format."""

_MAX_LETTERS = 5
"""Up to this length an ending is known in any mix of small and capital letters, of which there are 32; longer ones in
small letters, in capitals, and with a capital first letter."""


@functools.lru_cache(maxsize=1024)
def alike(part: str) -> frozenset[str]:
    """`part`, and names that differ from it in the case of letters or in how the ending of its format is written."""
    before, dot, ending = part.rpartition(".")
    group = next((group.split() for group in _ALIASES if ending.lower() in group.split()), [ending])
    starts = {before, before.lower(), before.upper(), before.capitalize()}
    return frozenset({part, *(start + dot + one for start in starts for name in group for one in _cases(name))})


@functools.lru_cache(maxsize=1024)
def all_names(parts: tuple[str, ...]) -> frozenset[str]:
    """The names that mean one of these parts."""
    return frozenset[str]().union(*map(alike, parts))


@functools.lru_cache(maxsize=1024)
def _in_other_cases(part: str) -> frozenset[str]:
    return frozenset([name for name in alike(part) if name.lower() == part.lower()]) - {part}


def _cases(name: str) -> Iterable[str]:
    if len(name) > _MAX_LETTERS:
        return name.lower(), name.upper(), name.capitalize()
    return map("".join, itertools.product(*((letter.lower(), letter.upper()) for letter in name)))


def other_names(parts: Iterable[str]) -> Mapping[str, str]:
    """The other names of these parts, which a field map names, and the part that each stands for: the one that differs
    in case alone, if there is one."""
    return _other_names(tuple(dict.fromkeys(parts)))


@functools.lru_cache(maxsize=256)
def _other_names(named: tuple[str, ...]) -> Mapping[str, str]:
    others: dict[str, str] = {}
    for names_of in (_in_other_cases, alike):
        for part in named:
            for name in names_of(part):
                if name not in named:
                    others.setdefault(name, part)
    return others


def renamed(parts: Mapping[str, T], others: Mapping[str, str], key: str) -> dict[str, T]:
    """The parts of the sample `key`, those with one of the names `others` under the name that it stands for; left out
    if the sample has a part of that very name.

    Raises:
        SampleError: if two parts are left for one name.
    """
    found = {name: content for name, content in parts.items() if name not in others}
    taken: dict[str, str] = {}
    for name in parts:
        part = others.get(name)
        if part is None or part in parts:
            continue
        if part in taken:
            raise SampleError(
                f"sample {key!r}: its parts {taken[part]!r} and {name!r} may both be the part {part!r}: name the one "
                "that is meant in the field map, or take the other out of the data"
            )
        taken[part] = name
        found[part] = parts[name]
    return found
