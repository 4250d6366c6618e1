"""The command line: `bridge-data pack`, `prepare`, `prepare-media`, `info`, `preview`, `lint`, `mount` and
`checkpoint`.

Mistakes of the user and faults of the data end as one line or a few, `error: ...`, with exit code 1.
"""

from typing import Any

import click

from bridge_data.cli.checkpoint import checkpoint
from bridge_data.cli.info import info
from bridge_data.cli.lint import lint
from bridge_data.cli.mount import mount
from bridge_data.cli.pack import pack
from bridge_data.cli.prepare import prepare
from bridge_data.cli.prepare_media import prepare_media
from bridge_data.cli.preview import preview
from bridge_data.errors import BridgeDataError


class _Commands(click.Group):
    """Turns our own errors into messages."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BridgeDataError as error:
            click.echo(f"{click.style('error:', fg='red', bold=True)} {error}", err=True)
            ctx.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="bridge-data", prog_name="bridge-data")
def main() -> None:
    """Make, prepare and look at multimodal data sets, and at the data states of training runs."""


for command in (pack, prepare, prepare_media, info, preview, lint, mount, checkpoint):
    main.add_command(command)
