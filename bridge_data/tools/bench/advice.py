"""What a profile says should be done.

Enters: a profile. Leaves: a few sentences: whether the data or the trainer is the limit, what most of the time goes to,
and what helps there. Guarantee: each sentence follows from the figures, or names its condition.
"""

from collections.abc import Iterator

from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.errors import bridge_command
from bridge_data.plan import Source
from bridge_data.shards.prepared import ShardSet
from bridge_data.tools.bench.figures import Profile, SourceStages

KEEPS_UP = 0.05
"""A trainer that waits for a smaller share of its time is not held up by its data."""

_ALL_CORES = 0.85
"""A machine that computes for this share of its time has nothing left for another worker."""

_CROWDED = 0.2
"""A process that waits for a core for so large a share of its time, while others use so much of one, is held up."""

_MOSTLY = 0.5


def advise(profile: Profile) -> list[str]:
    """What to do, as sentences."""
    if not profile.total_s:
        return []
    return [*_limit(profile), *_greatest(profile), *_workers(profile)]


def _limit(profile: Profile) -> Iterator[str]:
    trainer = profile.trainer
    if not profile.num_workers:
        yield "The trainer does all of this itself, between its steps."
    elif trainer.step_s and trainer.waiting < KEEPS_UP:
        yield (
            f"The data keep up with these steps: the trainer waits {trainer.waiting:.0%} of its time, workers work "
            f"{profile.busy:.0%} of theirs. Faster data would not make training faster."
        )
    elif trainer.step_s:
        yield f"The data hold the trainer up: it waits {trainer.waiting:.0%} of its time."


def _keeps_up(profile: Profile) -> bool:
    trainer = profile.trainer
    return bool(profile.num_workers and trainer.step_s and trainer.waiting < KEEPS_UP)


def _greatest(profile: Profile) -> Iterator[str]:
    """What most of the work goes to, and what helps there."""
    if _keeps_up(profile):
        return
    stage = max(profile.stages, key=lambda stage: stage.share)
    where, source = "", _source_of(profile, stage.name)
    if source is not None and len(profile.sources) > 1:
        where = f", most of it for {source.name}"
    yield f"{stage.name} takes {stage.share:.0%} of the work{where}. {_help(profile, stage.name, source, stage.waited)}"


def _source_of(profile: Profile, stage: str) -> SourceStages | None:
    """The data set that takes more than half of a stage."""
    total_s = sum(profile.whats(stage).values())
    return next((s for s in profile.by_source if s.seconds.get(stage, 0.0) > _MOSTLY * total_s), None)


def _help(profile: Profile, stage: str, source: SourceStages | None, waited: float) -> str:
    """What helps where `stage` is the greatest."""
    if stage == "read":
        return _help_reading(profile, source, waited)
    if stage == "decode":
        sources = profile.sources if source is None else [profile.sources[source.number]]
        if any(map(_has_images, sources)):
            return (
                "If the images are made smaller later, SampleDecoder(image_size=..., resize='torch', dct_scaling=True) "
                "does it while it decodes, faster, with pixels that differ a little."
            )
        return "Only what the field map names, or the cooker asks for, is decoded: leave out what is not needed."
    if stage == "seed":
        hooks = [what.removeprefix("seed ") for what in profile.whats(stage) if what != "seed"]
        return f"Mark hooks that draw no random numbers as @stateless: {', '.join(hooks)}."
    if stage == "transfer":
        batch_ms = sum(profile.whats(stage).values()) / profile.num_batches * 1000
        return (
            f"A batch costs {batch_ms:.2f} ms there: a larger batch_size costs less for a sample; uint8, converted on "
            "the device, less for a pixel than float32."
        )
    if stage == "order":
        return "That is what handling samples costs, whatever is in them: they, or the data set, are small."
    hook = next(iter(profile.whats(stage)))
    if waited > _MOSTLY:
        return (
            f"It is {hook}, which waits {waited:.0%} of that rather than compute: more workers wait at the same time."
        )
    return f"It is {hook}: what it computes anew for the same sample in each epoch can be prepared once, with the data."


def _help_reading(profile: Profile, source: SourceStages | None, waited: float) -> str:
    if waited > _MOSTLY:
        return f"Of that, {waited:.0%} is waiting for the storage: more workers wait at the same time."
    sources = profile.sources if source is None else [profile.sources[source.number]]
    for records in (source.records for source in sources):
        if isinstance(records, ShardSet) and records.index is None:
            way_out = bridge_command("prepare", records.root, "--tar-index-only")
            return f"The offsets of the parts are not in an index: run `{way_out}`."
    return "Larger chunks (max_samples_per_sequence) are read from fewer places."


def _has_images(source: Source) -> bool:
    """Whether some of the parts that are read are images, by their names."""
    names = source.records.part_names(0) if len(source.records.names) else None
    wanted = [name for name in names or () if source.parts is None or name in source.parts]
    return any(name.rpartition(".")[2].lower() in IMAGE_EXTENSIONS for name in wanted)


def _workers(profile: Profile) -> Iterator[str]:
    """Whether more of them, or fewer, would do."""
    machine = profile.machine
    idle = min(machine.idle_cores, machine.num_cores - machine.used_cores)
    if _keeps_up(profile):
        return
    if machine.used_cores > _ALL_CORES * machine.num_cores:
        yield f"It computes on all {machine.num_cores:g} cores: more workers would not help."
    elif profile.busy > _ALL_CORES and idle >= 1:
        yield f"{idle:.1f} of {machine.num_cores:g} cores have nothing to do: try --workers {profile.num_workers + 1}."
    elif machine.delayed > _CROWDED and machine.num_cores - machine.used_cores - machine.idle_cores > _CROWDED:
        yield (
            f"{machine.delayed:.0%} of the time goes by until a core is free, while the run uses "
            f"{machine.used_cores:.1f} of {machine.num_cores:g}: other programs are at work on this machine."
        )
