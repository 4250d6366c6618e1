"""Which sample comes next: a pure function of (seed, lane, cursor). The state is a few integers per lane and source.

The modules, each using only those above it:

    random_draws  keyed random numbers and permutations
    blends        which source a draw takes, by weights; the seam for blends that look at samples
    row           the training order of one source: cut into chunks (each read by one lane) and blocks (each fetched by
                  one read), permuted per epoch, assigned to lanes, shuffled in windows
    cursor        the samples of one lane, in one row and in all sources, as `SampleRef(source, epoch, index)`; what a
                  reshard left to it comes first
    ordered       the same for the validation order
    pending       what a lane has drawn and not yet emitted
    step_skips    which micro-batches are skipped
    extras        what features do in the lanes, and keep in the states
    state         the state of all lanes as plain data, its checks, and the fingerprint of the run
    resharding    continue with another number of lanes
    plan_order    all of this for one run: from a plan to cursors

Terms. A *row* is the sequence of a source's chunks over all epochs. A *shuffle* is the epochs of a row whose chunks are
permuted together, usually one. A *window* is the samples that a lane reads shuffled together. A *draw* is one sample
taken by a lane. A *geometry* is how a source is cut and assigned: number of lanes, sizes of chunks, blocks and windows,
first epoch. A *reshard* changes the number of lanes: it starts a new *generation* with new geometries, and puts the
rest of the epochs in progress into the *inboxes* of the new lanes.

A *micro-batch index* counts over the job: lane `index mod num_lanes` makes it, and some are skipped (`step_skips`).

The order may only change together with `state.VERSION`: golden files hold it.
"""

from bridge_data.order.blends import Blend, BlendSchedule, Phase
from bridge_data.order.cursor import ALL_OUTPUTS, BEGINNING, Cursor, SampleRef
from bridge_data.order.ordered import OrderedCursor, OrderedRow
from bridge_data.order.row import Geometry, Row

__all__ = [
    "ALL_OUTPUTS",
    "BEGINNING",
    "Blend",
    "BlendSchedule",
    "Cursor",
    "Geometry",
    "OrderedCursor",
    "OrderedRow",
    "Phase",
    "Row",
    "SampleRef",
]
