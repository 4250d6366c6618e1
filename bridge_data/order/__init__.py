"""Which sample comes next: a pure function of (seed, lane, cursor); the state is a few integers."""

from bridge_data.order.blend import Blend, Phase, Schedule
from bridge_data.order.chunks import Geometry
from bridge_data.order.cursor import Cursor, OrderedCursor, SampleRef
from bridge_data.order.ordered import OrderedRow
from bridge_data.order.row import Row
from bridge_data.order.stream import ALL_PARTS, BEGINNING

__all__ = [
    "ALL_PARTS",
    "BEGINNING",
    "Blend",
    "Cursor",
    "Geometry",
    "OrderedCursor",
    "OrderedRow",
    "Phase",
    "Row",
    "SampleRef",
    "Schedule",
]
