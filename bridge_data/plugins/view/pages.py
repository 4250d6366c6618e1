"""The pages of `bridge-data view`, their routes, and the content to show: data, batches, a run so far.

Reads a `DataCatalog` and a `ShownRun`. Returns a Starlette application, behind the gatekeeper. URLs hold numbers,
search keys and names from fixed lists; only the command line names files. Batches are made on demand, and are those
that the trainer of the run gets: micro-batch m of the job, for any m soon after the beginning, a saved state, or a
batch shown before; the loader makes them, as one rank without workers, in the order of the whole job. The samples of a
step are those of `RunOrder`.
"""

import collections
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from jinja2 import Environment
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from bridge_data.errors import BridgeDataError, ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader import SavableDataLoader, get_savable_loader
from bridge_data.loader.checkpoint import Checkpoint
from bridge_data.order.state import LoaderState
from bridge_data.plugins.view.catalog import CatalogSource, SampleAddress
from bridge_data.plugins.view.charts import (
    EDGES,
    TokenLengths,
    count_draws,
    plan_values,
    shapes,
    token_lengths,
)
from bridge_data.plugins.view.contents import (
    DOWNLOAD,
    MediaContent,
    card,
    content,
    contents,
    fields_of,
    pictures_of,
    templates,
    tokenizer_of,
)
from bridge_data.plugins.view.data_catalog import BrowsedSplit, DataCatalog, SampleFilter
from bridge_data.plugins.view.gatekeeper import Gatekeeper, number_in, ranged
from bridge_data.plugins.view.sample_facts import facts_of, text_of
from bridge_data.plugins.view.shown_run import SavedRun, ShownRun
from bridge_data.runs.run_order import RunOrder
from bridge_data.runs.run_plan import Planner, RunLength, RunPlan
from bridge_data.runs.run_sections import skips_of
from bridge_data.runs.saved_files import RunRecords, ranks_of
from bridge_data.runs.state_contents import sources_of

Key = TypeVar("Key")
Made = TypeVar("Made")

MAX_STEPS = 200
"""Maximum batches made to reach the one shown."""

KEPT_BATCHES = 8
"""Batches kept in memory."""

STATE_EVERY = 16
"""Batches between states that are kept for going back."""


class BatchSequence:
    """The micro-batches of a job, in any order. Any thread may use it.

    `states` are saved states of the run. The beginning needs none, unless the run was assigned to another number of
    lanes since; `first` is the first micro-batch that can be shown.

    Raises:
        StateError: if a state is of other data or settings.
    """

    def __init__(self, dataset: LaneDataset, states: Sequence[LoaderState] = ()) -> None:
        self.dataset = dataset = dataset.changed(skips=skips_of(dataset, states))
        self._states: dict[int, dict[str, Any] | None] = {state.num_handed_out: state.to_dict() for state in states}
        lanes = {dataset.worker_config.num_lanes} | {num_lanes for s in states for num_lanes, _ in s.generations}
        if len(lanes) == 1:
            self._states.setdefault(0, None)
        self.first = min(self._states)
        self._loader: SavableDataLoader = get_savable_loader(dataset)
        self._iterator: Iterator[Any] = iter(())
        self._next = -1
        self._kept: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._lock = threading.Lock()
        for number in sorted(self._states, reverse=True):
            self._go_to(number)

    def get(self, number: int) -> Any:
        """Micro-batch `number` of the job.

        Raises:
            ConfigError: if it is before the first, or too far from those that were seen.
            LookupError: if the data end before it.
        """
        with self._lock:
            if number in self._kept:
                self._kept.move_to_end(number)
                return self._kept[number]
            if number < self.first:
                raise ConfigError(
                    f"batch {number}: the first that can be shown is {self.first}, that of the first state"
                )
            start = max(known for known in self._states if known <= number)
            if not start <= self._next <= number:
                self._go_to(start)
            if number - self._next >= MAX_STEPS:
                raise ConfigError(
                    f"batch {number}: it takes {number - self._next:,} batches before it, and at most {MAX_STEPS} are "
                    "made; give --state, a checkpoint shortly before it"
                )
            while True:
                batch = self._advance()
                if self._next > number:
                    return batch

    def _advance(self) -> Any:
        number = self._next
        if number % STATE_EVERY == 0:
            self._states.setdefault(number, self._loader.save_state_rank())
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise LookupError(f"the data end before batch {number}") from None
        self._next = number + 1
        self._kept[number] = batch
        while len(self._kept) > KEPT_BATCHES:
            self._kept.popitem(last=False)
        return batch

    def _go_to(self, number: int) -> None:
        """Go to the known state before batch `number`."""
        state = self._states[number]
        if state is None:
            self._loader = get_savable_loader(self.dataset)
        else:
            self._loader.restore_state_rank(state)
        self._next, self._iterator = number, iter(self._loader)


MAX_REPLAYED = 2000
"""Maximum micro-batches made again to find the samples of a step if arithmetic cannot."""


class _Latest(Generic[Key, Made]):
    """Caches the result of `make` for the last key."""

    def __init__(self, make: Callable[[Key], Made]) -> None:
        self._make = make
        self._found: tuple[Key, Made] | None = None

    def of(self, key: Key) -> Made:
        """The result for a key, from the cache if it is the last one."""
        if self._found is None or self._found[0] != key:
            self._found = key, self._make(key)
        return self._found[1]


class Site:
    """All content to show. `open_run` opens the data of the run when batches are requested, with the lanes and sizes of
    its states (None: there are no batches to show); `name`: its name; `has_encoder`: with its own task encoder.
    `read_saved` reads the output of the run so far (None: there is no run). `working` is held while hooks of the run
    are running: its readers are not thread-safe."""

    def __init__(
        self,
        catalog: DataCatalog,
        open_run: Callable[[SavedRun], ShownRun] | None,
        read_saved: Callable[[], SavedRun] | None = None,
        *,
        has_encoder: bool = False,
        name: str = "",
    ) -> None:
        self.catalog, self.saved = catalog, SavedRun()
        self.run_name = name or f"The run of {catalog.path}"
        self.working = threading.Lock()
        self._has_run, self._read_saved = open_run is not None, read_saved
        self._has_encoder, self._is_named = has_encoder, bool(name)
        self._opening = threading.RLock()
        self._token_lengths: dict[int, TokenLengths] = {}
        self._run: _Latest[object, ShownRun] = _Latest(lambda _: self._opened(open_run))
        self._batches = _Latest(_batch_sequence)
        self._order = _Latest(_run_order)
        self.refresh()

    def refresh(self) -> None:
        """Read the current output of the run. Raises as `read_saved` does."""
        if self._read_saved is not None:
            self.saved = self._read_saved()

    @property
    def title(self) -> str:
        """The name of the data or run shown."""
        return f"{self.run_name} · {self.catalog.path}" if self._is_named else str(self.catalog.path)

    @property
    def parts(self) -> list[str]:
        """The names of the split parts."""
        return self.catalog.part_names

    @property
    def pages(self) -> list[tuple[str, str]]:
        """(name, address) of the pages."""
        found = [("Samples", "/samples"), ("Blend", "/blend"), ("Sizes", "/shapes")]
        batches = [("Batches", "/batches"), ("Plan", "/plan")] if self._has_run else []
        return [*([("Run", "/run")] if self.has_saved else []), *found, *batches]

    @property
    def has_saved(self) -> bool:
        """Whether a run is shown, even one without any output yet."""
        return self._read_saved is not None

    @property
    def run(self) -> ShownRun:
        """The data of the run. Raises a ConfigError if there is none, or it cannot be opened."""
        with self._opening:
            return self._run.of(self.saved.num_lanes)

    @property
    def batches(self) -> BatchSequence:
        """The batches of the run. Raises as `run` does, and a StateError if a state is of other data or settings."""
        with self._opening:
            return self._batches.of((self.run, self.saved.states))

    @property
    def order(self) -> RunOrder:
        """The order of the run: the samples of each step. Raises as `batches` does."""
        with self._opening:
            return self._order.of((self.run, self.saved.states, self.saved.records))

    def token_lengths(self, split: BrowsedSplit, source: CatalogSource) -> TokenLengths | None:
        """The tokens of samples of a source, as the run encodes them; None if the run has no encoder, or other data."""
        if not self._has_encoder or not self.reads(split):
            return None
        with self.working:
            if source.number not in self._token_lengths:
                self._token_lengths[source.number] = token_lengths(self.run.dataset, source.number)
            return self._token_lengths[source.number]

    def reads(self, split: BrowsedSplit) -> bool:
        """Whether the samples of a split part are those of the run, under the same numbers."""
        wanted = [(source.path, source.split_part, source.num_samples) for source in self.run.dataset.plan.sources]
        return wanted == [(source.path, split.name, source.num_samples) for source in split.sources]

    def check_replay(self, numbers: range) -> None:
        """Check that finding the samples of micro-batches `numbers` needs few enough batches.

        Raises:
            ConfigError: if packs or groups would need too many samples.
        """
        dataset = self.run.dataset
        if dataset.batching.packing_buffer_size is None and not dataset.may_multiply:
            return  # by arithmetic
        if self.saved.records is not None and all(map(self.order.is_recorded, numbers)):
            return
        start = max((slot for one in self.saved.states if (slot := one.state.num_handed_out) <= numbers[0]), default=0)
        if numbers[0] - start > MAX_REPLAYED:
            raise ConfigError(
                f"micro-batch {numbers[0]}: to know its packs or groups, {numbers[0] - start:,} batches before it "
                f"would be made again, and at most {MAX_REPLAYED:,} are; give --state, a checkpoint shortly before it"
            )

    def _opened(self, open_run: Callable[[SavedRun], ShownRun] | None) -> ShownRun:
        if open_run is None:
            raise ConfigError("there are no batches to show; give --config")
        return open_run(self.saved)


def _last_recorded(saved: SavedRun) -> tuple[int, int] | None:
    """(repetition, number as they were handed out) of the last micro-batch in the ledger; None if it has none."""
    last = None if saved.records is None else saved.records.last
    skips = saved.states[-1].state.skips if saved.states else None
    return last if last is None or skips is None else (last[0], skips.num_handed_out(last[1]))


def _states(saved: Sequence[Checkpoint]) -> list[LoaderState]:
    return [one.state for one in saved]


def _batch_sequence(key: tuple[ShownRun, Sequence[Checkpoint]]) -> BatchSequence:
    run, saved = key
    return BatchSequence(run.dataset, _states(saved))


def _run_order(key: tuple[ShownRun, Sequence[Checkpoint], RunRecords | None]) -> RunOrder:
    run, saved, records = key
    states, ranks = _states(saved), ranks_of(saved)
    return RunOrder(run.dataset, schedule=run.schedule, states=states, records=records, num_ranks=ranks)


MAX_PLANNED, MAX_RANKS = 1 << 16, 4096
"""Samples over which a plan is exact: a second. Ranks for which there is a plan."""


def _planned(run: ShownRun, ranks: int, steps: int | None) -> RunPlan:
    """The plan of a run of `steps` (None: to the end of the data, or one epoch) on `ranks` ranks.

    Raises:
        ConfigError: for too many ranks or too few, and as `Planner` does.
    """
    if not 1 <= ranks <= MAX_RANKS:
        raise ConfigError(f"ranks={ranks}: expected 1 to {MAX_RANKS:,}")
    config, length = run.dataset.worker_config, None if steps is None else RunLength(steps=steps)
    lanes = 0 if config.num_lanes % ranks else config.num_lanes
    plan, size = run.dataset.plan, run.dataset.batching.batch_size or 1
    changed = config.changed(world_size=ranks, num_lanes=lanes).for_samples(plan.num_samples, size)
    return Planner(run.dataset.on_ranks(changed), run.schedule).plan(length, exact_samples=MAX_PLANNED)


MAX_STEP = 10**9
"""The last step that may be requested."""

POLL_S = 5
"""Seconds between requests for updates by an open page of the run."""

MAX_STEP_CARDS = 96
"""Maximum samples shown of a step."""


def _last_step(saved: SavedRun) -> int | None:
    """The last step of which a state is saved; None if there is none."""
    steps = [one.step for one in saved.states if one.step is not None]
    return max(steps, default=None)


def _span(numbers: tuple[int, int] | None) -> str:
    """`3`, `3–5`."""
    if numbers is None:
        return "–"
    return "–".join(f"{number:,}" for number in dict.fromkeys(numbers))


PAGE_SIZE = 24
"""Samples per page, and per search."""

MAX_TEXT = 512
"""Maximum characters of a searched key."""

_FOLDER = Path(__file__).parent
_STATIC = {
    "icon.svg": "image/svg+xml",
    "view.css": "text/css; charset=utf-8",
    "view.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
}


class Pages:
    """The endpoints. Requests come in several threads; objects that are not thread-safe have their own locks."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._templates: Environment = templates()
        self._templates.globals["edges"] = EDGES
        self._session = secrets.token_hex(4)  # each server counts updates from the start

    def routes(self) -> list[Route]:
        """All addresses."""
        pages = {
            "/": self.home,
            "/samples": self.samples,
            "/sample/{part:int}/{source:int}/{index:int}": self.sample,
            "/media/{part:int}/{source:int}/{index:int}/{member:int}/{number:int}": self.media,
            "/blend": self.blend,
            "/shapes": self.shapes,
            "/batches": self.batches,
            "/batches/{number:int}/pictures/{picture:int}": self.picture,
            "/run": self.saved_run,
            "/plan": self.plan,
            "/steps": self.chosen_step,
            "/steps/{step:int}": self.step,
            "/static/{name}": self.static,
        }
        return [Route(path, page, methods=["GET"]) for path, page in pages.items()]

    def not_found(self, _: Request, error: Exception) -> Response:
        """The page for a request of what does not exist."""
        return self._failed("Not found", str(error.args[0] if error.args else error), 404)

    def no_page(self, request: Request, _: Exception) -> Response:
        """The page for an address that is none of `routes`."""
        return self._failed("Not found", f"there is no page {request.url.path}", 404)

    def refused(self, _: Request, error: Exception) -> Response:
        """The page for a mistake of the user, or a fault in the data."""
        return self._failed("This cannot be shown", str(error), 422)

    def _failed(self, heading: str, message: str, status: int) -> Response:
        answer = self._page("error.html", heading, message=message)
        answer.status_code = status
        return answer

    def _page(self, template: str, heading: str, **values: Any) -> Response:
        made = self._templates.get_template(template).render(site=self._site, heading=heading, **values)
        return HTMLResponse(made.encode("utf-8", "backslashreplace"))  # keys may hold surrogates

    # Samples

    def home(self, request: Request) -> Response:
        """The first available page."""
        return RedirectResponse(self._site.pages[0][1], 303)

    def samples(self, request: Request) -> Response:
        """A page of samples, or those of a search."""
        part, split = self._part(request)
        chosen = SampleFilter(
            source=number_in(request, "source", None), subflavor=request.query_params.get("subflavor", "")[:MAX_TEXT]
        )
        text, error, is_cut = request.query_params.get("q", "").strip()[:MAX_TEXT], "", False
        sources = split.shown(chosen)
        found: list[SampleAddress] = []
        number, num_pages = 1, 1
        if text:
            try:
                found = split.search.find(text, sources, PAGE_SIZE + 1)
            except BridgeDataError as failure:
                error = str(failure)
            is_cut, found = len(found) > PAGE_SIZE, found[:PAGE_SIZE]
        else:
            found, number, num_pages = split.page(chosen, number_in(request, "page", 1) or 1, PAGE_SIZE)
        given = {"part": part, "source": "" if chosen.source is None else chosen.source, "subflavor": chosen.subflavor}
        return self._page(
            "samples.html",
            "Samples",
            part=part,
            split=split,
            chosen=chosen,
            text=text,
            is_cut=is_cut,
            error=error,
            number=number,
            num_pages=num_pages,
            total=sum(source.num_samples for source in sources),
            given=given,
            query=lambda page: urlencode({**given, "page": page}),
            cards=[card(split, address) for address in found],
        )

    def sample(self, request: Request) -> Response:
        """One sample in full."""
        part, split, address = self._address(request)
        source = split.source(address)
        made, made_error = None, ""
        try:
            built = split.build(address)
            if built is not None:
                fields = [(name, text_of(facts_of(value))) for name, value in fields_of(built).items()]
                made = {"kind": type(built).__name__, "fields": [pair for pair in fields if pair[0][:2] != "__"]}
        except BridgeDataError as error:
            made_error = str(error)
        except Exception as error:  # from the user's sample loader or joiner
            made_error = f"{type(error).__name__}: {error}"
        return self._page(
            "sample.html",
            "Samples",
            part=part,
            split=split,
            source=source,
            shown=card(split, address, whole=True),
            made=made,
            made_error=made_error,
            page_size=PAGE_SIZE,
        )

    def media(self, request: Request) -> Response:
        """A part of a sample, or a range of it."""
        _, split, address = self._address(request)
        member, number = request.path_params["member"], request.path_params["number"]
        found = content(split.read(address), member, number, small="small" in request.query_params)
        if "download" in request.query_params:
            found = MediaContent(found.data, DOWNLOAD)
        return ranged(found, request.headers.get("range"))

    # Figures

    def blend(self, request: Request) -> Response:
        """The blend as requested and as drawn."""
        part, split = self._part(request)
        draws, lanes = number_in(request, "draws", 1_000_000) or 1, number_in(request, "lanes", 8) or 1
        seed, counts, error = number_in(request, "seed", 0) or 0, None, ""
        try:
            if split.plan is None:
                raise ConfigError("there is no dataset.yaml, so nothing is known of a blend")
            counts = count_draws(split.plan, draws, lanes, seed)
        except BridgeDataError as failure:
            error = str(failure)
        tree = "" if split.plan is None else str(split.plan)
        shown = {"draws": draws, "lanes": lanes, "seed": seed, "counts": counts, "error": error, "tree": tree}
        return self._page("blend.html", "Blend", part=part, split=split, **shown)

    def shapes(self, request: Request) -> Response:
        """Histograms of a source."""
        part, split = self._part(request)
        source = split.source(SampleAddress(number_in(request, "source", 0) or 0, 0))
        found = shapes(split, source, self._site.token_lengths(split, source))
        return self._page("shapes.html", "Sizes", part=part, split=split, source=source, shapes=found)

    # Batches

    def batches(self, request: Request) -> Response:
        """A batch as the trainer gets it."""
        self._site.refresh()
        run, sequence = self._site.run, self._site.batches
        number = number_in(request, "number", sequence.first) or 0
        shown, pictures, error = None, [], ""
        try:
            encoder = run.dataset.task_encoder
            with self._site.working:  # also guards the tokenizer, which hooks use
                batch = sequence.get(number)
                shown, pictures = contents(batch, tokenizer_of(encoder)), pictures_of(batch, encoder)
        except (BridgeDataError, LookupError) as failure:
            error = str(failure)
        except Exception as failure:  # from the user's hooks
            error = f"{type(failure).__name__}: {failure}"
        values = {"number": number, "first": sequence.first, "shown": shown, "pictures": pictures, "error": error}
        return self._page("batches.html", "Batches", **values)

    def picture(self, request: Request) -> Response:
        """A picture of a batch, as PNG."""
        sequence = self._site.batches
        with self._site.working:
            batch = sequence.get(request.path_params["number"])
        pictures, number = pictures_of(batch, self._site.run.dataset.task_encoder), request.path_params["picture"]
        if number >= len(pictures):
            raise LookupError(f"the batch has no picture number {number}")
        return ranged(MediaContent(pictures[number].png, "image/png"), None)

    # The run

    def plan(self, request: Request) -> Response:
        """What the run will see, before it starts."""
        self._site.refresh()
        ranks, steps = number_in(request, "ranks", 1), number_in(request, "steps", None)
        shown: dict[str, Any] = {"found": None, "error": ""}
        try:
            shown |= plan_values(_planned(self._site.run, ranks or 0, steps))
        except BridgeDataError as failure:
            shown["error"] = str(failure)
        return self._page("plan.html", "Plan", ranks=ranks, steps=steps, **shown)

    def saved_run(self, request: Request) -> Response:
        """Saved states of the run, or nothing (204) if they are those already `seen`."""
        self._site.refresh()
        saved = self._site.saved
        if not self._site.has_saved:
            raise LookupError("there is no run to show; give --state")
        number = f"{self._session}-{saved.number}"
        if request.query_params.get("seen") == number:
            return Response(status_code=204)
        names = [name for name, _ in self._site.pages]
        return self._page(
            "run.html",
            "Run",
            seen=number,
            poll_s=POLL_S,
            left_out=saved.left_out,
            ledger_last=_last_recorded(saved),
            states=saved.states,
            progress=sources_of(saved.states[-1].state) if saved.states else [],
            has_batches="Batches" in names,
            has_steps="Batches" in names,
            last=_last_step(saved),
            span=_span,
        )

    def chosen_step(self, request: Request) -> Response:
        """To the page of the step that the field has."""
        return RedirectResponse(f"/steps/{number_in(request, 'step', 0) or 0}", 303)

    def step(self, request: Request) -> Response:
        """The samples of a step."""
        self._site.refresh()
        step = request.path_params["step"]
        if step > MAX_STEP:
            raise LookupError(f"there is no step {step:,}")
        order = self._site.order
        self._site.check_replay(order.micro_batches(step))
        with self._site.working:
            found = order.at(step)
        part, split = self._part_of_run()
        shown = found.samples[:MAX_STEP_CARDS]
        return self._page(
            "step.html",
            "Run",
            step=step,
            found=found,
            part=part,
            cards=[]
            if split is None
            else [(card(split, SampleAddress(one.source_number, one.index)), one) for one in shown],
            keys=[one.key for one in shown] if split is None else [],
        )

    def _part_of_run(self) -> tuple[int, BrowsedSplit | None]:
        """(number, split part) whose samples the run reads; None if other data are shown."""
        catalog = self._site.catalog
        for number, name in enumerate(catalog.part_names):
            try:
                split = catalog.part(name)
            except BridgeDataError:
                continue
            if self._site.reads(split):
                return number, split
        return 0, None

    # Files of this package

    def static(self, request: Request) -> Response:
        """A file of this package, from a fixed list."""
        name = request.path_params["name"]
        if name not in _STATIC:
            raise LookupError("there is no such file")
        headers = {"content-type": _STATIC[name], "cache-control": "max-age=3600"}
        return Response((_FOLDER / "static" / name).read_bytes(), headers=headers)

    # What requests name

    def _part(self, request: Request) -> tuple[int, BrowsedSplit]:
        """(number, split part) of a request, by default the first with samples."""
        catalog = self._site.catalog
        number = number_in(request, "part", None)
        if number is None:
            number = catalog.part_names.index(catalog.first_part())
        return number, self._split(number)

    def _split(self, number: int) -> BrowsedSplit:
        catalog = self._site.catalog
        if not 0 <= number < len(catalog.part_names):
            raise LookupError(f"there is no split part number {number}")
        return catalog.part(catalog.part_names[number])

    def _address(self, request: Request) -> tuple[int, BrowsedSplit, SampleAddress]:
        part = request.path_params["part"]
        split = self._split(part)
        address = SampleAddress(request.path_params["source"], request.path_params["index"])
        split.source(address)
        return part, split, address


def application(
    site: Site, *, token: str | None = None, names: Iterable[str] = (), cookie: str = "bridge_view"
) -> ASGIApp:
    """The application that shows `site`; `token`, `names` and `cookie` are those of the `Gatekeeper`."""
    pages = Pages(site)
    handlers = {404: pages.no_page, LookupError: pages.not_found, BridgeDataError: pages.refused}
    app = Starlette(routes=pages.routes(), exception_handlers=handlers)
    return Gatekeeper(app, token, names, cookie)
