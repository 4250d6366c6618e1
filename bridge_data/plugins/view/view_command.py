"""`bridge-data view`: look at data, batches and runs in a browser."""

import functools
import os
import socket
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge_data.cli.terminal import LOCATION, note, setting, trust_options, where_options
from bridge_data.errors import ConfigError
from bridge_data.extensions import importing
from bridge_data.storage import Location, location

if TYPE_CHECKING:
    from bridge_data.plugins.view.pages import Site
    from bridge_data.tools.runs import SavedRunReader


@click.command()
@click.argument("path", type=LOCATION, required=False)
@click.option(
    "--config",
    metavar="CONFIG",
    help="The run: the YAML of a recipe or a LightningCLI, or package.module:name of a DataModule.",
)
@click.option(
    "--data", type=LOCATION, help="The data that the run in the folder PATH reads, if no config there says so."
)
@click.option(
    "--state", type=click.Path(path_type=Path), help="A saved state, or a folder with several: iter_*, *.ckpt."
)
@click.option(
    "--log", type=click.Path(path_type=Path), help="A log with steps and losses: JSON lines, CSV, events or text."
)
@setting("--num-lanes", more="[default: of the config, of the newest state, or 8]")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8750, show_default=True, help="The port; 0: any that is free."
)
@click.option(
    "--token", envvar="BRIDGE_DATA_VIEW_TOKEN", help="Require this token; auto: a random one, which is printed."
)
@click.option(
    "--allow-host", "names", multiple=True, help="A further host name to answer to, such as a proxy's. Repeatable."
)
@where_options
@trust_options
def view(
    path: Location | None,
    config: str | None,
    data: Location | None,
    state: Path | None,
    log: Path | None,
    num_lanes: int | None,
    host: str,
    port: int,
    token: str | None,
    names: tuple[str, ...],
    **options: Any,
) -> None:
    """Show PATH in a browser: samples, the blend, sizes, batches as the trainer gets them, the steps of a run.

    PATH is a prepared data set, a metadataset or a JSONL file, or the URL of one, or tars without .nv-meta; or the
    folder of a run, with its config (or --data), saved states, log and ledger, which is followed while the run goes on.
    With --config, by default the data of the config. The page is for this machine alone, unless --host and --token
    say else.
    """
    from bridge_data.cli.catalog import DataCatalog
    from bridge_data.tools.runs import NamedRun, SavedRun, SavedRunReader, configured_run, default_run, is_run

    with importing("`bridge-data view`"):
        import uvicorn  # noqa: F401 - for `_serve`

        from bridge_data.plugins.view.pages import Site
    if path is None and config is None:
        raise ConfigError("give PATH, a data set, a metadataset or the folder of a run, or --config, a run")
    folder: Path | None = None
    if isinstance(path, Path) and is_run(path):
        folder = path
        path = data
    elif data is not None:
        raise ConfigError("--data is for the folder of a run: PATH is the data already")
    reader = None
    if folder is not None or state is not None or log is not None:
        reader = SavedRunReader(folder, has_config=config is not None, states=state, log=log)
        for reason in reader.saved.left_out:
            note(f"left out: {reason}")
        if config is None and folder is not None and (data is None or reader.config is not None):
            config = _config_of(folder, reader)
    if config is not None and options["where"] is not None:
        raise ConfigError("--where is for PATH alone: which samples a run has, its config says")

    @functools.lru_cache(maxsize=1)
    def run_of(saved_lanes: int | None, num_per_step: int | None) -> NamedRun:
        assert config is not None
        return configured_run(config, num_lanes, saved_lanes, num_per_step)

    def opened(saved: SavedRun) -> NamedRun:
        if config is not None:
            return run_of(saved.num_lanes, saved.num_per_step)
        part = "train" if "train" in catalog.part_names else catalog.first_part()
        return default_run(os.fspath(catalog.path), part, num_lanes or saved.num_lanes, options, saved.states)

    if config is not None:
        note(f"opening {config}")  # imports what its trainer needs: it may take a while
        run = opened(SavedRun() if reader is None else reader.saved)
        path = location(run.path) if path is None else path
    assert path is not None
    catalog = DataCatalog(path, options)
    site = Site(
        catalog,
        opened,
        None if reader is None else reader.read,
        has_encoder=config is not None,
        name="" if folder is None else folder.absolute().name,
    )
    _serve(site, host, port, token, names)


def _config_of(folder: Path, reader: "SavedRunReader") -> str:
    """The config of the run in a folder.

    Raises:
        ConfigError: if there is none.
    """
    if reader.config is None:
        raise ConfigError(
            f"{folder}: has no config of a run: expected one YAML, of a recipe (as --print-config writes it) or of a "
            "LightningCLI; give --config, or the data set that the run reads (--data)"
        )
    return str(reader.config)


def _serve(site: "Site", host: str, port: int, token: str | None, names: Collection[str]) -> None:
    """Print the address, and serve `site` there until interrupted."""
    import uvicorn

    from bridge_data.plugins.view.gatekeeper import checked_token
    from bridge_data.plugins.view.pages import application

    token = checked_token(host, token)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error.strerror}; give another one") from error
    with listening:
        bound = listening.getsockname()[1]
        everywhere = host in ("0.0.0.0", "::")
        shown = socket.gethostname() if everywhere else f"[{host}]" if ":" in host else host
        known = {*names, host, *([socket.gethostname(), socket.getfqdn()] if everywhere else [])}
        app = application(site, token=token, names=known, cookie=f"bridge_view_{bound}")
        address = f"http://{shown}:{bound}/" + (f"?token={token}" if token else "")
        click.echo(f"{site.title}: {address} (Ctrl-C ends)")
        config = uvicorn.Config(app, log_level="warning", access_log=False, ws="none", lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])
