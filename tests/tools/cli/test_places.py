import pytest

from tests.object_store import Bucket
from tests.prepared import write_blend, write_texts
from tests.tools.cli.runner import run_command


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
