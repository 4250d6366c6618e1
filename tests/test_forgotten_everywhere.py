"""No way of reading hands out a forgotten sample: each way that this package has, over data with a list."""

import html
import itertools
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from starlette.testclient import TestClient

from bridge_data import (
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    FileStoreCachePool,
    ForgottenSampleError,
    Sample,
    StateError,
    TextSample,
    basic_sample_keys,
    cooker,
    edataclass,
    get_savable_loader,
    prepare_metadataset,
    stateless,
)
from bridge_data.energon import DefaultCrudeJsonlDatasetFactory, TextWebdataset
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plugins.forget.tombstone_writing import forget_samples, renew_tombstones
from bridge_data.plugins.mount.mount import View, ViewOperations
from bridge_data.plugins.view.data_catalog import DataCatalog
from bridge_data.plugins.view.pages import Site, application
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.task.stores import JsonlFileStore, WebdatasetFileStore
from tests.cli.runner import run_command
from tests.data.tars import prepare_by_ratio, write_tar
from tests.object_store import Bucket
from tests.prepared import TEXT, train_dataset, val_dataset, write_dataset_yaml, write_texts
from tests.tables import save_to_disk, table_of, write_parquet

SIZE = 60
GONE = {3, 17, 30, 59}
LEFT = set(range(SIZE)) - GONE
QUIET = ("--non-interactive", "--no-progress", "--num-workers", "1")


def text_of(number: int) -> str:
    return f"text <{number:02d}>"


def numbers_in(*contents: Any) -> set[int]:
    """The samples whose texts are in what was handed out."""
    return {int(found) for content in contents for found in re.findall(r"text (?:<|&lt;|\\u003c)(\d\d)", str(content))}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the same texts as tars, lines, rows and a saved data set; of each, the same are forgotten."""
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "data"
    write_texts(root / "tars", SIZE, text_of, per_shard=20)
    for folder in ("lines", "rows"):
        (root / folder).mkdir()
    texts = [text_of(number) for number in range(SIZE)]
    (root / "lines" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare_jsonl(root / "lines" / "a.jsonl")
    write_parquet(root / "rows" / "a.parquet", table_of({"text": texts}), per_group=7)
    save_to_disk(root / "saved", table_of({"text": texts}), per_batch=7)
    forget_samples(root / "tars", [f"{number:06d}" for number in GONE], "asked for")
    for path in (root / "lines" / "a.jsonl", root / "rows" / "a.parquet", root / "saved"):
        forget_samples(path, map(str, GONE), "asked for")
    return root


@stateless
def cook(sample: CrudeSample) -> TextSample:
    found = sample["json"]["text"] if "json" in sample else sample.get("text", sample.get("txt"))
    return TextSample(**basic_sample_keys(sample), text=found)


class Texts(DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(cook),)


def run(path: Path, *, split_part: str = "train", encoder: Any = None, **options: Any) -> tuple[set[int], int]:
    """(the samples that a run hands out, how many it counts as forgotten)."""
    settings = {"split_part": split_part, "batch_size": 1, "task_encoder": encoder or Texts()}
    loader = get_savable_loader(val_dataset(path, **settings, **options))
    found = numbers_in(*(batch.text for batch in loader))
    return found, loader.skipped.get("forgotten", 0)


def tars_of(data: Path) -> list[Path]:
    return sorted((data / "tars").glob("*.tar"))


def linked(target: Path, link: Path) -> Path:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    return link


def folder_of_links(data: Path, *, link: Callable[[Path, Path], Any] = os.symlink) -> Path:
    folder = data / "links"
    folder.mkdir()
    for tar in tars_of(data):
        link(tar, folder / tar.name)
    return folder


def prepared(folder: Path) -> Path:
    prepare_by_ratio(folder, "1,0,0")
    write_dataset_yaml(folder, TEXT, "dataset.yaml")
    return folder


def renamed(data: Path) -> Path:
    tar = tars_of(data)[0]
    tar.rename(tar.with_name("other.tar"))
    return prepared(data / "tars")


def copied_within(data: Path, copy: Callable[[Path, Path], Any]) -> Path:
    tar = tars_of(data)[0]
    copy(tar, tar.with_name("other.tar"))
    return prepared(data / "tars")


def copied(path: Path, other: Path, copy: Callable[[Path, Path], Any] = shutil.copy) -> Path:
    other.parent.mkdir(exist_ok=True)
    copy(path, other)
    return other


def metadataset(data: Path, text: str) -> Path:
    file = data / "meta.yaml"
    file.write_text(f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n{text}")
    return file


RUNS: dict[str, Callable[[Path], Path]] = {
    "prepared folder": lambda data: data / "tars",
    "link to the folder": lambda data: linked(data / "tars", data / "at" / "link"),
    "link to its parent": lambda data: linked(data, data.parent / "elsewhere") / "tars",
    "blend": lambda data: metadataset(data, "    blend:\n      - path: tars\n        weight: 1\n"),
    "subset": lambda data: metadataset(data, f"    path: tars\n    subset: {{range: [0, {SIZE}]}}\n"),
    "where": lambda data: metadataset(data, "    path: tars\n    where: index >= 0\n"),
    "raw tars by a pattern": lambda data: data / "tars" / "*.tar",
    "raw tars by braces": lambda data: data / "tars" / "data-{0000..0002}.tar",
    "raw tars in a blend": lambda data: metadataset(data, "    blend:\n      - path: tars/*.tar\n        weight: 1\n"),
    "raw links to tars": folder_of_links,
    "raw links to links": lambda data: linked(folder_of_links(data), data / "at" / "links") / "*.tar",
    "prepared links to tars": lambda data: prepared(folder_of_links(data)),
    "tars after one is renamed": renamed,
    "raw tars after one is renamed": lambda data: renamed(data) / "*.tar",
    "raw tars, one renamed and not prepared": lambda data: (
        tars_of(data)[0].rename(data / "tars" / "data-0009.tar").with_name("*.tar")
    ),
    "tars with a hard link to one": lambda data: copied_within(data, lambda old, new: os.link(old, new)),
    "tars with a link to one": lambda data: copied_within(data, lambda old, new: new.symlink_to(old.name)),
    "tars with a copy of one": lambda data: copied_within(data, shutil.copy),
    "a copy beside the tars": lambda data: copied(tars_of(data)[0], data / "tars" / "other.tar"),
    "lines": lambda data: data / "lines" / "a.jsonl",
    "a copy of lines": lambda data: prepared_lines(copied(data / "lines" / "a.jsonl", data / "lines" / "b.jsonl")),
    "a copy of rows": lambda data: copied(data / "rows" / "a.parquet", data / "rows" / "b.parquet"),
    "a hard link to rows": lambda data: copied(data / "rows" / "a.parquet", data / "rows" / "b.parquet", os.link),
    "link to lines, prepared": lambda data: prepared_lines(linked(data / "lines" / "a.jsonl", data / "at" / "b.jsonl")),
    "lines in a linked folder": lambda data: linked(data / "lines", data / "at" / "lines") / "a.jsonl",
    "rows": lambda data: data / "rows" / "a.parquet",
    "rows by a pattern": lambda data: data / "rows" / "*.parquet",
    "rows by a folder": lambda data: data / "rows",
    "link to rows": lambda data: linked(data / "rows" / "a.parquet", data / "at" / "b.parquet"),
    "link to the folder of rows": lambda data: linked(data / "rows", data / "at" / "rows"),
    "saved": lambda data: data / "saved",
    "link to the saved": lambda data: linked(data / "saved", data / "at" / "saved"),
    "a saved file": lambda data: next((data / "saved").glob("*.arrow")),
}


def prepared_lines(path: Path) -> Path:
    prepare_jsonl(path)
    return path


@pytest.mark.parametrize("way", RUNS)
def test_runs(data: Path, way: str) -> None:
    found, num_forgotten = run(RUNS[way](data))
    if way == "a copy beside the tars":  # of the first tar
        assert (found, num_forgotten) == (LEFT & {*range(20)}, 2)
        return
    assert found == LEFT
    assert num_forgotten >= len(GONE)


def test_a_list_is_found_from_the_file_that_was_forgotten_by_a_link(data: Path) -> None:
    forget_samples(linked(data / "rows" / "a.parquet", data / "at" / "b.parquet"), ["5"], "asked for")
    link = prepared_lines(linked(data / "lines" / "a.jsonl", data / "at" / "b.jsonl"))
    forget_samples(link, ["5"], "asked for")
    folder = prepared(folder_of_links(data))
    forget_samples(folder, ["000005"], "asked for")
    for path in (
        data / "rows" / "a.parquet",
        data / "lines" / "a.jsonl",
        folder,
        data / "tars",
        data / "tars" / "*.tar",
    ):
        assert run(path) == (LEFT - {5}, len(GONE) + 1), path
    forget_samples(folder, ["000005"], "again", restore=True)
    assert run(data / "tars") == run(folder) == (LEFT, len(GONE))


def test_keys_that_got_the_name_of_their_shard_as_a_prefix_are_found_by_renew(data: Path) -> None:
    write_tar(data / "tars" / "more.tar", {"000000.txt": text_of(0).encode()})
    prepare_by_ratio(data / "tars", "1,0,0", fix_duplicates=True)
    with pytest.raises(DatasetError, match="--renew"):
        run(data / "tars")
    report = renew_tombstones(data / "tars", "longer keys")
    assert (report.num_forgotten, [*report.ignored]) == (len(GONE), [])
    assert run(data / "tars") == run(data / "tars" / "*.tar") == (LEFT, len(GONE))


def test_renew_keeps_what_other_data_have_forgotten(data: Path) -> None:
    links = data / "links"
    linked(tars_of(data)[0], links / "link.tar")
    linked(copied(tars_of(data)[1], data / "loose" / "loose.tar"), links / "loose.tar")
    prepared(links)
    forget_samples(links, ["link.tar:000005", "loose.tar:000025"], "asked for")
    assert renew_tombstones(links, "again").ignored == []
    assert run(data / "tars") == (LEFT - {5}, len(GONE) + 1)
    assert run(links) == ({*range(40)} - {3, 17, 5, 25}, 4)


def test_a_tar_that_is_gone_and_may_be_any_of_several_is_refused(data: Path) -> None:
    root = data / "alike"
    for number in range(4):
        members = {f"{at}.txt": text_of(10 * number + at).encode() for at in range(3)}
        write_tar(root / f"{number}.tar", members)
    prepared(root)
    forget_samples(root, ["0.tar:1", "1.tar:2"], "asked for")
    everything = {10 * number + at for number in range(4) for at in range(3)}
    assert run(root) == (everything - {1, 12}, 2), "tars of the same keys and sizes are no copies"
    (root / "0.tar").rename(root / "5.tar")
    prepared(root)
    for act in (
        run,
        lambda root: forget_samples(root, ["2.tar:1"], "asked for"),
        lambda root: renew_tombstones(root, ""),
    ):
        with pytest.raises(DatasetError, match=r"0\.tar, in .* each of 2\.tar, 3\.tar, 5\.tar may be"):
            act(root)
    write_tar(root / "0.tar", {})
    with pytest.raises(DatasetError, match=r"0\.tar has changed .*--renew"):
        run(prepared(root))
    assert renew_tombstones(root, "removed").ignored == ["0.tar:1"]
    assert run(root) == (everything - {12}, 1)


def test_renew_finds_a_tar_with_a_new_name_by_its_digest(data: Path) -> None:
    root = data / "alike"
    for number in range(4):
        write_tar(
            root / f"{number}.tar", {f"{at}.txt": text_of(10 * number + at).encode() + b"!" * number for at in range(3)}
        )
    forget_samples(prepared(root), ["0.tar:1"], "asked for")
    (root / "0.tar").rename(root / "5.tar")
    assert renew_tombstones(prepared(root), "renamed").num_changed == 1
    assert run(root) == ({10 * number + at for number in range(4) for at in range(3)} - {1}, 1)


def stored(store: Any) -> Iterator[Any]:
    """What a store hands out, of all keys that it could have."""
    listed = {*store.list_files()}
    assert len(listed) == SIZE - len(GONE)
    forms = ("{:06d}.txt", "data-0000.tar/{:06d}.txt", "data-0001.tar:{:06d}.txt", "{}.json")
    num_refused = 0
    for key in {*listed, *(form.format(number) for form in forms for number in range(SIZE))}:
        try:
            yield store.get(key)
        except ForgottenSampleError:
            num_refused += 1
        except Exception:
            continue
    assert num_refused >= len(GONE)


def test_stores(data: Path) -> None:
    link = linked(data / "tars", data / "at" / "link")
    for store in (
        WebdatasetFileStore(data / "tars"),
        WebdatasetFileStore(link, name="media"),
        WebdatasetFileStore(prepared(folder_of_links(data))),
        JsonlFileStore(data / "lines" / "a.jsonl"),
        JsonlFileStore(prepared_lines(linked(data / "lines" / "a.jsonl", data / "at" / "b.jsonl"))),
    ):
        assert numbers_in(*stored(store)) == LEFT, store
    assert numbers_in(*stored(WebdatasetFileStore(renamed(data)))) == LEFT


def asking(data: Path, *, lazy: bool = False) -> tuple[Path, Any]:
    """(a metadataset of samples that each name one of the tars, an encoder that asks for it)."""
    write_texts(data / "asking", SIZE, str, per_shard=20)
    (data / "asking" / ".nv-meta" / "dataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    )

    @stateless
    @cooker(need_cache=True)
    def ask(sample: CrudeSample, media: Any, cache: Any) -> TextSample:
        name = f"{int(sample['txt']):06d}.txt"
        found = cache.get_lazy(media, name).get() if lazy else media.get(name, sample)
        return TextSample(**basic_sample_keys(sample), text=found)

    class Asking(DefaultTaskEncoder[Any, Any, Any, Any]):
        cookers = (Cooker(ask),)

    return metadataset(data, "    path: asking\n    aux: {media: tars}\n"), Asking()


@pytest.mark.parametrize("lazy", [False, True])
def test_a_cooker_that_asks_for_a_forgotten_sample_loses_its_own_as_forgotten(data: Path, lazy: bool) -> None:
    file, encoder = asking(data, lazy=lazy)
    assert run(file, encoder=encoder) == (LEFT, len(GONE))


@pytest.mark.parametrize("form", ["tars", "lines/a.jsonl"])
def test_a_cache_of_another_job_that_began_before_gives_none_back(data: Path, form: str) -> None:
    def opened() -> Any:
        return WebdatasetFileStore(data / form) if form == "tars" else JsonlFileStore(data / form)

    key, name = ("000005.txt", "000005") if form == "tars" else ("5.json", "5")
    settings: dict[str, Any] = {"parent_cache_dir": data / "cached", "method": "raw"}
    other, own = FileStoreCachePool(**settings), FileStoreCachePool(**settings)
    before = opened()
    kept = other.get_lazy(before, key)
    other.prefetch(before, key, threading.Event()).result()
    forget_samples(data / form, [name], "asked for")
    after = opened()
    for ask in (lambda: own.get(after, key), lambda: own.get_lazy(after, key).get()):
        with pytest.raises(ForgottenSampleError):
            ask()
    assert numbers_in(kept.get()) == numbers_in(own.get(before, key)) == {5}
    own.close()
    other.close()


def test_a_running_job_and_its_new_workers_keep_the_lists_of_its_start(data: Path) -> None:
    file, encoder = asking(data)
    dataset = val_dataset(file, batch_size=1, task_encoder=encoder)
    forget_samples(data / "tars", ["000005"], "asked for")
    of_worker = cloudpickle.loads(cloudpickle.dumps(dataset))
    assert numbers_in(*(batch.text for batch in get_savable_loader(of_worker))) == LEFT
    assert run(file, encoder=encoder) == (LEFT - {5}, len(GONE) + 1)


CONVERTED: dict[str, Callable[[Path], Path]] = {
    "folder": lambda data: data / "tars",
    "linked folder": lambda data: linked(data / "tars", data / "at" / "link"),
    "folder of links": folder_of_links,
    "lines": lambda data: data / "lines" / "a.jsonl",
    "link to lines": lambda data: linked(data / "lines" / "a.jsonl", data / "at" / "b.jsonl"),
    "rows": lambda data: data / "rows" / "a.parquet",
    "link to rows": lambda data: linked(data / "rows" / "a.parquet", data / "at" / "b.parquet"),
    "saved": lambda data: data / "saved",
    "linked saved": lambda data: linked(data / "saved", data / "at" / "saved"),
}


@pytest.mark.parametrize("way", CONVERTED)
def test_convert(data: Path, way: str) -> None:
    path = CONVERTED[way](data)
    result = run_command("convert", path, data / "out", "--sample-type", "TextSample", *fields(path), *QUIET)
    assert result.exit_code == 0, result.output
    assert "left out as forgotten: 4 records" in result.output
    assert run(data / "out") == (LEFT, 0)


def fields(path: Path) -> tuple[str, str]:
    return ("--field-map", "text=txt" if path.is_dir() and [*path.glob("*.tar")] else "text=text")


def shown(data: Path) -> Iterator[tuple[str, Path]]:
    yield from (
        ("tars", data / "tars"),
        ("link", linked(data / "tars", data / "at" / "link")),
        ("links", prepared(folder_of_links(data))),
        ("lines", data / "lines" / "a.jsonl"),
        ("rows", data / "rows" / "a.parquet"),
        ("saved", data / "saved"),
    )


def test_shown_samples(data: Path) -> None:
    for name, path in shown(data):
        result = run_command("info", path, "--samples", SIZE)
        assert result.output.count("(forgotten: no run sees it)") == len(GONE), name
        assert numbers_in(result.output) == LEFT, name
        sheet = data / f"{name}.html"
        assert run_command("info", path, "--samples", SIZE, "--html", sheet).exit_code == 0
        assert numbers_in(sheet.read_text()) == LEFT, name


def test_duplicates(data: Path) -> None:
    write_texts(data / "again", SIZE, text_of, per_shard=20)
    for folder in (data / "tars", linked(data / "tars", data / "at" / "link")):
        result = run_command("duplicates", folder, data / "again", "--json", "--limit", SIZE, "--no-progress")
        assert result.exit_code == 0, result.output
        report = json.loads(result.output)
        assert report["faults"]["forgotten"] == len(GONE)
        assert report["exact"]["num_groups"] == len(LEFT)


def test_mount(data: Path) -> None:
    for layout, folder in itertools.product(("members", "samples", "shards"), (data / "tars", None)):
        view = View(folder or linked(data / "tars", data / layout), layout)  # type: ignore[arg-type]
        operations = ViewOperations(view)
        files, folders, contents = 0, ["/"], []
        while folders:
            here = folders.pop()
            for name in view.names(here):
                path = os.path.join(here, name)
                if view.file(path) is None:
                    folders.append(path)
                    continue
                files += 1
                handle = operations.open(path, os.O_RDONLY)
                contents.append(operations.read(path, 1000, 0, handle))
        assert (files, numbers_in(*contents)) == (len(LEFT), LEFT)
        hidden = {"members": "/000003.txt", "samples": "/000003/txt", "shards": "/data-0000.tar/000003.txt"}[layout]
        assert view.file(hidden) is None


@edataclass
class Pair(Sample):
    """Two texts of a join."""

    one: TextSample | None
    two: TextSample | None

    @classmethod
    def from_joined(cls, one: TextSample, two: TextSample | None) -> "Pair":
        return cls.derive_from(one, one=one, two=two)


@pytest.mark.parametrize("nonmatch", ["skip", "none"])
def test_joins_drop_the_sample_if_that_of_any_member_is_forgotten(data: Path, nonmatch: str) -> None:
    write_texts(data / "others", SIZE, lambda number: f"other {number}")
    members = ["one: {path: others}", f"two: {{path: tars, nonmatch: {nonmatch}}}"]
    text = f"    join:\n      {members[0]}\n      {members[1]}\n    joiner:\n"
    joined = metadataset(data, text + f"      __module__: {__name__}\n      __class__: Pair\n")
    prepare_metadataset(joined)
    loader = get_savable_loader(val_dataset(joined, batch_size=None, trusted_modules=[__name__]))
    pairs = [(sample.one.text, sample.two.text) for sample in loader]
    assert sorted(pairs) == [
        (f"other {number}", text_of(number)) for number in sorted(LEFT, key=lambda n: f"other {n}")
    ]
    assert loader.skipped["forgotten"] == len(GONE)


def test_pages(data: Path) -> None:
    for name, path in shown(data):
        site = Site(DataCatalog(path, {}), None)
        browser = TestClient(application(site), base_url="http://127.0.0.1:8750", follow_redirects=True)
        seen: set[int] = set()
        waiting, known = ["/"], {"/"}
        while waiting:
            answer = browser.get(waiting.pop())
            seen |= numbers_in(answer.text)
            for url in re.findall(r'(?:href|src|hx-get)="(/[^"#]*)"', answer.text):
                url = html.unescape(url)
                if url not in known:
                    known.add(url)
                    waiting.append(url)
        assert any("media" in url for url in known) or name != "tars"
        assert seen == LEFT, name


def test_a_state_stays_valid_when_another_list_of_the_data_gets_its_first_version(data: Path) -> None:
    own, other = data / "own", write_texts(data / "other", SIZE, text_of, per_shard=20)
    write_texts(own, SIZE, text_of, per_shard=20)
    linked(other / "data-0000.tar", own / "link.tar")
    prepared(own)

    def opened(state: Any = None) -> Any:
        loader = get_savable_loader(train_dataset(own))
        if state is not None:
            loader.restore_state_rank(state)
        next(iter(loader))
        return loader.save_state_rank()

    def versions(state: Any) -> list[int]:
        return [number for _, lists in state["extras"]["withheld"]["data"] for [[number, _]] in lists.values()]

    forget_samples(own, ["data-0002.tar:000050"], "asked for")
    first = opened()
    forget_samples(own, ["link.tar:000003"], "asked for")
    assert [path.parent.parent.name for path in data.glob("o*/.nv-meta/forgotten.jsonl")] == ["own", "other"]
    second = opened(first)
    forget_samples(own, ["data-0002.tar:000051"], "asked for")
    assert versions(first) == [1] and versions(second) == [1, 2] and versions(opened(second)) == [1, 2, 3]
    assert versions(opened(first)) == [1, 3]
    (other / ".nv-meta" / "forgotten.jsonl").unlink()
    with pytest.raises(StateError, match="version 2 of the list of forgotten samples"):
        opened(second)


def test_copies_in_an_object_store(data: Path, bucket: Bucket) -> None:
    for name in ("tars", "lines", "rows", "saved"):
        shutil.copytree(data / name, bucket.folder / name)
    for path in ("tars", "lines/a.jsonl", "rows/a.parquet", "rows", "saved"):
        assert run(f"{bucket.url}/{path}") == (LEFT, len(GONE)), path  # type: ignore[arg-type]
    assert numbers_in(*stored(WebdatasetFileStore(f"{bucket.url}/tars"))) == LEFT
    assert numbers_in(*stored(JsonlFileStore(f"{bucket.url}/lines/a.jsonl"))) == LEFT


def test_the_primary_store(data: Path) -> None:
    (data / "tars" / ".nv-meta" / "dataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    )

    @stateless
    @cooker(need_primary=True)
    def ask_for_the_next(sample: CrudeSample, primary: Any) -> TextSample:
        number = (int(sample["__key__"][-6:]) + 1) % SIZE
        return TextSample(**basic_sample_keys(sample), text=primary.get(f"{number:06d}.txt", sample))

    class Asking(DefaultTaskEncoder[Any, Any, Any, Any]):
        cookers = (Cooker(ask_for_the_next),)

    found, num_forgotten = run(data / "tars", encoder=Asking())
    assert found == {(number + 1) % SIZE for number in LEFT} - GONE
    assert num_forgotten == SIZE - len(found)
    with pytest.raises(ConfigError, match="no such folder"):  # keys are looked up in prepared folders only
        run(data / "tars" / "*.tar", encoder=Asking())


def test_factories(data: Path) -> None:
    lines = DefaultCrudeJsonlDatasetFactory(data / "lines" / "a.jsonl", training=False)
    tars = TextWebdataset(data / "tars", training=False, field_map={"text": "txt"})
    for made in (lines.build(), tars.build()):
        assert run(made) == (LEFT, len(GONE))  # type: ignore[arg-type]
