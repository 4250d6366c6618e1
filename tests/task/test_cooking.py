from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from bridge_data.errors import ConfigError
from bridge_data.samples import CrudeSample, SourceInfo, TextSample
from bridge_data.task import DefaultTaskEncoder, stateless
from bridge_data.task.cooking import Cooker, basic_sample_keys, choose_cooker, cooker

FILTERS = st.none() | st.dictionaries(st.sampled_from("abc"), st.integers(0, 1))


def cook_text(sample: CrudeSample) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=sample["txt"])


CRUDE = CrudeSample(__key__="s.tar/1", __restore_key__=("a", 0, 1, 0), __subflavors__={"kind": "ocr"}, txt="hello")


def choose(cookers: list[Cooker[Any]], **subflavors: Any) -> Cooker[Any]:
    return choose_cooker(cookers, subflavors, "samples of data/x")


def test_the_first_matching_cooker_is_taken_and_provenance_kept() -> None:
    class Encoder(DefaultTaskEncoder):
        cookers = (Cooker(print, {"kind": "vqa"}), Cooker(cook_text, {"kind": "ocr"}), Cooker(print))

    assert Encoder().cook_crude_sample(CRUDE) == TextSample(
        __key__="s.tar/1", __restore_key__=("a", 0, 1, 0), __subflavors__={"kind": "ocr"}, text="hello"
    )


def test_no_matching_cooker_is_an_error_that_says_why_each_does_not_match() -> None:
    cookers = [Cooker(cook_text, {"kind": "vqa"}), Cooker(print, {"kind": "ocr", "lang": "en"})]
    with pytest.raises(ConfigError) as caught:
        choose(cookers, kind="ocr")
    assert str(caught.value) == (
        "no cooker takes samples of data/x with subflavors {'kind': 'ocr'}; tried:\n"
        "  cook_text wants kind='vqa', not 'ocr'\n"
        "  print wants lang='en', which there is not\n"
        "Add a Cooker to the task encoder's `cookers`, or give the data set the subflavors that one asks for."
    )
    with pytest.raises(ConfigError, match="tried: none"):
        choose([])


def test_a_cooker_for_everything_may_stand_after_stricter_ones() -> None:
    strict, plain = Cooker(cook_text, {"kind": "ocr"}), Cooker(print)
    assert choose([strict, plain], kind="ocr") is strict
    assert choose([strict, plain], kind="vqa") is plain


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (None, {"kind": "ocr"}),  # the second could never be chosen
        ({"kind": "ocr"}, {"kind": "ocr"}),
        (None, None),
        ({"kind": "ocr"}, {"lang": "en"}),  # the place in the list would decide
    ],
)
def test_two_cookers_that_match_are_an_error_where_neither_is_the_stricter_one_before_the_other(
    first: dict[str, Any] | None, second: dict[str, Any] | None
) -> None:
    with pytest.raises(ConfigError, match=r"two cookers take samples of data/x .* cook_text .* print .*stricter one"):
        choose([Cooker(cook_text, first), Cooker(print, second)], kind="ocr", lang="en")


@given(st.lists(FILTERS, max_size=4), st.dictionaries(st.sampled_from("abc"), st.integers(0, 1)))
def test_what_is_chosen_is_the_first_match(filters: list[dict[str, int] | None], subflavors: dict[str, int]) -> None:
    cookers = [Cooker(print, wanted) for wanted in filters]
    matching = [each for each in cookers if (each.has_subflavors or {}).items() <= subflavors.items()]
    try:
        assert choose(cookers, **subflavors) is matching[0]
    except ConfigError as error:
        assert ("two cookers" if matching else "no cooker") in str(error)


def test_a_cooker_asks_for_a_value_not_only_for_a_name() -> None:
    assert not Cooker(cook_text, {"kind": None}).is_match({})
    assert Cooker(cook_text, None).is_match({})


def test_a_decorated_function_says_what_it_needs_in_any_order_with_stateless() -> None:
    @stateless
    @cooker(need_cache=True)
    def cached(sample: CrudeSample) -> None: ...

    @cooker(need_primary=True)
    @stateless
    def primary(sample: CrudeSample) -> None: ...

    @cooker
    def plain(sample: CrudeSample) -> None: ...

    needs = [(Cooker(f).need_primary, Cooker(f).need_cache) for f in (cached, primary, plain, print)]
    assert needs == [(False, True), (True, False), (False, False), (False, False)]


def test_a_method_may_be_decorated() -> None:
    class Encoder(DefaultTaskEncoder):
        def __init__(self) -> None:
            super().__init__()
            self.cookers = [Cooker(self.cook)]

        @cooker(need_primary=True)
        def cook(self, sample: CrudeSample, primary: Any) -> None: ...

    assert Encoder().cookers[0].need_primary
    assert Encoder().cookers[0].name.endswith("Encoder.cook")


def test_sources_of_other_parts_are_added_to_the_keys() -> None:
    first, second = (SourceInfo(dataset_path=p, index=0, shard_name="s", file_names=()) for p in "ab")
    sample = CrudeSample(CRUDE, __sources__=(first,))
    assert basic_sample_keys(sample)["__sources__"] == (first,)
    assert basic_sample_keys(sample, (second,))["__sources__"] == (first, second)
    assert basic_sample_keys(CRUDE, (second,))["__sources__"] == (second,)
