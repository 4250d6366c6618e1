"""`bridge-data checkpoint info`: look at saved data states. Plug-ins add `diff`, `redist`, `skip` and `verify` (see
`COMMANDS` in `bridge_data.cli`).

A path is an iteration's folder, one rank's file, or a file with a state: alone, as Megatron or Lightning writes it, or
with `--key` in a dict of one's own; several are the files of all ranks.
"""

import dataclasses
from collections.abc import Sequence

import click

from bridge_data.cli import COMMANDS
from bridge_data.cli.terminal import (
    LOCATION,
    echo_json,
    headed,
    json_option,
    setting,
    sized,
    table,
)
from bridge_data.errors import StateError, counted
from bridge_data.loader.checkpoint import Checkpoint, read_checkpoint
from bridge_data.loader.checkpoint.checkpoint_folder import (
    rank_files,
)
from bridge_data.order.extras import shown_extras
from bridge_data.order.state import LoaderState, merge
from bridge_data.plan.blending import SAMPLES, phase_words
from bridge_data.runs.state_contents import (
    LaneContents,
    SourceContents,
    lanes_of,
    skips_of,
    sources_of,
)
from bridge_data.storage import Location

_SHOWN_ELSEWHERE = ("sources", "weights", "schedule", "order", "costs")


class _Checkpoint(click.Group):
    """Has the commands of plug-ins, too."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        theirs = (*COMMANDS.names, *COMMANDS.names_of_others)
        return [*super().list_commands(ctx), *(name[len(_PREFIX) :] for name in theirs if name.startswith(_PREFIX))]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        full_name = _PREFIX + name
        if full_name in COMMANDS.names:
            return COMMANDS.get(full_name, f"bridge-data {full_name}")
        return super().get_command(ctx, name) or COMMANDS.find(full_name)


_PREFIX = "checkpoint "
"""How the names of commands of plug-ins begin."""


def _keys(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, ...]:
    return tuple(text.split(".")) if text else ()


key_option = click.option(
    "--key",
    "keys",
    callback=_keys,
    metavar="KEY",
    help="Where a file has the state among other things: the key in its dict, or several with dots between them.",
)


@click.group(cls=_Checkpoint)
def checkpoint() -> None:
    """Look at saved data states, compare them, write them for other ranks, skip steps, or verify a run."""


@checkpoint.command()
@click.argument("paths", metavar="PATH...", type=LOCATION, nargs=-1, required=True)
@key_option
@setting("--limit", default=32, help="Lanes to show, at most; --json has all.")
@json_option
def info(paths: tuple[Location, ...], keys: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Show step, ranks, position, sources and lanes of the data state at PATH, or in the files of all ranks."""
    found = read_one(paths, keys)
    state, sources, lanes = found.state, sources_of(found.state), lanes_of(found.state)
    extras = shown_extras(state)
    shown = {name: value for name, value in state.fingerprint.items() if name not in _SHOWN_ELSEWHERE}
    other_weights_from = [sample for sample, _ in state.fingerprint.get("schedule", ())]
    if as_json:
        echo_json(
            {
                "path": str(found.path),
                "step": found.step,
                "world_size": found.world_size,
                "num_files": found.num_files,
                "num_bytes": found.num_bytes,
                "num_micro_batches": state.num_handed_out,
                "next_micro_batch": state.micro_batch_index,
                "edits": skips_of(state),
                "num_lanes": state.num_lanes,
                "lanes_of_generations": [num_lanes for num_lanes, _ in state.generations],
                "order": state.fingerprint["order"],
                "settings": shown,
                "other_weights_from_samples": other_weights_from,
                **{extra.heading: extra.facts for extra in extras},
                "sources": [dataclasses.asdict(source) for source in sources],
                "lanes": [dataclasses.asdict(lane) for lane in lanes],
            }
        )
        return
    shown[f"other weights {phase_words(state.fingerprint.get('weight_unit', SAMPLES))}"] = (
        " and ".join(f"{sample:,}" for sample in other_weights_from) or None
    )
    settings = [f"{name} {value}" for name, value in shown.items() if value is not None]
    rows = [
        ("data state", str(found.path)),
        ("saved", saved_words(found)),
        ("position", f"{state.num_handed_out:,} micro-batches of the job handed out"),
        *_skip_rows(state),
        ("lanes", _lanes(found)),
        ("generations", ", then to ".join(counted(num_lanes, "lane") for num_lanes, _ in state.generations)),
        ("order", ", ".join([state.fingerprint["order"], *settings])),
        *((extra.heading * (not number), line) for extra in extras for number, line in enumerate(extra.lines)),
    ]
    click.echo(headed(rows) + "\n")
    click.echo(_source_table(sources) + "\n")
    click.echo(_lane_table(lanes, limit))


def _skip_rows(state: LoaderState) -> list[tuple[str, str]]:
    if (skips := state.skips) is None:
        return []
    here = f"goes on with micro-batch {state.micro_batch_index:,} of the run without skips"
    return [("steps", str(skips)), ("", here)]


def read_one(paths: Sequence[Location], keys: Sequence[str]) -> Checkpoint:
    """The checkpoint in a folder or file, or in the files of all ranks."""
    if len(paths) == 1:
        return read_checkpoint(paths[0], keys)
    folder = paths[0].parent
    if not keys and {path.absolute() for path in paths} == {path.absolute() for path in rank_files(folder).values()}:
        return read_checkpoint(folder)
    parts = [read_checkpoint(path, keys) for path in paths]
    steps = {part.step for part in parts}
    if len(steps) > 1:
        raise StateError(f"{', '.join(map(str, paths[:4]))}: are of different steps: {sorted(map(str, steps))}")
    return Checkpoint(
        path=folder,
        state=merge([part.state for part in parts]),
        step=parts[0].step,
        world_size=parts[0].world_size,
        num_files=len(parts),
        num_bytes=sum(part.num_bytes for part in parts),
    )


def saved_words(found: Checkpoint) -> str:
    ranks = "" if found.world_size is None else f" by {counted(found.world_size, 'rank')}"
    step = "at an unknown step" if found.step is None else f"at step {found.step:,}"
    return f"{step}{ranks}, {sized(found.num_bytes)} in {counted(found.num_files, 'file')}"


def _lanes(found: Checkpoint) -> str:
    here, num_lanes = len(found.state.lanes), found.state.num_lanes
    return f"all {num_lanes:,}" if here == num_lanes else f"{here:,} of {num_lanes:,}: not the whole state"


def _source_table(sources: Sequence[SourceContents]) -> str:
    rows = [
        (
            source.label,
            "–" if source.weight is None else f"{source.weight:.1%}",
            "–" if source.chunk_size is None else f"{source.chunk_size:,}",
            _span(source.samples_taken),
            _span(source.epochs),
            f"{source.inbox:,}",
        )
        for source in sources
    ]
    return table(("source", "weight", "samples of a chunk", "taken of the epoch by a lane", "epochs", "inbox"), rows)


def _lane_table(lanes: Sequence[LaneContents], max_lanes: int) -> str:
    columns = {"micro_batches": "micro-batches", "draws": "draws", "pending": "pending", "inbox": "inbox"}
    if any(lane.draws is None for lane in lanes):
        del columns["draws"]

    def row(name: str, lanes: Sequence[LaneContents]) -> tuple[str, ...]:
        sums = (sum(getattr(lane, what) for lane in lanes) for what in columns)
        return name, *(f"{number:,}" for number in sums)

    rows = [row(f"{lane.lane}", [lane]) for lane in lanes[:max_lanes]]
    if len(lanes) > max_lanes:
        rows.append(row(f"{len(lanes) - max_lanes:,} more", lanes[max_lanes:]))
    if len(lanes) > 1:
        rows.append(row("together", lanes))
    return table(("lane", *columns.values()), rows)


def _span(numbers: tuple[int, int] | None) -> str:
    if numbers is None:
        return "–"
    first, last = numbers
    return f"{first:,}" if first == last else f"{first:,}–{last:,}"
