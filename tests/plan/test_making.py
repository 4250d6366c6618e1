import pytest

from bridge_data import FatalSampleError, TextSample
from bridge_data.plan.making import LoadedBy, made

SAMPLE = {"__key__": "a.tar/1", "__shard__": "a.tar", "__sources__": (), "__restore_key__": (), "txt": b"x"}


def test_a_sample_has_the_fields_given_and_the_provenance_of_what_they_are_of() -> None:
    sample = made(TextSample, {"text": "x"}, SAMPLE, {"s": 1}, "me")
    assert sample == TextSample(__key__="a.tar/1", __sources__=(), __subflavors__={"s": 1}, text="x")
    assert made(TextSample, {"text": "x", "__key__": "own"}, SAMPLE, {}, "me").__key__ == "own"


def test_the_function_gets_the_decoded_parts_if_anything_decodes_them() -> None:
    by_text = LoadedBy(TextSample, lambda parts: {"text": parts["txt"]})
    assert by_text.maker(None, {})(SAMPLE).text == b"x"
    assert by_text.maker(lambda parts: {**parts, "txt": "decoded"}, {})(SAMPLE).text == "decoded"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (None, "me returned None for sample a.tar/1: expected a dict of the fields of TextSample"),
        ({}, "me: the fields \\(none\\) do not make a TextSample: .*'text'"),
        ({"text": "", "size": 1}, "me: the fields text, size do not make a TextSample: .*'size'"),
    ],
)
def test_other_fields_stop_the_run(fields: object, says: str) -> None:
    with pytest.raises(FatalSampleError, match=says):
        made(TextSample, fields, SAMPLE, {}, "me")
