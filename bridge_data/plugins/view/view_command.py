"""`bridge-data view`: look at data, batches and runs in a browser."""

import functools
import socket
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge_data.cli.terminal import note, note_assumed, run_arguments, setting
from bridge_data.configs import is_run_folder
from bridge_data.errors import ConfigError
from bridge_data.extensions import importing
from bridge_data.storage import location

if TYPE_CHECKING:
    from bridge_data.plugins.view.pages import Site


@click.command()
@run_arguments
@click.option(
    "--state", type=click.Path(path_type=Path), help="A saved state, or a folder with several: iter_*, *.ckpt."
)
@setting("--world-size", more="[default: of the newest state, or 1]")
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
def view(
    run_name: str,
    overrides: tuple[str, ...],
    state: Path | None,
    world_size: int | None,
    host: str,
    port: int,
    token: str | None,
    names: tuple[str, ...],
) -> None:
    """Show RUN in a browser: samples, the blend, sizes, batches as the trainer gets them, the steps of a run.

    RUN is the path of data, or a YAML of LightningCLI, package.module:name of a Python function that returns the run,
    or the folder of a run, with its config, saved states and ledger, which is followed while the run goes on; KEY=VALUE
    override its settings. The page is for this machine alone, unless --host and --token say else.
    """
    from bridge_data.plugins.view.data_catalog import DataCatalog
    from bridge_data.plugins.view.shown_run import SavedRun, SavedRunReader, ShownRun
    from bridge_data.runs.training_run import TrainingRun

    with importing("`bridge-data view`"):
        import uvicorn  # noqa: F401 - for `_serve`

        from bridge_data.plugins.view.pages import Site
    folder = Path(run_name) if is_run_folder(Path(run_name)) else None
    reader = None
    if folder is not None or state is not None:
        reader = SavedRunReader(folder, states=state)
        for reason in reader.saved.left_out:
            note(f"left out: {reason}")
    saved = SavedRun() if reader is None else reader.saved
    run = TrainingRun.read(run_name, overrides, states=saved.states, num_ranks=world_size)
    note_assumed(run)
    options = run.options.data
    trust = {"trusted_modules": options.trusted_modules, "trust_dataset_code": options.trust_dataset_code}
    catalog = DataCatalog(location(run.data.path), trust | {"where": options.where, "columns": options.columns})

    @functools.lru_cache(maxsize=1)
    def encoder() -> Any:
        if run.names_encoder:
            note(f"making the task encoder of {run_name}")  # imports what its trainer needs: it may take a while
        return run.task_encoder()

    def opened(saved: SavedRun) -> ShownRun:
        now = TrainingRun.read(run_name, overrides, states=saved.states, num_ranks=world_size)
        return ShownRun.of(now, encoder(), saved)

    site = Site(
        catalog,
        opened,
        None if reader is None else reader.read,
        has_encoder=run.names_encoder,
        name="" if folder is None else folder.absolute().name,
    )
    _serve(site, host, port, token, names)


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
