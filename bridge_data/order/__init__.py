"""Which sample comes next: pure arithmetic over (seed, lane, cursor), whose state is a few integers."""

from bridge_data.order.blend import Blend
from bridge_data.order.chunks import Geometry
from bridge_data.order.cursor import Cursor, OrderedCursor, SampleRef
from bridge_data.order.inbox import ALL_PARTS
from bridge_data.order.ordered import OrderedRow
from bridge_data.order.row import Row
from bridge_data.order.schedule import Phase, Schedule
from bridge_data.order.stream import BEGINNING

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
