"""The pages and their routes.

Enters: a `Site`, which holds the content. Leaves: a Starlette application, behind the gatekeeper. Guarantee: URLs hold
numbers, search keys and names from fixed lists; only the command line names files.
"""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from bridge_data.errors import BridgeDataError, ConfigError
from bridge_data.tools.descriptions import describe_value
from bridge_data.tools.view.batch_contents import fields_of
from bridge_data.tools.view.blend_counts import count_draws
from bridge_data.tools.view.catalog import SampleAddress, SampleFilter, SplitCatalog
from bridge_data.tools.view.charts import HEIGHT, WIDTH, shapes
from bridge_data.tools.view.gatekeeper import Gatekeeper, number_in, ranged
from bridge_data.tools.view.run_pages import RunPages
from bridge_data.tools.view.sample_cards import DOWNLOAD, MediaContent, card, content, templates
from bridge_data.tools.view.site import Site

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

    def routes(self) -> list[Route]:
        """All addresses."""
        pages = {
            "/": self.home,
            "/samples": self.samples,
            "/sample/{part:int}/{source:int}/{index:int}": self.sample,
            "/media/{part:int}/{source:int}/{index:int}/{member:int}/{number:int}": self.media,
            "/blend": self.blend,
            "/shapes": self.shapes,
            **RunPages(self._site, self._page).addresses(),
            "/static/{name}": self.static,
        }
        return [Route(path, self._guarded(page), methods=["GET"]) for path, page in pages.items()]

    def _guarded(self, page: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """Show user errors and faults in the data as pages."""

        @functools.wraps(page)
        def guarded(request: Request) -> Response:
            try:
                return page(request)
            except LookupError as error:
                return self._failed("Not found", str(error.args[0] if error.args else error), 404)
            except BridgeDataError as error:
                return self._failed("This cannot be shown", str(error), 422)

        return guarded

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
                fields = [(name, describe_value(value)) for name, value in fields_of(built).items()]
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
        size = {"width": WIDTH, "height": HEIGHT}
        return self._page("shapes.html", "Sizes", part=part, split=split, source=source, shapes=found, **size)

    # Files of this package

    def static(self, request: Request) -> Response:
        """A file of this package, from a fixed list."""
        name = request.path_params["name"]
        if name not in _STATIC:
            raise LookupError("there is no such file")
        headers = {"content-type": _STATIC[name], "cache-control": "max-age=3600"}
        return Response((_FOLDER / "static" / name).read_bytes(), headers=headers)

    # What requests name

    def _part(self, request: Request) -> tuple[int, SplitCatalog]:
        """(number, split part) of a request, by default the first with samples."""
        catalog = self._site.catalog
        number = number_in(request, "part", None)
        if number is None:
            number = catalog.part_names.index(catalog.first_part())
        return number, self._split(number)

    def _split(self, number: int) -> SplitCatalog:
        catalog = self._site.catalog
        if not 0 <= number < len(catalog.part_names):
            raise LookupError(f"there is no split part number {number}")
        return catalog.part(catalog.part_names[number])

    def _address(self, request: Request) -> tuple[int, SplitCatalog, SampleAddress]:
        part = request.path_params["part"]
        split = self._split(part)
        address = SampleAddress(request.path_params["source"], request.path_params["index"])
        split.source(address)
        return part, split, address


def application(
    site: Site, *, token: str | None = None, names: Iterable[str] = (), cookie: str = "bridge_view"
) -> ASGIApp:
    """The application that shows `site`; `token`, `names` and `cookie` are those of the `Gatekeeper`."""
    app = Starlette(routes=Pages(site).routes())
    return Gatekeeper(app, token, names, cookie)
