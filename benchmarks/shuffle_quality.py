"""Shuffle quality, compared with a true permutation, Megatron-Energon and mosaicml-streaming.

Each library reads two epochs of the same numbered texts through its public API, with batches of 32, a shuffle buffer
of 100 samples and no worker processes; mosaicml-streaming with a shuffle block of 100 and with its default. Printed is
a table for each geometry of shards; docs/benchmarks.md says what each row means. It is a report: the exit status is
always 0.

    python -m benchmarks.shuffle_quality [--geometry NAME ...] [--seeds N] [--peer-seeds N] [--json FILE] [--plot FILE]
"""

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.mixing import orders, scatter, sheet, statistics
from benchmarks.mixing.orders import GEOMETRIES, LIBRARIES, Order
from benchmarks.mixing.statistics import Layout
from benchmarks.speed.programs import ENVIRONMENTS

FORMULA_SEEDS = 5
"""Seeds over whose windows the expected inflation is taken."""

Found = dict[str, Order | str]


def draw_all(arguments: argparse.Namespace, folder: Path) -> dict[str, Found]:
    """The orders of every geometry and library, two processes at a time."""
    pythons = {
        orders.OURS: Path(sys.executable),
        orders.OURS_ONE_LANE: Path(sys.executable),
        orders.ENERGON: arguments.energon,
        orders.ENERGON_ONE_RANK: arguments.energon,
        orders.MOSAIC: arguments.streaming,
        orders.MOSAIC_DEFAULT: arguments.streaming,
    }
    for name in arguments.geometry:
        orders.write_data(GEOMETRIES[name], folder / name)

    def one(job: tuple[str, str]) -> Order | str:
        name, library = job
        print(f"{name}: {library}", file=sys.stderr, flush=True)
        is_peer = library not in (orders.PERMUTATION, orders.OURS, orders.OURS_ONE_LANE)
        seeds = arguments.peer_seeds if is_peer and arguments.peer_seeds else arguments.seeds
        return orders.draw(library, GEOMETRIES[name], folder / name, pythons, seeds, arguments.first_seeds)

    jobs = list(itertools.product(arguments.geometry, LIBRARIES))
    with ThreadPoolExecutor(max_workers=2) as pool:
        drawn = dict(zip(jobs, pool.map(one, jobs), strict=True))
    return {name: {library: drawn[name, library] for library in LIBRARIES} for name in arguments.geometry}


def figures_of(order: Order | str, layout: Layout) -> sheet.Figures:
    """The figures of an order, or why there are none."""
    if isinstance(order, str):
        return order
    try:
        return statistics.measure(order.streams, order.batches, order.firsts, layout, orders.EPOCHS)
    except ValueError as error:
        return str(error)


def versions(found: Found) -> str:
    """The versions of everything that ran, in one line."""
    ran = {name: o if isinstance(o, str) else f"{o.version}, {len(o.streams)} seeds" for name, o in found.items()}
    return "; ".join(f"{library}: {what}" for library, what in ran.items())


def plot_file(file: Path, name: str, several: bool) -> Path:
    """The file of the plot; one per geometry if there are several."""
    return file.with_stem(f"{file.stem}-{name}") if several else file


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--energon", type=Path, default=ENVIRONMENTS / "energon/bin/python", help="a Python that has it"
    )
    parser.add_argument("--streaming", type=Path, default=ENVIRONMENTS / "streaming/bin/python", help="the same")
    parser.add_argument("--geometry", nargs="+", choices=list(GEOMETRIES), default=list(GEOMETRIES), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3, help="streams of two epochs for each library; at least 2")
    parser.add_argument("--peer-seeds", type=int, help="seeds for the peers, which take longer (default: --seeds)")
    parser.add_argument("--first-seeds", type=int, default=60, help="seeds of which only the first sample is read")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--plot", type=Path, help="also draw the orders of the first seed; needs matplotlib")
    arguments = parser.parse_args(given)
    for option, seeds in (("--seeds", arguments.seeds), ("--peer-seeds", arguments.peer_seeds)):
        if seeds is not None and seeds < 2:
            parser.error(f"{option} {seeds}: two seeds are compared, so give at least 2")
    return arguments


def report(name: str, found: Found, folder: Path, plot: Path | None) -> dict[str, Any]:
    """Print the table of a geometry, and draw it; the figures as JSON."""
    geometry = GEOMETRIES[name]
    layouts, columns, limits_of = {}, {}, {}
    for library, order in found.items():
        rows = orders.rows(library, geometry, folder, FORMULA_SEEDS)
        layout = Layout(geometry.counts, geometry.chunk, rows[0].geometry.chunk_size if rows else None)
        figures = figures_of(order, layout)
        layouts[library], columns[library] = layout, figures
        if rows and not isinstance(figures, str):
            expected = [statistics.chunk_inflation_of_row(row, layout, orders.BATCH) for row in rows]
            limits_of[library] = sheet.limits(figures, layout, sum(expected) / len(expected))
    print(f"\n### {name}: {geometry.describe()}\n\n{sheet.table(columns, limits_of)}\n\n{versions(found)}", flush=True)
    if plot:
        streams = {library: order.streams[0] for library, order in found.items() if isinstance(order, Order)}
        scatter.draw(streams, layouts, name, plot)
    return {
        library: {measure: asdict(figure) for measure, figure in figures.items()}
        if not isinstance(figures, str)
        else {"failed": figures}
        for library, figures in columns.items()
    }


def main(given: Sequence[str] | None = None) -> None:
    """Draw, measure, print."""
    arguments = parse(given)
    document = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, found in draw_all(arguments, folder).items():
            plot = arguments.plot and plot_file(arguments.plot, name, len(arguments.geometry) > 1)
            document[name] = report(name, found, folder / name, plot)
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
