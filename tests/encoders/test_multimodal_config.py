from typing import Any

import pytest

from bridge_data.encoders import ConversationTemplateConfig, ImageToken, MultiModalSampleConfig
from bridge_data.errors import ConfigError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiModalSampleConfig(tokens_per_image=0), "tokens_per_image=0"),
        (lambda: MultiModalSampleConfig(patch_size=-1), "patch_size=-1"),
        (lambda: MultiModalSampleConfig(ignore_place_holder=0), "expected a negative number"),
        (lambda: ImageToken(token_str=""), "expected the text that stands for an image"),
        (lambda: ConversationTemplateConfig(roles=("user", "user")), "expected two different names"),
    ],
)
def test_settings_out_of_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_ignored_label_is_what_losses_ignore_by_default() -> None:
    assert MultiModalSampleConfig().ignore_place_holder == -100
