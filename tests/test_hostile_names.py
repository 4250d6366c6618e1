"""Names in data of others: they are keys, and name nothing on the disk of the reader."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from bridge_data.plan import load_plan
from bridge_data.plugins.mount.mount import View
from tests.cli.runner import run_command

NAMES = ("../../up.txt", "{outside}/absolute.txt", "a/../../../around.txt", "$HOME/variable.txt", "plain.txt")


def write_hostile(path: Path, outside: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name in NAMES:
            member = tarfile.TarInfo(name.format(outside=outside))
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.processes
def test_names_of_members_are_never_paths_to_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "x" / "y" / "set"
    for shard in ("a.tar", "b.tar"):
        write_hostile(folder / shard, tmp_path)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    field_map = json.dumps({"text": "txt"})
    prepare = ["prepare", folder, "--non-interactive", "--split-ratio", "1,0,0", "--no-progress", "--num-workers", "1"]
    prepare += ["--sample-type", "TextSample", "--field-map", field_map]
    for command in (
        prepare,
        [*prepare, "--fix-duplicates", "--force-overwrite"],
        ["check", folder, "--no-progress", "--num-workers", "1"],
        ["info", folder, "--samples", "10"],
        ["info", folder],
    ):
        result = run_command(*command)
        assert result.exit_code == 0, result.output
    assert load_plan(folder).sources[0].num_samples == 2 * len(NAMES)
    assert "plain" in set(View(folder, "samples").names("/a.tar"))
    assert all(folder in path.parents for path in files_below(tmp_path))
