"""What is measured: the workloads of throughput, and which libraries take part in which."""

from dataclasses import dataclass

from benchmarks.speed.programs import ENERGON, PEERS


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A workload that all its libraries run in-process and with workers."""

    label: str
    unit: str = "samples/s"
    peers: tuple[str, ...] = tuple(PEERS)
    without: str = ""
    """Why the other libraries do not take part."""
    data: str = ""
    """The data set, where it is another workload's."""
    bare: bool = False
    """Whether the bare loop does this work, too."""
    by_hand: bool = False
    """Whether a data set written by hand for it takes part, which is no library's, and no peer."""


WORKLOADS = {
    "text": Workload(label="text, 200 B, batch 32", bare=True, by_hand=True),
    "jpeg": Workload(label="JPEG 500×400, 55 KB → uint8, batch 32", bare=True),
    "photos": Workload(label="JPEG 1600×1200 → 336² float, batch 16", bare=True),
    "photos_torch": Workload(
        label="the same, resized by torch",
        peers=(),
        data="photos",
        without="a choice of our own; compare the row above",
    ),
    "chat": Workload(label="packed chat, 4 × 2,048 tokens", unit="packs/s", bare=True),
    "aux": Workload(
        label="questions with photos of another data set, batch 16",
        peers=(ENERGON,),
        without="the others join no second data set by key",
    ),
    "blend": Workload(label="blend of 20 sets of text, batch 32", by_hand=True),
}
