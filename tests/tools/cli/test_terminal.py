import threading

import pytest

from bridge_data.tools.cli import terminal
from bridge_data.tools.cli.terminal import counted, listed, progress_bar, sized, spanned, table
from tests.object_store import Bucket
from tests.prepared import write_blend, write_texts
from tests.tools.cli.runner import run_command


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


def test_it_shows_what_is_done(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "SHOWN_AFTER_S", 0)
    with progress_bar("checking", "samples", shown=True) as show:
        show(0, 8)
        show(8, 8)
    shown = capsys.readouterr().err
    assert "checking: 100%" in shown
    assert "8/8" in shown


def test_it_shows_nothing_of_what_is_soon_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "SHOWN_AFTER_S", 3600)
    with progress_bar("checking", "samples", shown=True) as show:
        show(0, 8)
        show(8, 8)
    assert capsys.readouterr().err == ""


def test_it_starts_nothing_before_the_first_call_and_shows_nothing_unasked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "SHOWN_AFTER_S", 0)
    before = threading.active_count()
    with progress_bar("checking", "samples", shown=False) as show:
        assert threading.active_count() == before
        show(1, None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("prepare", "s3://bucket/a"),
        ("prepare-media", "s3://bucket/a", "--media-metadata-by-extension"),
        ("lint", "s3://bucket/a"),
        ("preview", "s3://bucket/a"),
        ("pack", "here", "s3://bucket/a"),
    ],
)
def test_what_takes_data_on_a_disk_says_so(arguments: tuple[str, ...]) -> None:
    done = run_command(*arguments)
    assert done.exit_code == 1
    assert f"s3://bucket/a: `main {arguments[0]}` takes data on a disk" in done.output


def test_info_reads_from_a_store(bucket: Bucket) -> None:
    write_texts(bucket.folder / "a", 120, ratio="2,1,0")
    write_blend(bucket.folder / "blend.yaml", {"a": 1}, val="a")
    shown = run_command("info", f"{bucket.url}/a").output
    assert f"data set     {bucket.url}/a" in shown and "120 samples in 3 shards" in shown and "index.bridge" in shown
    assert "120 samples" not in (shown := run_command("info", f"{bucket.url}/blend.yaml").output)
    assert f"{bucket.url}/a [train]" in shown
    assert run_command("info", f"{bucket.url}/nowhere").exit_code == 1
