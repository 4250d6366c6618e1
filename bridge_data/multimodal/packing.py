"""Packing: which sequences share one row of `capacity` tokens.

Enters: lengths. Leaves: packs of positions. Guarantees: no pack is longer than `capacity`; every position is in one
pack; equal lengths give equal packs.
"""

from collections.abc import Sequence


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Packs of positions in `lengths`: the longest first, each into the first pack that has room for it.

    Source: D. S. Johnson, Near-optimal bin packing algorithms (1973); at most 11/9 of the fewest packs, plus one.

    Raises:
        ValueError: if a length is more than `capacity`.
    """
    packs: list[list[int]] = []
    room: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[position]
        if length > capacity:
            raise ValueError(f"sequence {position} has {length} tokens, a pack holds {capacity}")
        number = next((n for n, free in enumerate(room) if free >= length), None)
        if number is None:
            packs.append([position])
            room.append(capacity - length)
        else:
            packs[number].append(position)
            room[number] -= length
    return packs
