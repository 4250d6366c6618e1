"""Data sets on the Hugging Face hub, served by a server that speaks its API."""

import functools
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.plugins.stores import hf_bucket, store_requests
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare
from tests.hub_server import TOKEN, HubDataset, HubServer, hub_server
from tests.plugins.stores.test_training import loader, texts
from tests.prepared import write_blend, write_texts
from tests.tables import write_table_blend, write_text_table

CONTENT = bytes(range(256)) * 40
SMALL = b"a file that is kept in git"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A server that the environment leads to, without a token."""
    with hub_server(tmp_path / "hub", page=3) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "copies"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield server


def new(hub: HubServer, **settings: Any) -> HubDataset:
    """A data set of a name that no client of this process knows, with a large file, a small one, and a folder."""
    data = hub.add(f"us/pets-{uuid.uuid4().hex[:8]}", **settings)
    (data.folder / "large file.bin").write_bytes(CONTENT)
    (data.folder / "small#1.txt").write_bytes(SMALL)
    (data.folder / "more").mkdir()
    for number in range(7):
        (data.folder / "more" / f"{number}.txt").write_bytes(b"%d" % number)
    data.commit()
    return data


def test_the_server_is_one_that_the_hubs_own_client_reads(hub: HubServer) -> None:
    data = new(hub)
    api, files = huggingface_hub.HfApi(endpoint=hub.url), huggingface_hub.HfFileSystem(endpoint=hub.url)
    found = {one.path: one.size for one in api.list_repo_tree(data.name, repo_type="dataset", recursive=True)
             if isinstance(one, huggingface_hub.RepoFile)}  # fmt: skip
    assert found == storage.list_sizes(data.url) and len(found) == 9
    (info,) = api.get_paths_info(data.name, ["large file.bin", "none"], repo_type="dataset")
    assert isinstance(info, huggingface_hub.RepoFile) and info.lfs is not None
    assert storage.version(f"{data.url}/large file.bin") == (len(CONTENT), info.lfs.sha256)
    for file, content in (("large file.bin", CONTENT), ("small#1.txt", SMALL)):
        assert files.cat(f"datasets/{data.name}/{file}") == content == storage.read_all(f"{data.url}/{file}")


@pytest.mark.parametrize(("file", "content"), [("large file.bin", CONTENT), ("small#1.txt", SMALL)])
def test_reads_ranges_and_whole_files(hub: HubServer, file: str, content: bytes) -> None:
    url = f"{new(hub).url}/{file}"
    assert storage.read(url, 10, 5) == content[10:15]
    assert storage.read(url, 0, len(content)) == storage.read_all(url) == storage.read_if_there(url) == content
    assert storage.size_bytes(url) == len(content)
    storage.prefetch([(url, *one) for one in [(0, 10), (12, 10)]])
    assert storage.read(url, 12, 10) == content[12:22]
    copy = storage.local_copy(url)
    assert copy is not None and copy.read_bytes() == content
    with pytest.raises(DatasetError, match=rf"wanted bytes {len(content) - 1} to .* but the object has {len(content)}"):
        storage.read(url, len(content) - 1, 2)


def test_files_and_folders_are_told_apart(hub: HubServer) -> None:
    data = new(hub)
    assert storage.list_sizes(f"{data.url}/more") == {f"{number}.txt": 1 for number in range(7)}
    assert storage.is_folder(data.url) and storage.is_folder(f"{data.url}/more")
    assert not storage.is_folder(f"{data.url}/small#1.txt") and not storage.is_folder(f"{data.url}/none")
    assert storage.is_file(f"{data.url}/more/1.txt")
    assert not storage.is_file(f"{data.url}/more") and not storage.is_file(f"{data.url}/none")
    assert storage.read_if_there(f"{data.url}/none") is None
    (data.folder / "empty").write_bytes(b"")
    data.commit("later")
    assert storage.read_all(f"{data.url}@later/empty") == b""


def test_the_hub_is_asked_for_an_address_once_until_it_expires(hub: HubServer) -> None:
    url = f"{new(hub).url}/large file.bin"
    storage.read(url, 0, 3)
    before = len(hub.requests)
    for start in range(100):
        assert storage.read(url, start, 200) == CONTENT[start : start + 200]
    new_requests = hub.requests[before:]
    assert len(new_requests) == 100 and all(path.startswith("/cdn/") for _, path, _ in new_requests)
    assert len(hub.connections) <= 3
    hub.expire()
    assert storage.read(url, 5, 9) == CONTENT[5:14]
    assert [path.split("/")[1] for _, path, _ in hub.requests[before + 100 :]] == ["cdn", "datasets", "cdn"]
    assert storage.read(url, 5, 9) == CONTENT[5:14] and len(hub.requests) == before + 104


def test_a_data_set_is_read_at_the_commit_that_was_found_first(hub: HubServer) -> None:
    data = new(hub)
    first = data.commit("main", "v1")
    pinned = storage.location(f"{data.url}/more").absolute()
    assert str(pinned) == f"{data.url}@{first}/more"
    (data.folder / "small#1.txt").write_bytes(b"pushed later")
    second = data.commit("main", "refs/convert/parquet", "feature/x")
    assert storage.read_all(f"{data.url}/small#1.txt") == storage.read_all(f"{data.url}@v1/small#1.txt") == SMALL
    for revision in (second, "refs/convert/parquet", "feature%2Fx"):
        assert storage.read_all(f"{data.url}@{revision}/small#1.txt") == b"pushed later"
    before = len(hub.requests)
    again = pickle.loads(pickle.dumps(pinned))
    assert again == again.absolute() == pinned and len(hub.requests) == before


def test_a_forked_child_reads(hub: HubServer) -> None:
    url = f"{new(hub).url}/large file.bin"
    assert storage.read(url, 0, 3) == CONTENT[:3]
    with multiprocessing.get_context("fork").Pool(1) as child:
        assert child.apply(storage.read, (url, 300, 200)) == CONTENT[300:500]
    assert storage.read(url, 200, 100) == CONTENT[200:300]


def test_what_may_not_be_read_is_told_with_the_way_out(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    private, gated = new(hub, is_private=True), new(hub, is_gated=True)
    for data in (private, gated):
        page = f"{hub.url}/datasets/{data.name}"
        with pytest.raises(DatasetError, match=rf"{data.url}.*access denied.*HF_TOKEN.*{page}.*401"):
            storage.read(f"{data.url}/large file.bin", 0, 1)
    with pytest.raises(DatasetError, match=r"us/none: access denied\. If there is a data set us/none.*401"):
        load_plan("hf://datasets/us/none")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for data in (private, gated):
        assert storage.read_all(f"{data.url}/large file.bin") == CONTENT
        assert storage.read_all(f"{data.url}/small#1.txt") == SMALL
    assert hub.tokens_at_cdn == {None}
    with pytest.raises(DatasetError, match=rf"there is no revision 'v9'; see {hub.url}/datasets/{private.name}.*404"):
        storage.read(f"{private.url}@v9/a", 0, 1)
    with pytest.raises(DatasetError, match=rf"{private.url}/none: bytes 0 to 1: no such object.*404"):
        storage.read(f"{private.url}/none", 0, 1)


def test_nothing_is_written_to_the_hub(hub: HubServer) -> None:
    url = new(hub).url
    for action in (
        lambda: storage.write(storage.location(f"{url}/a"), b""),
        lambda: storage.delete(storage.location(f"{url}/small#1.txt")),
        lambda: prepare(storage.location(url), functools.partial(split_by_ratio, ratio=parse_ratio("1,0,0"))),
    ):
        with pytest.raises((DatasetError, ConfigError), match=f"{url}.*only read.*hf upload"):
            action()


OFFLINE = """
import sys
from bridge_data.errors import ConfigError
from bridge_data.plan import load_plan
try:
    load_plan(sys.argv[1])
except ConfigError as error:
    print(error)
"""


@pytest.mark.processes
def test_offline_nothing_is_read_and_the_setting_is_named(hub: HubServer) -> None:
    data, before = new(hub), len(hub.requests)
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", OFFLINE, data.url]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"{data.url}: HF_HUB_OFFLINE is set") and len(hub.requests) == before


@pytest.mark.parametrize("fault", [429, 503, "cut", "hang", pytest.param("trickle", marks=pytest.mark.slow)])
def test_transient_faults_pass_and_one_that_stays_is_named(
    hub: HubServer, fault: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (store_requests, hf_bucket):
        monkeypatch.setattr(module, "FULL_S", 0.5)
    data = new(hub)
    url, start = f"{data.url}/large file.bin", time.monotonic()
    hub.faults.extend([fault] * 2)
    assert storage.list_sizes(data.url)["large file.bin"] == len(CONTENT)  # asks for the commit first
    hub.faults.extend([fault] * 2)
    assert storage.read(url, 0, 100) == CONTENT[:100]
    hub.faults.append(fault)
    assert storage.read(url, 100, 100) == CONTENT[100:200]
    assert time.monotonic() - start < 15 and not hub.faults
    monkeypatch.setenv("BRIDGE_DATA_RETRY_S", "0.2")
    hub.faults.extend([429] * 100)
    with pytest.raises(DatasetError, match=rf"{data.url}/small#1.txt.*attempts in \d s failed, the last one with: 429"):
        storage.read(f"{data.url}/small#1.txt", 0, 1)


def test_ranges_answered_whole_are_taken_from_small_files_only(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{new(hub).url}/small#1.txt"
    storage.read(url, 0, 1)
    hub.faults.append("whole")
    assert storage.read(url, 2, 4) == SMALL[2:6]
    monkeypatch.setattr(hf_bucket, "MAX_WHOLE_BYTES", 5)
    hub.faults.extend(["whole"] * 2)
    with pytest.raises(DatasetError, match="answers a range with the whole file"):
        storage.read(url, 2, 4)


@pytest.fixture
def sets(hub: HubServer) -> HubDataset:
    """Prepared tars, a blend of them, and Parquet files, committed."""
    data = hub.add(f"us/texts-{uuid.uuid4().hex[:8]}")
    write_texts(data.folder / "tars", 120, lambda n: f"a{n}")
    write_blend(data.folder / "blend.yaml", {"tars": 3, "tars/../tars": 1})
    for number in range(2):
        name = f"train-{number:05d}-of-00002.parquet"
        write_text_table(data.folder / "tables" / name, 60, f"{number} {{}}".format)
    write_table_blend(data.folder / "tables.yaml", {"tables": 1})
    data.commit()
    return data


@pytest.mark.parametrize(("name", "num_workers"), [("blend.yaml", 2), ("tables.yaml", 2), ("tables.yaml", 0)])
def test_batches_are_those_of_the_local_copy(hub: HubServer, sets: HubDataset, name: str, num_workers: int) -> None:
    (source,) = load_plan(f"{sets.url}/tables").sources
    assert source.path == f"{sets.url}@{sets.refs['main']}/tables"
    with loader(sets.folder / name) as local:
        expected = texts(iter(local), 60)
    with loader(f"{sets.url}/{name}", num_workers) as remote_loader:
        for file in filter(Path.is_file, sets.folder.rglob("*")):
            file.write_bytes(b"")
        sets.commit()  # nothing of this is seen by workers that start later
        batches = iter(remote_loader)
        assert texts(batches, 25) == expected[:25]
        state = json.loads(json.dumps(remote_loader.save_state_rank()))
    with loader(f"{sets.url}/{name}", num_workers) as resumed:
        resumed.restore_state_rank(state)
        assert texts(iter(resumed), 35) == expected[25:]
    assert len([path for _, path, _ in hub.requests if path.endswith("?expand=sha")]) == 1
