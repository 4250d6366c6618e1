import dataclasses
from pathlib import Path

import pytest

from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError
from bridge_data.plan import Source, load_plan
from bridge_data.plan.auxiliary import AuxReference
from bridge_data.plan.source import Join
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.task.stores import open_aux, open_primary
from tests.task.stores.media import content, write_job


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    (source,) = load_plan(write_job(tmp_path_factory.mktemp("job"))).sources
    return source


def test_a_store_is_opened_for_each_name(source: Source) -> None:
    stores = open_aux(source, SampleDecoder())
    assert (stores["media"].get("000003.bin"), stores["files"].get("sub/3.txt")) == (content(3), "note 3")
    assert open_aux(source, None)["files"].get("sub/3.txt") == b"note 3"
    assert str(stores["media"]).startswith("auxiliary data 'media' (")


def test_the_primary_is_the_data_set_itself(source: Source) -> None:
    primary = open_primary(source, SampleDecoder())
    assert (primary.get_path(), primary.get("000003.txt")) == (source.path, "text 3")
    assert open_primary(source, None).get("000003.txt") == b"text 3"


def test_the_primary_of_lines_gives_them_decoded_or_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"n": 0}\n{"n": 1}\n')
    prepare_jsonl(path)
    (source,) = load_plan(path).sources
    assert open_primary(source, SampleDecoder()).get("1.json") == {"n": 1}
    assert open_primary(source, None).get("1.json") == b'{"n": 1}'


def test_what_is_joined_has_no_primary(source: Source) -> None:
    joined = dataclasses.replace(source, joined=Join(members=(source, source), names=None, joiner=print))
    with pytest.raises(ConfigError, match="no primary one; name those to be read in `aux`"):
        open_primary(joined, None)


def test_what_is_not_there_is_refused(source: Source, tmp_path: Path) -> None:
    for kind, path, message in (
        ("folder", str(tmp_path / "x"), "'it' .*: no such folder"),
        ("dataset", str(tmp_path), "not a prepared data set"),
    ):
        reference = AuxReference("it", path, kind, path)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=message):
            open_aux(dataclasses.replace(source, aux={"it": reference}), None)
