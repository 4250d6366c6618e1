"""The pages of a run: its batches, its saved states and losses, and the samples of a step.

Enters: a `Site`, and a function that renders a template. Leaves: the answers. Guarantee: batches are those that the
loader of the run makes, and the samples of a step are those of `RunOrder`.
"""

import secrets
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bridge_data.errors import BridgeDataError, ConfigError
from bridge_data.tools.cli.state_contents import sources_of
from bridge_data.tools.view.batch_contents import contents, pictures_of, tokenizer_of
from bridge_data.tools.view.catalog import SampleAddress, SplitCatalog
from bridge_data.tools.view.charts import HEIGHT, WIDTH, step_line
from bridge_data.tools.view.gatekeeper import number_in, ranged
from bridge_data.tools.view.sample_cards import MediaContent, card
from bridge_data.tools.view.saved_run import SavedRun
from bridge_data.tools.view.site import Site

MAX_STEP = 10**9
"""The last step that may be requested."""

POLL_S = 5
"""Seconds between requests for updates by an open page of the run."""

MAX_STEP_CARDS = 96
"""Maximum samples shown of a step."""


class RunPages:
    """The endpoints. `render` takes the name of a template, the heading of the page and the template's values."""

    def __init__(self, site: Site, render: Callable[..., Response]) -> None:
        self._site, self._render = site, render
        self._session = secrets.token_hex(4)  # each server counts updates from the start

    def addresses(self) -> dict[str, Callable[[Request], Response]]:
        """The routes of the endpoints."""
        return {
            "/batches": self.batches,
            "/batches/{number:int}/pictures/{picture:int}": self.picture,
            "/run": self.saved_run,
            "/steps": self.chosen_step,
            "/steps/{step:int}": self.step,
        }

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
        return self._render("batches.html", "Batches", **values)

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

    def saved_run(self, request: Request) -> Response:
        """Losses and saved states of the run, or nothing (204) if they are those already `seen`."""
        self._site.refresh()
        saved = self._site.saved
        if not self._site.has_saved:
            raise LookupError("there is no run to show; give --state or --log")
        number = f"{self._session}-{saved.number}"
        if request.query_params.get("seen") == number:
            return Response(status_code=204)
        names = [name for name, _ in self._site.pages]
        return self._render(
            "run.html",
            "Run",
            seen=number,
            poll_s=POLL_S,
            left_out=saved.left_out,
            ledger_last=None if saved.ledger is None else saved.ledger.last,
            line=None if saved.log is None else step_line(saved.log.losses),
            first=0 if saved.log is None else saved.log.first,
            not_finite=() if saved.log is None else saved.log.not_finite,
            states=saved.states,
            progress=sources_of(saved.states[-1].state) if saved.states else [],
            has_batches="Batches" in names,
            has_steps="Batches" in names and self._site.run.schedule is not None,
            last=_last_step(saved),
            span=_span,
            width=WIDTH,
            height=HEIGHT,
        )

    def chosen_step(self, request: Request) -> Response:
        """To the page of the step that the field has, as the log numbers it."""
        log = self._site.saved.log
        first = 0 if log is None else log.first
        return RedirectResponse(f"/steps/{max(0, (number_in(request, 'step', first) or 0) - first)}", 303)

    def step(self, request: Request) -> Response:
        """The samples of a step."""
        self._site.refresh()
        run, step = self._site.run, request.path_params["step"]
        if run.schedule is None:
            raise ConfigError("the batches of a step are not known; give --config, with a global batch size")
        if step > MAX_STEP:
            raise LookupError(f"there is no step {step:,}")
        order = self._site.order
        self._site.check_replay(order.micro_batches(step))
        with self._site.working:
            found = order.at(step)
        part, split = self._part_of_run()
        shown = found.samples[:MAX_STEP_CARDS]
        log = self._site.saved.log
        first = 0 if log is None else log.first
        return self._render(
            "step.html",
            "Run",
            step=step,
            first=first,
            loss=None if log is None else dict(log.losses).get(step + first),
            found=found,
            part=part,
            cards=[]
            if split is None
            else [(card(split, SampleAddress(one.source_number, one.index)), one) for one in shown],
            keys=[one.key for one in shown] if split is None else [],
        )

    def _part_of_run(self) -> tuple[int, SplitCatalog | None]:
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


def _last_step(saved: SavedRun) -> int | None:
    """The last step that is logged or saved, as the log numbers it; None if there is none."""
    steps = [one.step for one in saved.states if one.step is not None]
    steps += [] if saved.log is None else [step for step, _ in saved.log.losses[-1:]]
    return max(steps, default=None)


def _span(numbers: tuple[int, int] | None) -> str:
    """`3`, `3–5`."""
    if numbers is None:
        return "–"
    return "–".join(f"{number:,}" for number in dict.fromkeys(numbers))
