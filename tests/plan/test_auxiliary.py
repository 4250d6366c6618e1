import re
import shutil

import pytest

from bridge_data.data.plain_data import parse_yaml
from bridge_data.errors import ConfigError
from bridge_data.plan import load_plan
from bridge_data.plan.auxiliary import read_aux
from tests.plan.prepared import CRUDE, write_meta

FILE = "/sets/blend.yaml"


@pytest.mark.parametrize(
    ("given", "path", "kind"),
    [
        ("../images", "/images", "dataset"),
        ("/images", "/images", "dataset"),
        ("{path: ../images}", "/images", "dataset"),
        ("{fs_path: pages}", "/sets/pages", "folder"),
        ("msc://profile/images", "msc://profile/images", "dataset"),
        ("filesystem://pages", "/sets/pages", "folder"),
        ("filesystem:///pages", "/pages", "folder"),
        ("filesystem+msc://profile/pages", "msc://profile/pages", "folder"),
    ],
)
def test_every_form_that_energon_has(given, path, kind):
    (aux,) = read_aux(parse_yaml(f"media: {given}", FILE), FILE).values()
    assert (aux.name, aux.path, aux.kind) == ("media", path, kind)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1]", "blend.yaml:1: aux 'a': expected a string, got a list of 1"),
        ("a: {}", "blend.yaml:1: aux 'a': expected one of `path` (a prepared data set) and `fs_path` (a folder)"),
        ("a: {path: x, fs_path: y}", "got a mapping with path, fs_path"),
        ("a: {paht: x}", "unknown key 'paht'; did you mean 'path'?"),
        ("x: y\na: zip+msc://b/c", "blend.yaml:2: aux 'a': unknown form zip+msc://"),
        ("[a]", "blend.yaml:1: aux: expected a mapping, got a list of 1"),
    ],
)
def test_other_forms_are_refused_with_file_and_line(text, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        read_aux(parse_yaml(text, FILE), FILE)


@pytest.fixture
def folder(tmp_path):
    write_meta(tmp_path / "crude", {"x.tar": 3}, {"train": ["x.tar"]}, CRUDE)
    write_meta(tmp_path / "images", {"x.tar": 3}, {"train": ["x.tar"]})
    (tmp_path / "pages").mkdir()
    (tmp_path / "file").write_text("")
    return tmp_path


def metadataset(folder, aux, path="crude"):
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    (folder / "m.yaml").write_text(head + f"splits:\n  train:\n    path: {path}\n    aux:\n      media: {aux}\n")
    return folder / "m.yaml"


def test_a_source_knows_its_auxiliary_data_also_in_an_object_store(folder, bucket):
    shutil.copytree(folder / "images", bucket.folder / "images")
    (bucket.folder / "pages").mkdir()
    (bucket.folder / "pages" / "1.txt").write_text("one")
    scheme, place = bucket.url.split("://")
    for aux, path in (
        ("filesystem://pages", f"{folder}/pages"),
        (f"{bucket.url}/images", f"{bucket.url}/images"),
        (f"filesystem+{scheme}://{place}/pages", f"{bucket.url}/pages"),
    ):
        (source,) = load_plan(metadataset(folder, aux)).sources
        assert source.aux["media"].path == path
    for name, told in (("nowhere", "no such folder"), ("pages", "is not a prepared data set")):
        with pytest.raises(ConfigError, match=rf"m.yaml:7: aux 'media': .*/{name}:? {told}"):
            load_plan(metadataset(folder, f"{bucket.url}/{name}"))


@pytest.mark.parametrize(
    ("aux", "path", "says"),
    [
        ("nowhere", "crude", "m.yaml:7: aux 'media': .*/nowhere: no such folder"),
        ("filesystem://nowhere", "crude", "m.yaml:7: aux 'media': .*/nowhere: no such folder"),
        ("pages", "crude", "/pages is not a prepared data set; run `bridge-data prepare"),
        ("file", "crude", "/file is a file; expected a prepared data set"),
        ("images", "inner.yaml", r"m\.yaml:6: aux is for data sets, but .*inner\.yaml is a metadataset"),
    ],
)
def test_missing_auxiliary_data_are_found_before_the_first_read(folder, aux, path, says):
    metadataset(folder, "images").rename(folder / "inner.yaml")
    with pytest.raises(ConfigError, match=says):
        load_plan(metadataset(folder, aux, path))
