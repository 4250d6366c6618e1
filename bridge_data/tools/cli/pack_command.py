"""`bridge-data pack`: a folder of files becomes WebDataset tars.

`0001.png` and `0001.txt` become one sample with the key `0001` and the parts `png` and `txt`. Samples come in the
order of their keys, folder by folder; the tars are the same whenever they are made of the same files.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from tqdm import tqdm

from bridge_data.errors import ConfigError, DatasetError, bridge_command
from bridge_data.options import check_at_least
from bridge_data.prepare.commit import preparing_alone, scratch_folder
from bridge_data.prepare.converters.folder_files import FolderSample, find_samples
from bridge_data.shards.metadata import tar_index_path
from bridge_data.storage.atomic import writing
from bridge_data.tools.cli.terminal import ON_DISK, counted, listed, note, sized

SHARD_PATTERN = "data-%06d.tar"
SHARD_GLOB = "data-[0-9][0-9][0-9][0-9][0-9][0-9]*.tar"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PackConfig:
    """When a shard is full: at `max_count` samples or `max_bytes`; whether existing shards may be replaced."""

    max_count: int = 1000
    max_bytes: int = 3_000_000_000
    overwrite: bool = False

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_count", "max_bytes")


def odd_samples(samples: list[FolderSample]) -> tuple[frozenset[str], list[FolderSample]]:
    """(the parts that most samples have, the samples that have others)."""
    kinds = collections.Counter(frozenset(sample.parts) for sample in samples)
    usual = kinds.most_common(1)[0][0]
    return usual, [sample for sample in samples if sample.parts.keys() != usual]


def write_shards(
    samples: list[FolderSample], target: Path, config: PackConfig, on_sample: Callable[[], object] = lambda: None
) -> list[Path]:
    """Write `samples` to shards in the folder `target`; the shards, which appear when all are written.

    Raises:
        ConfigError: if there are shards already. DatasetError: if a file cannot be read.
    """
    from webdataset import ShardWriter

    old = sorted(target.glob(SHARD_GLOB))
    if old and not config.overwrite:
        raise ConfigError(
            f"{target}: holds {counted(len(old), 'shard')} already, such as {old[0].name}; "
            "give --force-overwrite to replace them, or another folder"
        )
    with writing(target), _building_site(target) as site:
        pattern = str(site.absolute()).replace("%", "%%") + f"/{SHARD_PATTERN}"
        # An integer time: a fractional one would cost a pax header of 1,024 bytes a file.
        settings = {"maxcount": config.max_count, "maxsize": config.max_bytes, "mtime": 0, "encoder": False}
        with ShardWriter(pattern, verbose=0, **settings) as writer:
            for sample in samples:
                writer.write({"__key__": sample.key} | {part: _content(path) for part, path in sample.parts.items()})
                on_sample()
        for path in old:
            path.unlink()
            tar_index_path(path).unlink(missing_ok=True)
        return [path.replace(target / path.name) for path in sorted(site.iterdir())]


@contextlib.contextmanager
def _building_site(target: Path) -> Iterator[Path]:
    """A hidden folder in `target` that is gone afterwards; so is `target`, if it was made for nothing. Another process
    that packs or prepares is an error."""
    is_new = not target.exists()
    target.mkdir(parents=True, exist_ok=True)
    try:
        with preparing_alone(target) as remove_temporary:
            remove_temporary([target])
            with scratch_folder(target, "packing") as site:
                yield site
    finally:
        if is_new and not any(target.iterdir()):
            target.rmdir()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror}") from error


@click.command()
@click.argument("source", metavar="SRC", type=ON_DISK)
@click.argument("target", metavar="DST", type=ON_DISK)
@click.option("--max-count", "--max-samples", default=1000, show_default=True, help="Samples in a shard, at most.")
@click.option(
    "--max-bytes", default=3_000_000_000, show_default=True, help="A shard of this size takes no further sample."
)
@click.option("--require-parts", is_flag=True, help="Stop if a sample lacks a part that most have, or has another.")
@click.option("--follow-links", is_flag=True, help="Pack also the files that links lead to out of SRC.")
@click.option("--force-overwrite", is_flag=True, help="Replace the shards that are in DST.")
@click.option("--progress/--no-progress", default=True, help="Show a progress bar.")
def pack(
    source: Path,
    target: Path,
    max_count: int,
    max_bytes: int,
    require_parts: bool,
    follow_links: bool,
    force_overwrite: bool,
    progress: bool,
) -> None:
    """Pack the files in the folder SRC into tars in the folder DST.

    Files that differ after the first dot of their names only, like 000001.png and 000001.txt, make a sample.
    """
    config = PackConfig(max_count=max_count, max_bytes=max_bytes, overwrite=force_overwrite)
    if target.resolve().is_relative_to(source.resolve()):
        raise ConfigError(f"{target}: is inside {source} and would be packed itself; give another folder")
    samples, left_out = find_samples(source, follow_links=follow_links)
    usual, odd = odd_samples(samples)
    if odd and require_parts:
        raise DatasetError(_complaint(source, usual, odd, len(samples)))
    with tqdm(total=len(samples), desc="packing", unit=" samples", disable=not progress) as bar:
        shards = write_shards(samples, target, config, bar.update)
    num_bytes = sum(path.stat().st_size for path in shards)
    click.echo(
        f"{target}: {counted(len(samples), 'sample')} ({listed(sorted(usual))}) in "
        f"{counted(len(shards), 'shard')}, {sized(num_bytes)}"
    )
    if odd:
        note(f"other parts in {counted(len(odd), 'sample')}, such as {odd[0].key!r}: {listed(sorted(odd[0].parts))}")
    if left_out:
        note(
            f"left out, as they have no part name (0001.png): {counted(len(left_out), 'file')}, such as {left_out[0]!r}"
        )
    click.echo(f"Next: {bridge_command('prepare', target)}")


def _complaint(source: Path, usual: frozenset[str], odd: list[FolderSample], total: int) -> str:
    lines = []
    for sample in odd[:5]:
        lacks, has = sorted(usual - sample.parts.keys()), sorted(sample.parts.keys() - usual)
        differences = [f"lacks {listed(lacks)}"] * bool(lacks) + [f"has {listed(has)} besides"] * bool(has)
        lines.append(f"\n  sample {sample.key!r} {' and '.join(differences)}")
    if len(odd) > len(lines):
        lines.append(f"\n  and {len(odd) - len(lines)} more")
    return (
        f"{source}: {len(odd)} of {total} samples have other parts than the rest ({listed(sorted(usual))}):"
        + "".join(lines)
        + "\nFix these files, or leave --require-parts out."
    )
