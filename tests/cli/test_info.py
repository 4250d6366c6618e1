from pathlib import Path

from tests.cli.conftest import Run
from tests.cli.test_prepare import FIELDS, QUIET


def test_shows_what_there_is(run: Run, tars: Path) -> None:
    flags = ("--split-ratio", "4,1,1", "--sample-type", "CaptioningSample", "--field-map", FIELDS)
    run("prepare", tars, *QUIET, *flags)
    result = run("info", tars)
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    assert ["holds", "12", "samples", "in", "6", "shards,"] in [line[:6] for line in lines]
    assert ["parts", "json,", "png,", "txt"] in lines
    assert ["train", "4", "8"] in [line[:3] for line in lines]
    assert "CaptioningSample(image ← png, caption ← txt)" in result.output
    assert "data-000000.tar … data-000005.tar" in result.output
    assert "index.bridge" in result.output


def test_energons_files_are_enough(run: Run, tars: Path) -> None:
    run("prepare", tars, *QUIET, "--split-ratio", "1,0,0")
    (tars / ".nv-meta/index.bridge").unlink()
    result = run("info", tars)
    assert result.exit_code == 0
    assert ".tar.idx only" in result.output
    assert "not known, there is no dataset.yaml" in result.output
    for text, shown in (("- 1", "holds no mapping"), ("a: [", "not readable as YAML")):
        (tars / ".nv-meta/dataset.yaml").write_text(text)
        assert shown in run("info", tars).output
    (tars / ".nv-meta/dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    assert "sample type  CrudeWebdataset\n" in run("info", tars).output
