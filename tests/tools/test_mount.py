import errno
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bridge_data.tools.mount as mount_module
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare
from bridge_data.tools.mount import Catalog, Layout, View, ViewOperations, mount
from tests.shards.tars import write_tar

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
    with pytest.raises(ConfigError, match="not a prepared data set"):
        Catalog(tmp_path)
    write_dataset(tmp_path)
    (tmp_path / ".nv-meta/index.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(DatasetError, match="cannot be read"):
        Catalog(tmp_path)
    (tmp_path / ".nv-meta/index.sqlite").unlink()
    with pytest.raises(ConfigError, match=r"has no index of its keys, index\.sqlite; run `bridge-data prepare"):
        Catalog(tmp_path)


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


@pytest.mark.parametrize("path", ["/no", "/b", "/b.jpg", "/in/no.txt", "/in/deep/z", "/b.txt/x", "/in.txt/x"])
def test_what_is_not_there_is_not_found(dataset: Path, path: str) -> None:
    system = ViewOperations(View(dataset))
    for attempt in (lambda: system.getattr(path), lambda: system.open(path, os.O_RDONLY)):
        with pytest.raises(FileNotFoundError):
            attempt()


@pytest.mark.parametrize("path", ["/one/data", "/one/data-0.tar/in/y.txt", "/two", "/last.tar/b.txt"])
def test_a_shard_folder_has_its_own_samples_only(dataset: Path, path: str) -> None:
    with pytest.raises(FileNotFoundError):
        ViewOperations(View(dataset, "shards")).getattr(path)


def test_folders_and_files_have_kinds_and_rights(dataset: Path) -> None:
    system = ViewOperations(View(dataset))
    assert stat.filemode(system.getattr("/")["st_mode"]) == "dr-xr-xr-x"
    assert stat.filemode(system.getattr("/in/deep")["st_mode"]) == "dr-xr-xr-x"
    assert stat.filemode(system.getattr("/in.txt")["st_mode"]) == "-r--r--r--"


def test_a_file_is_read_in_ranges(dataset: Path) -> None:
    system = ViewOperations(View(dataset))
    handle = system.open("/in/x.txt", os.O_RDONLY)
    assert system.read("/in/x.txt", 10, 4995, handle) == b"xxxxx"
    assert system.read("/in/x.txt", 10, 9999, handle) == b""


def test_nothing_can_be_written(dataset: Path) -> None:
    with pytest.raises(OSError) as caught:
        ViewOperations(View(dataset)).open("/b.txt", os.O_WRONLY)
    assert caught.value.errno == errno.EROFS


def test_the_size_of_the_whole(dataset: Path) -> None:
    facts = ViewOperations(View(dataset)).statfs("/")
    assert facts["f_files"] == 8
    assert facts["f_blocks"] * 512 > sum(map(len, MEMBERS.values()))


def test_a_damaged_shard_is_an_input_output_error(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    os.truncate(tmp_path / "last.tar", 0)
    system = ViewOperations(View(tmp_path))
    handle = system.open("/ä.json", os.O_RDONLY)
    with pytest.raises(OSError) as caught:
        system.read("/ä.json", 10, 0, handle)
    assert caught.value.errno == errno.EIO
    assert "last.tar" in str(caught.value)


def test_without_the_package_it_says_what_to_install(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mfusepy", None)
    with pytest.raises(ConfigError, match=r'pip install "bridge-data\[mount\]"'):
        mount(View(dataset), dataset / "view")


def has_fuse() -> bool:
    """Whether mfusepy finds libfuse."""
    try:
        mount_module.import_fuse()
    except ConfigError:
        return False
    return True


needs_fuse = pytest.mark.skipif(not has_fuse(), reason="needs mfusepy and libfuse (apt install fuse3)")
may_mount = os.access("/dev/fuse", os.R_OK | os.W_OK) and (os.geteuid() == 0 or shutil.which("fusermount3"))
needs_device = pytest.mark.skipif(
    not (has_fuse() and may_mount), reason="needs mfusepy, libfuse, /dev/fuse, and root or fusermount3"
)


@needs_fuse
def test_without_the_device_it_says_what_is_missing(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mount_module, "_DEVICE", tmp_path / "fuse")
    with pytest.raises(ConfigError, match="no such device: this machine, or container, cannot mount by FUSE"):
        mount(View(dataset), tmp_path / "view")


@needs_device
def test_a_folder_that_is_not_empty_is_refused(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match="is not empty"):
        mount(View(dataset), tmp_path)


@needs_device
def test_other_programs_see_the_files(dataset: Path, tmp_path: Path) -> None:
    view = tmp_path / "view"
    command = [sys.executable, "-m", "bridge_data.tools.cli", "mount", str(dataset), str(view)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            deadline = time.monotonic() + 60
            while not view.is_mount():
                assert process.poll() is None, process.stdout and process.stdout.read()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert {str(p.relative_to(view)): p.read_bytes() for p in view.rglob("*") if p.is_file()} == MEMBERS
            with pytest.raises(OSError, match="Read-only"):
                (view / "new").write_text("")
        finally:
            subprocess.run(["umount", str(view)], check=False)
            process.terminate()
            process.wait(10)
