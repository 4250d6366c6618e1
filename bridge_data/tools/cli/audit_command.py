"""`bridge-data audit`: whether checkpoints, ledger files and data agree on the samples of a run."""

from pathlib import Path

import click

from bridge_data.energon.dataset_loaders import load_dataset
from bridge_data.errors import ConfigError
from bridge_data.loader.ledger_files import RunLedger
from bridge_data.tools.audit import (
    AuditFinding,
    checkpoints_below,
    compare_with_data,
    compare_with_ledger,
    ledger_below,
)
from bridge_data.tools.cli.terminal import counted, table, trust_options

_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command()
@click.argument("run", type=_FOLDER)
@click.option("--ledger", type=_FOLDER, help="The folder of ledger_path.  [default: found below RUN]")
@click.option("--data", type=click.Path(path_type=Path, exists=True), help="The data set that the run trained on.")
@click.option("--split-part", default="train", show_default=True, help="The part of it.")
@trust_options
@click.pass_context
def audit(
    ctx: click.Context,
    run: Path,
    ledger: Path | None,
    data: Path | None,
    split_part: str,
    trusted_module: tuple[str, ...],
    trust_dataset_code: bool,
) -> None:
    """Compare the checkpoints below the folder RUN with the samples in the run's ledger, and with its data.

    The sums that each state carries are computed again: from the ledger files, and with --data from the data set alone,
    where arithmetic tells the order (no packing, groups, filters, generators, re-deals). Exit code 1 if they differ.
    """
    checkpoints = checkpoints_below(run)
    folder = ledger or ledger_below(run)
    if not checkpoints:
        raise ConfigError(f"{run}: holds no data state, nor do the folders below it")
    if folder is None and data is None:
        raise ConfigError(f"{run}: holds no ledger; give --ledger, or the data set of the run (--data)")
    findings = [] if folder is None else compare_with_ledger(checkpoints, RunLedger(folder))
    if data is not None:
        loaded = load_dataset(data, trusted_modules=trusted_module, trust_dataset_code=trust_dataset_code)
        findings += compare_with_data(checkpoints, loaded.get_datasets(training=True, split_part=split_part))
    click.echo(table(("checkpoint", "micro-batches", "samples", "compared with", ""), [*map(_row, findings)]))
    different = [finding for finding in findings if finding.sums is not None and not finding.is_same]
    lacking = [finding for finding in findings if "lacks" in finding.why]
    for finding in (*different, *lacking)[:1]:
        click.echo(f"the first to differ is {finding.checkpoint.path}: the state has {finding.expected}")
        click.echo(finding.why or f"the {finding.source} has {finding.sums}")
    num_same = sum(finding.is_same for finding in findings)
    click.echo(f"{counted(num_same, 'comparison')} equal, {len(different) + len(lacking)} different")
    ctx.exit(1 if different or lacking or not num_same else 0)


def _row(finding: AuditFinding) -> tuple[str, ...]:
    result = "equal" if finding.is_same else "DIFFERENT" if finding.sums is not None else finding.why
    state = finding.checkpoint.state
    return str(finding.checkpoint.path), f"{state.next_slot:,}", f"{finding.expected.samples:,}", finding.source, result
