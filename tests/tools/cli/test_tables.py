import pytest

from bridge_data.tools.cli.tables import counted, listed, sized, spanned, table


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (3_400_000, "3.4 MB"), (2e15, "2,000.0 TB")],
)
def test_sizes(num_bytes: float, expected: str) -> None:
    assert sized(num_bytes) == expected


def test_words() -> None:
    assert (counted(1, "shard"), counted(12_000, "shard")) == ("1 shard", "12,000 shards")
    assert listed([]) == "none"
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert (spanned(["a"]), spanned(["a", "b", "c"])) == ("a", "a … c")


def test_columns_are_aligned() -> None:
    assert table(["part", "samples"], [["train", "1,000"], ["v", "5"]]).splitlines()[1:] == [
        "train    1,000",
        "v            5",
    ]
