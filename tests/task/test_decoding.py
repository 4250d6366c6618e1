from typing import Any

import pytest

from bridge_data import ConfigError, DefaultTaskEncoder, SampleDecoder
from bridge_data.task import with_decoding


class Own(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = SampleDecoder(image_decode="pilrgb")


def test_nothing_asked_for_leaves_the_encoder_as_it_is() -> None:
    encoder = Own()
    assert with_decoding(encoder, None, image_decode=None) is encoder
    assert with_decoding(encoder, True) is encoder


def test_what_is_asked_for_is_decoded_by_a_copy() -> None:
    encoder: Any = DefaultTaskEncoder()
    assert with_decoding(encoder, False).decoder is None
    asked = with_decoding(encoder, None, image_decode="pilrgb").decoder
    assert isinstance(asked, SampleDecoder)
    assert encoder.decoder is DefaultTaskEncoder.decoder is not asked


@pytest.mark.parametrize("asked", [{"auto_decode": False}, {"auto_decode": None, "image_decode": "rgb"}])
def test_an_encoder_with_a_decoder_of_its_own_is_not_overruled(asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Own has a decoder of its own"):
        with_decoding(Own(), **asked)


def test_an_unknown_form_of_images_is_an_error() -> None:
    with pytest.raises(ConfigError, match="image_decode='jpg'"):
        with_decoding(DefaultTaskEncoder(), None, image_decode="jpg")
