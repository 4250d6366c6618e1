import os

import pytest

from bridge_data.errors import ConfigError
from bridge_data.plan.document import parse_yaml
from bridge_data.plan.paths import absolute, located


def place(text, monkeypatch):
    monkeypatch.setenv("DATA_ROOT", "/data")
    monkeypatch.setenv("HOME", "/home/someone")
    return located(parse_yaml(f"'{text}'", "/sets/blend.yaml"), "path", "/sets/blend.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("coco", "/sets/coco"),
        ("./coco/../coyo", "/sets/coyo"),
        ("../coco", "/coco"),
        ("/coco", "/coco"),
        ("~/coco", "/home/someone/coco"),
        ("$DATA_ROOT/coco", "/data/coco"),
        ("${DATA_ROOT}set", "/dataset"),
        ("file:///coco", "/coco"),
        ("file://coco", "/sets/coco"),
        ("msc://profile/$DATA_ROOT", "msc://profile/data"),
    ],
)
def test_paths_are_relative_to_the_file_and_variables_are_replaced(text, expected, monkeypatch):
    assert place(text, monkeypatch) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("coco", "s3://bucket/sets/coco"),
        ("../coco/", "s3://bucket/coco"),
        ("./a/./b", "s3://bucket/sets/a/b"),
        ("/coco", "/coco"),
        ("gs://other/coco", "gs://other/coco"),
    ],
)
def test_paths_in_a_file_at_a_url_are_relative_to_it(text, expected):
    file = "s3://bucket/sets/blend.yaml"
    assert located(parse_yaml(f"'{text}'", file), "path", file) == expected


def test_a_url_of_an_unknown_kind_is_named_with_file_and_line(monkeypatch):
    with pytest.raises(ConfigError, match=r"blend\.yaml:1: ftp://a: unknown kind of URL"):
        place("ftp://a", monkeypatch)


def test_a_variable_that_is_not_set_is_named(monkeypatch):
    with pytest.raises(ConfigError, match=r"blend\.yaml:1: \$NOWHERE/coco: the environment variable NOWHERE is not"):
        place("$NOWHERE/coco", monkeypatch)


def test_paths_of_callers_are_relative_to_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert absolute("coco") == os.path.join(tmp_path, "coco")
    assert absolute("s3://bucket/coco") == "s3://bucket/coco"
