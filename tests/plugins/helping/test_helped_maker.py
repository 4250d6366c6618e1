"""A maker with peers keeps the contract of makers, whether peers have made a sample, or could not."""

from pathlib import Path
from typing import Any

import pytest

from bridge_data.lanes.maker import Maker
from bridge_data.lanes.maker_wrappers import AheadMaker, LaneView, SampleOutcome
from bridge_data.order import SampleRef
from bridge_data.plugins.helping.helping import HelpedMaker
from tests.lanes.maker_contract import ENCODERS, check_maker, unchanged, write_captions


class Peer:
    """A peer in this process, which makes half of the samples."""

    posts = True

    def __init__(self, ahead: AheadMaker) -> None:
        self._ahead = ahead

    def find(self, ref: SampleRef) -> SampleOutcome | None:
        return self._ahead.made(ref) if ref.index % 2 else None


def helped(inner: Maker, lane: LaneView) -> Maker:
    """Asks a peer of its own."""
    assert lane.new_ahead_maker is not None
    return HelpedMaker(Peer(lane.new_ahead_maker(lane.inside)), inner, lane)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_what_a_peer_has_made_is_what_the_core_makes(tmp_path: Path, encoder: Any) -> None:
    check_maker(write_captions(tmp_path / "captions"), encoder, unchanged, [helped])
