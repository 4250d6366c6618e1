"""Which sample comes next: a pure function of (seed, lane, cursor). The state is a few integers per lane and source.

The modules, each using only those above it:

    random_draws  keyed random numbers and permutations; which source a draw takes, by weights
    chunks        a source cut into chunks (each read by one lane) and blocks (each fetched by one read)
    row           the training order of one source: chunks permuted per epoch, dealt to lanes, shuffled in windows
    mixing        how well the batches of a row are mixed, in figures
    stream        the samples of one lane in one row, and its inbox; the row of the validation order
    cursor        the samples of one lane in all sources, as `SampleRef(source, epoch, index)`, and those still pending
    state_check   the structure of a saved state
    ledger        sums over the samples that were handed out
    state         the state of all lanes as plain data, and the fingerprint of the run
    redeal        continue with another number of lanes, or with other weights or sources
    plan_order    all of this for one run: from a plan to cursors

Terms. A *row* is the sequence of a source's chunks over all epochs. A *shuffle* is the epochs of a row whose chunks are
permuted together, usually one. A *window* is the samples that a lane reads shuffled together. A *draw* is one sample
taken by a lane. A *geometry* is how a source is cut and dealt: number of lanes, sizes of chunks, blocks and windows,
first epoch. A *re-deal* changes the number of lanes: it starts a new *generation* with new geometries, and leaves what
remains of the epochs in progress in the *inboxes* of the new lanes.
"""

from bridge_data.order.chunks import Geometry
from bridge_data.order.cursor import Cursor, OrderedCursor
from bridge_data.order.random_draws import Blend, Phase, Schedule
from bridge_data.order.row import Row
from bridge_data.order.stream import ALL_PARTS, BEGINNING, OrderedRow, SampleRef

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
