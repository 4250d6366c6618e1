"""Predicates: what columns they name, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data.errors import ConfigError
from bridge_data.shards.where.predicates import as_written, open_engine, parse_predicate


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_engine(tmp_path_factory.mktemp("spill")) as opened:
        yield opened


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("bytes < 3 and key like 'a%' and bytes > 1", [("bytes",), ("key",)]),
        ("jpg.width > 3", [("jpg", "width")]),
        ('"info.json".meta."My Field" is null', [("info.json", "meta", "My Field")]),
        ("list_filter(tags, lambda x: x = lang) = []", [("tags",), ("lang",)]),
        ("case when a > 1 then b else coalesce(c, true) end", [("a",), ("b",), ("c",)]),
        ("text = 'select 1; drop table x' -- and other", [("text",)]),
        ("true", []),
        ("age(a, b) > interval '1 day'", [("a",), ("b",)]),
        ("ifnull(a, 0) > date_diff('day', b, c)", [("a",), ("b",), ("c",)]),
    ],
)
def test_the_columns_are_those_that_it_names(engine: Any, text: str, columns: list[tuple[str, ...]]) -> None:
    assert sorted(parse_predicate(engine, text).columns) == sorted(columns)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("random() < 0.5", "random.. depends on more than the sample"),
        ("uuid() is null", "depends on more than the sample"),
        ("today() > a", "depends on more than the sample"),
        ("now() > a", "depends on more than the sample"),
        ("age(a) > interval '1 day'", "age.. of one time counts up to today"),
        ("AGE(a) > interval '1 day'", "age.. of one time counts up to today"),
        ("ago(interval '1 day') > a", "depends on more than the sample"),
        ("current_setting('threads') = '1'", "depends on more than the sample"),
        ("nextval('s') > 1", "depends on more than the sample"),
        ("count(*) > 1", "is no function of one sample"),
        ("sum(a) > 1", "is no function of one sample"),
        ("read_text('/etc/hostname') is null", "is no function of one sample"),
        ("row_number() over () > 1", "a window function is not allowed"),
        ("exists(select 1)", "a query is not allowed"),
        ("a in (select 1)", "a query is not allowed"),
        ("a = any([1])", "a query is not allowed"),
        ("* = 1", "a star is not allowed"),
        ("columns('a') = 1", "a star is not allowed"),
        ("a = ?", "a parameter is not allowed"),
        ("#1 = 1", "a column by its position is not allowed"),
        ("a = 1; drop table b", "at character 6 .*syntax error"),
        ("a = 1) from b where (true", "expected one expression"),
        ("a = 1 order by (a)", "expected one expression|syntax error"),
        ("a > '\udcff'", "has a character that is not in UTF-8, at 6"),
        ("(" * 3000 + "a > 1" + ")" * 3000, r"^'\({300} …', at character"),
        (" \n", "expected one expression, such as"),
        ("group = 1", 'a column whose name is a keyword, or no plain word, is written in double quotes: "group" = 1'),
    ],
)
def test_what_is_no_expression_over_columns_alone_is_refused(engine: Any, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?is){told}"):
        parse_predicate(engine, text)


def test_names_are_shown_as_they_have_to_be_written(engine: Any) -> None:
    written = as_written(engine)
    names = [("jpg", "width"), ("group",), ("info.json", "My Field"), ('a"b',), ("between",), ("0",), ("left",)]
    shown = ["jpg.width", '"group"', '"info.json"."My Field"', '"a""b"', "between", '"0"', '"left"']
    assert [written(name) for name in names] == shown
    for text, name in zip(shown, names, strict=True):
        assert parse_predicate(engine, f"{text} = 1").columns == (name,)


def test_without_duckdb_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigError, match=r'^needs duckdb: pip install "bridge-data\[where\]"'):
        open_engine(tmp_path).__enter__()
