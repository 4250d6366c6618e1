"""Hooks that contradict each other."""

from pathlib import Path
from typing import Any

import pytest

from bridge_data import ConfigError, DefaultTaskEncoder, TextSample
from tests.lanes.conftest import first_lane


class Twofold(DefaultTaskEncoder[Any, Any, Any, Any]):
    def encode_sample(self, sample: TextSample) -> TextSample:
        return sample

    def preencode_sample(self, sample: TextSample) -> TextSample:
        return sample


def test_encoding_in_one_go_and_in_two_is_refused_before_any_sample(folder: Path) -> None:
    with pytest.raises(ConfigError, match="Twofold overrides encode_sample and also preencode_sample"):
        first_lane(folder, Twofold())
