"""The rule by which snippets are found, on texts of our own."""

import textwrap

import yaml

from tests.seeds.extraction import find_snippets, repaired_metadataset, repaired_python


def firsts(text: str) -> list[str]:
    return [snippet.first for snippet in find_snippets("x", textwrap.dedent(text))]


def test_fenced_blocks_are_the_snippets_of_a_document_with_fences() -> None:
    (snippet,) = find_snippets("x", "import this is prose\n\n   ```python\n   x = 1\n     # more\n   ```\n")
    assert (snippet.text, snippet.line) == ("x = 1\n  # more", 4)


def test_without_fences_runs_of_code_lines_are() -> None:
    text = """\
        You can load it like this:
        from a import b
        ds = b(
        anything at all, as long as the bracket is open
        )

        # 注释
        for x in ds:
            print("打印")
        That was it. 说明: 不是代码
        """
    (snippet,) = find_snippets("x", textwrap.dedent(text))
    assert snippet.text.splitlines()[0] == "from a import b"
    assert snippet.text.splitlines()[-1].strip() == 'print("打印")'


def test_dialogues_and_yaml_are_code_and_comments_alone_are_not() -> None:
    text = """\
        # A heading

        Prose.
        $ energon prepare ./
        Ratio: 8,1,1
        This was the answer.
        exclude: []
        - item
        """
    assert firsts(text) == ["$ energon prepare ./", "exclude: []"]


def test_a_signature_is_a_snippet_with_its_arguments() -> None:
    assert firsts("- class a.B(\n- path: str,\n- **kwargs,\nProse.\n- build()#\n- run() Any#\n") == [
        "- class a.B(",
        "- build()#",
        "- run() Any#",
    ]


def test_lost_indentation_of_python_is_put_back() -> None:
    text = "for i in range(2):\n# a comment:\nif i:\nprint(\ni,\n)\nbreak\npass\nprint(9)"
    done = repaired_python(text)
    assert [len(line) - len(line.lstrip()) for line in done.splitlines()] == [0, 4, 4, 8, 8, 8, 8, 4, 0]
    compile(done, "done", "exec")
    assert repaired_python(done) == done


def test_lost_indentation_of_a_metadataset_is_put_back() -> None:
    text = "__class__: M\nsplits:\ntrain:\nblend:\n- weight: 5\npath: ./a\n- weight: 2\npath: ./b\nval:\npath: ./a"
    done = repaired_metadataset(text)
    assert yaml.safe_load(done) == {
        "__class__": "M",
        "splits": {
            "train": {"blend": [{"weight": 5, "path": "./a"}, {"weight": 2, "path": "./b"}]},
            "val": {"path": "./a"},
        },
    }
    assert repaired_metadataset(done) == done
