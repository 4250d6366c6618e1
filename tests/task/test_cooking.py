import pytest

from bridge_data.errors import ConfigError
from bridge_data.samples import CrudeSample, TextSample
from bridge_data.task.cooking import Cooker, basic_sample_keys, choose_cooker


def cook_text(sample: CrudeSample) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=sample["txt"])


CRUDE = CrudeSample(__key__="s.tar/1", __restore_key__=("a", 0, 1, 0), __subflavors__={"kind": "ocr"}, txt="hello")


def test_the_first_matching_cooker_is_taken_and_provenance_kept() -> None:
    cookers = [Cooker(print, {"kind": "vqa"}), Cooker(cook_text, {"kind": "ocr"}), Cooker(print)]
    cooked = choose_cooker(cookers, CRUDE).cook(CRUDE)
    assert cooked == TextSample(
        __key__="s.tar/1", __restore_key__=("a", 0, 1, 0), __subflavors__={"kind": "ocr"}, text="hello"
    )


def test_no_matching_cooker_is_an_error_that_lists_those_tried() -> None:
    with pytest.raises(ConfigError, match=r"(?s)s\.tar/1.*kind.*ocr.*cook_text"):
        choose_cooker([Cooker(cook_text, {"kind": "vqa"})], CRUDE)


def test_a_cooker_asks_for_a_value_not_only_for_a_name() -> None:
    assert not Cooker(cook_text, {"kind": None}).is_match({})
    assert Cooker(cook_text, None).is_match({})
