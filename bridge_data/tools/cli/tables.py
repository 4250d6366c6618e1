"""How numbers, names and tables are written in the terminal."""

from collections.abc import Sequence

import click


def counted(number: int, noun: str) -> str:
    """`1 shard`, `12,000 shards`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def sized(num_bytes: float) -> str:
    """`512 B`, `3.4 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if num_bytes < 1000 or unit == "TB":
            break
        num_bytes /= 1000
    return f"{num_bytes:,.0f} B" if unit == "B" else f"{num_bytes:,.1f} {unit}"


def listed(names: Sequence[str], most: int = 10) -> str:
    """`a, b, c and 7 more`."""
    if not names:
        return "none"
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def spanned(names: Sequence[str]) -> str:
    """The first and the last of some names."""
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under their headings: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = cells
        right = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        return "  ".join((first.ljust(widths[0]), *right)).rstrip()

    return "\n".join((click.style(line(header), bold=True), *map(line, rows)))


def note(text: str) -> None:
    """Say something that the user should know, beside the result."""
    click.echo(f"{click.style('note:', fg='yellow')} {text}", err=True)
