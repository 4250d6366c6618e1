import pytest

from bridge_data.errors import ConfigError
from bridge_data.prepare import MediaRule
from bridge_data.prepare.media_rules import kind_of_name
from tests.prepare.files import picture, sound


def test_flags_make_a_rule() -> None:
    assert MediaRule.parse(None, True, False) == MediaRule("HEADER")
    assert MediaRule.parse(None, False, True) == MediaRule("EXTENSION")
    assert MediaRule.parse("*.jpg, a/*", False, False) == MediaRule("GLOB", ("*.jpg", "a/*"))


@pytest.mark.parametrize("flags", [(None, False, False), ("*.jpg", True, False), (None, True, True)])
def test_one_flag_is_needed(flags: tuple[str | None, bool, bool]) -> None:
    with pytest.raises(ConfigError, match="Give exactly one of --media-metadata-by-extension"):
        MediaRule.parse(*flags)


@pytest.mark.parametrize("patterns", ["", "*.jpg,", ","])
def test_empty_patterns_are_refused(patterns: str) -> None:
    with pytest.raises(ConfigError, match="none empty"):
        MediaRule.parse(patterns, False, False)


def test_patterns_match_the_name_or_the_path() -> None:
    rule = MediaRule("GLOB", ("IMG*.jpg", "clips/*.mp4"))
    assert rule.may_be_media("a/b/img1.JPG")
    assert rule.may_be_media("clips/a.mp4")
    assert not rule.may_be_media("other/a.mp4")


def test_by_extension_the_content_does_not_count() -> None:
    rule = MediaRule("EXTENSION")
    assert rule.kind("a.png", sound()) == "image"
    assert rule.kind("a.bin", picture()) is None
    assert not rule.may_be_media("a.bin")


@pytest.mark.parametrize("rule", [MediaRule("HEADER"), MediaRule("GLOB", ("*",))])
def test_otherwise_the_content_counts_and_then_the_name(rule: MediaRule) -> None:
    assert rule.kind("a.png", sound()) == "av"
    assert rule.kind("a.bin", picture()) == "image"
    assert rule.kind("a.mp4", b"?") == "av"
    assert rule.kind("a.bin", b"?") is None


def test_a_name_tells_by_its_last_piece() -> None:
    kinds = [kind_of_name(name) for name in ("a/b.JPG", "x.left.png", "a.jpg/b.mp4", "a.opus", "a.txt", "a.json", "a.")]
    assert kinds == ["image", "image", "av", "av", None, None, None]
