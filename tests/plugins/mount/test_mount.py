import contextlib
import errno
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bridge_data.plugins.mount.mount as mount_module
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plugins.mount.mount import Catalog, Layout, View, ViewOperations, mount
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare
from tests.cli.runner import run_command
from tests.data.tars import write_tar
from tests.waiting import until

SHARDS = {
    "one/data-0.tar": {"b.txt": b"bee", "b.left.png": b"left", "b-c.txt": b"dash", "in/x.txt": b"x" * 5000},
    "one/data-1.tar": {"in/y.txt": b"y", "in/deep/z.txt": b"", "in.txt": b"both a sample and a folder"},
    "last.tar": {"ä.json": b"{}", "in/deep/zz.json": b"[]"},
}

MEMBERS = {name: content for members in SHARDS.values() for name, content in members.items()}


def write_dataset(folder: Path) -> Path:
    """The data set."""
    for name, members in SHARDS.items():
        write_tar(folder / name, members)
    prepare(folder, partial(split_by_ratio, ratio=parse_ratio("1,0,0")))
    return folder


def pieces(keys: set[str], prefix: str) -> set[tuple[str, bool]]:
    """What stands directly below a prefix."""
    rests = [key[len(prefix) :].partition("/") for key in keys if key.startswith(prefix)]
    return {(piece, not slash) for piece, slash, _ in rests}


KEYS = st.lists(st.sampled_from(["a", "b", "a-b", "ä", "0"]), min_size=1, max_size=4).map("/".join)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set whose table of keys a test writes anew."""
    return write_dataset(tmp_path_factory.mktemp("keys"))


@settings(deadline=None, max_examples=30)
@given(keys=st.sets(KEYS, min_size=1, max_size=30))
def test_what_is_below_is_listed_once_in_order(root: Path, keys: set[str]) -> None:
    with sqlite3.connect(root / ".nv-meta/index.sqlite") as db:
        db.execute("DELETE FROM samples")
        rows = ((number % 2, key, number, 0, 0) for number, key in enumerate(sorted(keys)))
        db.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", rows)
    catalog = Catalog(root)
    for prefix in ("", "a/", "a/b/", "no/"):
        for shard in (None, 0, 1):
            own = {key for number, key in enumerate(sorted(keys)) if shard in (None, number % 2)}
            listed = list(catalog.names_below(prefix, shard))
            assert len(listed) == len(set(listed))
            assert set(listed) == pieces(own, prefix)
            assert catalog.has_below(prefix, shard) == bool(listed)


def test_an_older_index_without_parts_is_enough(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    keys = ("b", "in/x", "in", "in/deep/zz")
    new = {key: Catalog(tmp_path).parts(key) for key in keys}
    with sqlite3.connect(tmp_path / ".nv-meta/index.sqlite") as db:
        db.execute("DROP TABLE sample_parts")
    old = Catalog(tmp_path)
    assert {key: old.parts(key) for key in keys} == new
    assert all(new.values())


def test_keys_of_several_shards_need_folders_of_shards(tmp_path: Path) -> None:
    for shard in ("a.tar", "b.tar"):
        write_tar(tmp_path / shard, {"1.txt": shard.encode()})
    prepare(tmp_path, partial(split_by_ratio, ratio=parse_ratio("1,0,0")))
    for layout in ("members", "samples"):
        with pytest.raises(ConfigError, match=r"1 key occurs .* such as '1' in a\.tar and b\.tar.*--shard-folders"):
            View(tmp_path, layout)
    view = View(tmp_path, "shards")
    for shard in ("a.tar", "b.tar"):
        part = view.file(f"/{shard}/1.txt")
        assert part is not None and view.catalog.reader.read(part) == shard.encode()


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set")
    index = tmp_path / "set/.nv-meta/index.sqlite"
    index.write_bytes(b"x" * 5000)
    with pytest.raises(DatasetError, match="cannot be read"):
        Catalog(tmp_path / "set")
    index.unlink()
    (tmp_path / "raw").mkdir()
    for path, flags, told in (
        ("set", (), "has no index of its keys, index.sqlite; run `bridge-data prepare"),
        ("raw", (), "not a prepared data set"),
        ("raw", ("--sample-folders", "--shard-folders"), "--sample-folders and --shard-folders: give one of them"),
    ):
        result = run_command("mount", tmp_path / path, tmp_path / "view", *flags)
        assert (result.exit_code, told in result.stderr) == (1, True), result.stderr
    assert not (tmp_path / "view").exists()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("set"))


def contents(system: ViewOperations, folder: str = "/") -> dict[str, bytes]:
    """Everything below a folder, as the operating system would read it."""
    found: dict[str, bytes] = {}
    for name in system.readdir(folder, 0):
        path = f"{folder.rstrip('/')}/{name}"
        if name in (".", ".."):
            continue
        facts = system.getattr(path)
        if stat.S_ISDIR(facts["st_mode"]):
            found |= contents(system, path)
        else:
            handle = system.open(path, os.O_RDONLY)
            data = b""
            while piece := system.read(path, 1000, len(data), handle):
                data += piece
            assert system.release(path, handle) == 0
            assert len(data) == facts["st_size"] == system.getattr(path, None)["st_size"]
            found[path[1:]] = data
    return found


EXPECTED: dict[Layout, dict[str, bytes]] = {
    "members": MEMBERS,
    "samples": {
        f"{name.rpartition('/')[0]}/{name.rpartition('/')[2].replace('.', '/', 1)}".lstrip("/"): content
        for name, content in MEMBERS.items()
    },
    "shards": {f"{shard}/{name}": content for shard, members in SHARDS.items() for name, content in members.items()},
}


@pytest.mark.parametrize("layout", EXPECTED)
def test_all_files_are_there_once_with_their_bytes(dataset: Path, layout: Layout) -> None:
    assert contents(ViewOperations(View(dataset, layout))) == EXPECTED[layout]


NOT_THERE = {
    "members": ["/no", "/b", "/b.jpg", "/in/no.txt", "/in/deep/z", "/b.txt/x", "/in.txt/x"],
    "shards": ["/one/data", "/one/data-0.tar/in/y.txt", "/two", "/last.tar/b.txt"],
}


@pytest.mark.parametrize("layout", NOT_THERE)
def test_what_is_not_there_is_not_found(dataset: Path, layout: Layout) -> None:
    system = ViewOperations(View(dataset, layout))
    for path in NOT_THERE[layout]:
        for attempt in (system.getattr, partial(system.open, flags=os.O_RDONLY)):
            with pytest.raises(FileNotFoundError):
                attempt(path)


def test_files_have_kinds_rights_ranges_and_a_size_in_all_and_cannot_be_written(dataset: Path) -> None:
    system = ViewOperations(View(dataset))
    modes = [stat.filemode(system.getattr(path)["st_mode"]) for path in ("/", "/in/deep", "/in.txt")]
    assert modes == ["dr-xr-xr-x", "dr-xr-xr-x", "-r--r--r--"]
    handle = system.open("/in/x.txt", os.O_RDONLY)
    assert [system.read("/in/x.txt", 10, at, handle) for at in (4995, 9999)] == [b"xxxxx", b""]
    facts = system.statfs("/")
    assert facts["f_files"] == 8 and facts["f_blocks"] * 512 > sum(map(len, MEMBERS.values()))
    with pytest.raises(OSError) as caught:
        system.open("/b.txt", os.O_WRONLY)
    assert caught.value.errno == errno.EROFS


def test_a_damaged_shard_is_an_input_output_error(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    os.truncate(tmp_path / "last.tar", 0)
    system = ViewOperations(View(tmp_path))
    with pytest.raises(OSError, match=r"last\.tar") as caught:
        system.read("/ä.json", 10, 0, system.open("/ä.json", os.O_RDONLY))
    assert caught.value.errno == errno.EIO


def test_what_a_mount_lacks_is_said(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if has_fuse():
        monkeypatch.setattr(mount_module, "_DEVICE", tmp_path / "fuse")
        with pytest.raises(ConfigError, match="no such device: this machine, or container, cannot mount by FUSE"):
            mount(View(dataset), tmp_path / "view")
        (tmp_path / "fuse").write_text("")
        told = run_command("mount", dataset, tmp_path / "fuse" / "view").stderr
        assert told == f"error: {tmp_path}/fuse/view: cannot be mounted on: Not a directory\n"
        with pytest.raises(ConfigError, match="is not empty"):
            mount(View(dataset), tmp_path)
    monkeypatch.setitem(sys.modules, "mfusepy", None)
    assert run_command("mount", dataset, tmp_path / "view").stdout == ""  # it does not say that it is shown
    with pytest.raises(ConfigError, match="pip install mfusepy"):
        mount(View(dataset), tmp_path / "view")


def has_fuse() -> bool:
    """Whether mfusepy finds libfuse."""
    with contextlib.suppress(ConfigError):
        return bool(mount_module.import_fuse())
    return False


may_mount = os.access("/dev/fuse", os.R_OK | os.W_OK) and (os.geteuid() == 0 or shutil.which("fusermount3"))
needs_device = pytest.mark.skipif(
    not (has_fuse() and may_mount), reason="needs mfusepy, libfuse, /dev/fuse, and root or fusermount3"
)


def test_a_mount_that_fails_is_not_said_to_be_shown(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        """mfusepy where the mount is refused."""

        Operations = object

        @staticmethod
        def FUSE(*_: object, **__: object) -> None:
            raise RuntimeError(1)

    (tmp_path / "fuse").write_text("")
    monkeypatch.setattr(mount_module, "_DEVICE", tmp_path / "fuse")
    monkeypatch.setattr(mount_module, "import_fuse", lambda: Library)
    for options in ((), ("--detach",)):
        result = run_command("mount", dataset, tmp_path / "view", *options)
        assert result.exit_code == 1 and result.stdout == "" and "FUSE could not mount" in result.stderr


@needs_device
def test_other_programs_see_the_files(dataset: Path, tmp_path: Path) -> None:
    view = tmp_path / "view"
    command = [sys.executable, "-m", "bridge_data.cli", "mount", str(dataset), str(view)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            until(lambda: view.is_mount() or process.poll() is not None, 60)
            assert {str(p.relative_to(view)): p.read_bytes() for p in view.rglob("*") if p.is_file()} == MEMBERS
            with pytest.raises(OSError, match="Read-only"):
                (view / "new").write_text("")
        finally:
            subprocess.run(["umount", str(view)], check=False)
            process.terminate()
            process.wait(10)


@needs_device
def test_a_mount_in_the_background_is_there_when_the_command_ends(dataset: Path, tmp_path: Path) -> None:
    view = tmp_path / "view"
    command = [sys.executable, "-m", "bridge_data.cli", "mount", "--detach", str(dataset), str(view)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    try:
        assert f"is shown at {view}" in done.stdout
        assert (view / "b.txt").read_bytes() == MEMBERS["b.txt"]
    finally:
        subprocess.run(["umount", str(view)], check=True)
