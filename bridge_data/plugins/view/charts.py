"""What a source looks like in figures: sizes and lengths as histograms, losses as lines, the counts of a blend.

Reads values; a source, for its tokens the data of a run; a plan. Returns bars, points and ticks in the units of a
`viewBox`, which the templates draw, and a sentence that says what data they cover. With media metadata
(`bridge-data prepare --media`), those of the data set; else those of a fixed number of samples, evenly spread over it.
Tokens are those of the samples that the task encoder of the run makes. The counts of a blend are those of the order
itself (`blends.BlendSchedule`), by arithmetic.
"""

import dataclasses
import io
import math
import random
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bridge_data.counts import tokens_of
from bridge_data.data import Records
from bridge_data.data.blocks import bytes_of
from bridge_data.data.prepared import tars_of
from bridge_data.decode.av import AV_EXTENSIONS, AVDecoder
from bridge_data.decode.media_metadata import AVMetadata, ImageMetadata, MediaIndex
from bridge_data.errors import BridgeDataError, ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.order import BlendSchedule
from bridge_data.plan import Plan
from bridge_data.plan.blending import SAMPLES
from bridge_data.plugins.view.catalog import CatalogSource, SampleAddress
from bridge_data.plugins.view.contents import extension, kind_of, write_page
from bridge_data.plugins.view.data_catalog import BrowsedSplit
from bridge_data.runs.run_plan import RunPlan, load_ratios

WIDTH, HEIGHT = 640, 264
"""The `viewBox` of a chart."""

LEFT, RIGHT, TOP, BOTTOM = 56, 620, 38, 210
"""The edges of the plot in it: outside are the ticks and the names of the axes."""

EDGES = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "bottom": BOTTOM}
"""What the templates draw the axes by."""

NUM_BINS = 24

MAX_POINTS = 600
"""Points of a line that link to a step; if there are more steps, each group keeps its largest loss."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis, `at` units along it."""

    at: float
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class HistogramBar:
    """A bar of a histogram, and its text."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """`values` in bins; on a logarithmic scale if their range is wide."""

    title: str
    unit: str
    num_values: int
    summary: str
    bars: tuple[HistogramBar, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def histogram(title: str, unit: str, values: Sequence[float]) -> Histogram:
    """The histogram of at least one value."""
    ordered = sorted(values)
    least, most = ordered[0], ordered[-1]
    is_log = least > 0 and most / least > 50
    low, high = (math.log10(least), math.log10(most)) if is_log else (least, most)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    span = (high - low) * (1 + 1e-9)
    counts = [0] * NUM_BINS
    for value in ordered:
        counts[int(((math.log10(value) if is_log else value) - low) / span * NUM_BINS)] += 1
    top = max(counts)

    def shown(at: float) -> str:
        value = 10**at if is_log else at
        return number_text(value)

    step, inner = (RIGHT - LEFT) / NUM_BINS, BOTTOM - TOP
    bars = []
    for number, count in enumerate(counts):
        first, last = (shown(low + span * (number + edge) / NUM_BINS) for edge in (0, 1))
        height = inner * count / top
        text = f"{count:,} from {first} to {last} {unit}"
        bars.append(HistogramBar(LEFT + number * step + 1, BOTTOM - height, step - 2, height, text))
    x_ticks = tuple(Tick(LEFT + (RIGHT - LEFT) * part / 4, shown(low + span * part / 4)) for part in range(5))
    middle = ordered[len(ordered) // 2]
    return Histogram(
        title=title,
        unit=unit,
        num_values=len(ordered),
        summary=f"{number_text(least)} to {number_text(most)} {unit}, median {number_text(middle)}",
        bars=tuple(bars),
        x_ticks=x_ticks,
        y_ticks=_ticks(0, top, lambda value: BOTTOM - inner * value / top, is_whole=True),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class StepPoint:
    """A step on a line."""

    x: float
    y: float
    step: int
    value: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """Values over steps; `path` is the `d` of an SVG path."""

    points: tuple[StepPoint, ...]
    path: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    num_steps: int


def step_line(values: Sequence[tuple[int, float]]) -> StepLine:
    """The line through `(step, value)`, at least one, ordered by step. Of many, each group's largest value."""
    group = -(-len(values) // MAX_POINTS)
    kept = [max(values[at : at + group], key=lambda pair: pair[1]) for at in range(0, len(values), group)]
    first, last = kept[0][0], max(kept[-1][0], kept[0][0] + 1)
    low, high = min(value for _, value in kept), max(value for _, value in kept)
    if high <= low:
        low, high = low - 0.5, high + 0.5

    def across(step: float) -> float:
        return LEFT + (RIGHT - LEFT) * (step - first) / (last - first)

    def upward(value: float) -> float:  # the lowest point stays clear of the axis
        return TOP + (BOTTOM - 8 - TOP) * (high - value) / (high - low)

    points = [StepPoint(round(across(step), 2), round(upward(value), 2), step, value) for step, value in kept]
    path = "M" + " L".join(f"{point.x:g},{point.y:g}" for point in points)
    return StepLine(
        points=tuple(points),
        path=path,
        x_ticks=_ticks(first, last, across, is_whole=True),
        y_ticks=_ticks(low, high, upward),
        num_steps=len(values),
    )


def plan_values(found: RunPlan) -> dict[str, Any]:
    """What `planned.html` shows of a plan: its tables, bars of its sources as (name, epochs, width from 0 to 1), and
    lines of its exact steps as (title, unit, line)."""
    epochs, values = found.epochs(found.run) or [], {}
    most = max(epochs, default=0) or 1
    if found.names:
        values[f"{found.names[0].capitalize()} of each step", found.names[0]] = [
            float(one.totals.costs[0]) for one in found.steps
        ]
    if found.fill is not None:
        values["Padding of the packs of each step", "%"] = [
            100 - 100 * float(one.totals.costs[0]) / one.totals.room for one in found.steps
        ]
    for name, heading, spread in (("in_turn", "in turn", found.in_turn), ("assigned", "assigned", found.assigned)):
        if spread is not None and found.num_ranks > 1:
            ratios = load_ratios([getattr(one, name) for one in found.steps])
            values[f"Loads of {found.num_ranks} ranks in each step, {heading}", f"greatest over mean {found.load}"] = (
                ratios.tolist()
            )
    return {
        "found": found,
        "bars": [(found.sources[at][0], epochs[at], epochs[at] / most) for at in found.shown_sources],
        "lines": [(*names, step_line([*enumerate(line)])) for names, line in values.items() if line],
    }


def write_plan(file: Path, title: str, found: RunPlan) -> None:
    """Write a plan to `file`, as a page. Raises as `write_page` does."""
    write_page(file, "plan_sheet.html", title=title, edges=EDGES, **plan_values(found))


def _ticks(low: float, high: float, place: Callable[[float], float], *, is_whole: bool = False) -> tuple[Tick, ...]:
    """About five ticks at round values from `low` to `high`, which differ; `place` returns the place of a value."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    step = max(1.0, round(step)) if is_whole else step
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return tuple(Tick(round(place(number * step), 2), f"{number * step:,.{digits}f}") for number in numbers)


def number_text(value: float) -> str:
    """`12,000`, `3.4`, `0.0012`."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


NUM_SAMPLED = 200
"""Samples to read if there are no media metadata."""

MAX_MEDIA = 50_000
"""Media metadata to read."""

MAX_ENCODE_S = 10.0
"""Seconds for encoding samples to count their tokens; samples not reached are left out."""

TOKENS = "length in tokens"

_UNITS = {
    TOKENS: "tokens",
    "width": "pixels",
    "height": "pixels",
    "length of clips": "s",
    "length of texts": "characters",
    "size of samples": "bytes",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Shapes:
    """Histograms of a source, and what data they cover."""

    histograms: tuple[Histogram, ...]
    basis: str


@dataclasses.dataclass(frozen=True, slots=True)
class TokenLengths:
    """The tokens of some samples of a source, as a run encodes them; `num_failed` are samples that its hooks skipped or
    failed on."""

    lengths: tuple[int, ...]
    num_failed: int

    @property
    def basis(self) -> str:
        """What data they cover."""
        if not self.lengths and not self.num_failed:
            return ""
        failed = f"; its hooks leave out, or fail on, {self.num_failed:,} more" if self.num_failed else ""
        return f" Tokens: of {len(self.lengths):,} samples at random, as the run encodes them{failed}."


def token_lengths(dataset: LaneDataset, source: int) -> TokenLengths:
    """The tokens of samples of a source, by its number in the plan, drawn at random; none if encoded samples have no
    `tokens` or `input_ids`."""
    size, name = dataset.plan.sources[source].num_samples, dataset.source_ids[source]
    end = time.monotonic() + MAX_ENCODE_S
    lengths, num_failed = [], 0
    for index in random.Random(0).sample(range(size), min(NUM_SAMPLED, size)):
        try:
            lengths.append(tokens_of(dataset.restore_sample((name, 0, index, 0)))[0])
        except Exception:  # from the data, or from the user's hooks
            num_failed += 1
        if time.monotonic() > end:
            break
    return TokenLengths(tuple(lengths), num_failed) if any(lengths) else TokenLengths((), 0)


def shapes(part: BrowsedSplit, source: CatalogSource, tokens: TokenLengths | None = None) -> Shapes:
    """The histograms of a source; `tokens` are those of its samples.

    Raises:
        DatasetError: if its metadata or its samples cannot be read.
    """
    media, basis = _of_metadata(source.records)
    sampled = _of_samples(part, source, with_media=not media)
    count = min(NUM_SAMPLED, source.num_samples)
    of_samples = f"{count:,} samples, evenly spread" if count < source.num_samples else f"all {count:,} samples"
    if media:
        basis = f"Pictures and clips: {basis}. Texts and sizes: of {of_samples}."
    else:
        basis = f"Of {of_samples}; bridge-data prepare --media stores sizes and lengths of all pictures and clips."
    found = {**media, **sampled}
    if tokens is not None:
        found[TOKENS] = tokens.lengths
        basis += tokens.basis
    return Shapes(tuple(histogram(name, unit, found[name]) for name, unit in _UNITS.items() if found.get(name)), basis)


def _of_metadata(records: Records) -> tuple[Mapping[str, Sequence[float]], str]:
    """(values by name, what data they cover) from the media metadata; empty if there are none."""
    inner = tars_of(records)
    if inner is None:
        return {}, ""
    try:
        index = MediaIndex.open(inner.root)
    except ConfigError:
        return {}, ""
    found, total = index.spread(MAX_MEDIA)
    values: defaultdict[str, list[float]] = defaultdict(list)
    for metadata in found:
        _note(values, metadata)
    part = "" if len(found) == total else f"{len(found):,}, evenly spread, of "
    return values, f"the stored media metadata, {part}{total:,} of the whole data set, all split parts"


def _note(values: defaultdict[str, list[float]], found: ImageMetadata | AVMetadata) -> None:
    if isinstance(found, ImageMetadata):
        values["width"].append(found.width)
        values["height"].append(found.height)
        return
    if found.video_width and found.video_height:
        values["width"].append(found.video_width)
        values["height"].append(found.video_height)
    length = max(found.video_duration or 0, found.audio_duration or 0)
    if length > 0:
        values["length of clips"].append(length)


def _of_samples(part: BrowsedSplit, source: CatalogSource, *, with_media: bool) -> Mapping[str, Sequence[float]]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    count = min(NUM_SAMPLED, source.num_samples)
    for number in range(count):
        try:
            raw = part.read(SampleAddress(source.number, number * source.num_samples // count))
        except BridgeDataError:
            continue  # its card says why
        members = [member for member in raw.made_of if member is not None]
        values["size of samples"].append(
            sum(len(bytes_of(data)) for member in members for data in member.parts.values())
        )
        for member in members:
            for name, data in member.parts.items():
                if isinstance(data, str):
                    values["length of texts"].append(len(data))
                elif extension(name) in ("txt", "text", "json", "md", "transcript"):
                    values["length of texts"].append(len(data.decode("utf-8", "replace")))
                elif with_media and isinstance(data, bytes):
                    _note_media(values, name, data)
    return values


def _note_media(values: defaultdict[str, list[float]], name: str, data: bytes) -> None:
    """Record the size or the length of a picture or a clip, if it can be read."""
    if kind_of(name) == "picture":
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                image = Image.open(io.BytesIO(data))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            return
        values["width"].append(image.width)
        values["height"].append(image.height)
    elif extension(name) in AV_EXTENSIONS:
        try:
            metadata = AVDecoder(data).get_metadata(get_video_frame_count=False)
        except BridgeDataError:
            return
        _note(values, metadata)


MAX_DRAWS, MAX_LANES = 10**12, 4096


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceShare:
    """A source of a blend: `asked` is its requested share at the end of the draws, from 0 to 1; `drawn` are samples."""

    number: int
    name: str
    path: str
    num_samples: int
    asked: float
    drawn: int
    share: float

    @property
    def epochs(self) -> float:
        """The number of epochs of its samples that were drawn."""
        return self.drawn / self.num_samples


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlendCounts:
    """A blend after `draws` samples of a job with `num_lanes` lanes. `changes` are the samples at which weights
    change."""

    draws: int
    num_lanes: int
    sources: tuple[SourceShare, ...]
    changes: tuple[int, ...]


def count_draws(plan: Plan, draws: int, num_lanes: int, seed: int) -> BlendCounts:
    """The samples of each source in `draws` draws, which the lanes share equally.

    Raises:
        ConfigError: if the plan has no weights, or a number is out of range.
    """
    if plan.weights is None:
        raise ConfigError("this split part is read front to back, as for validation: it has no blend")
    if plan.weight_unit != SAMPLES:
        raise ConfigError(
            f"the weights of this blend are shares of {plan.weight_unit}, not of draws: how often its samples are "
            "drawn says `bridge-data check --run`, with the task encoder by which they were measured"
        )
    if not (1 <= draws <= MAX_DRAWS and 1 <= num_lanes <= MAX_LANES):
        raise ConfigError(
            f"draws={draws}, lanes={num_lanes}: expected 1 to {MAX_DRAWS:,} draws and 1 to {MAX_LANES:,} lanes"
        )
    weights = plan.weights
    for start, later in plan.later_weights:
        weights = later if start < draws else weights
    counts = np.zeros(len(plan.sources), dtype=np.int64)
    if len(plan.sources) == 1:
        counts[0] = draws
    else:
        schedule = BlendSchedule([(0, plan.weights), *plan.later_weights], seed)
        each, rest = divmod(draws, num_lanes)
        for lane in range(num_lanes):
            counts += schedule.counts(lane, num_lanes, each + (lane < rest))
    sources = tuple(
        SourceShare(
            number=number,
            name=source.name,
            path=source.path,
            num_samples=source.num_samples,
            asked=weights[number],
            drawn=int(counts[number]),
            share=int(counts[number]) / draws,
        )
        for number, source in enumerate(plan.sources)
    )
    changes = tuple(start for start, _ in plan.later_weights)
    return BlendCounts(draws=draws, num_lanes=num_lanes, sources=sources, changes=changes)
