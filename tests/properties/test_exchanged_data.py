"""Between save and restore, data sets of one shape are exchanged in the metadataset, moved, renamed, prepared again,
replaced by others of equal sizes, or lose their index: every sample still comes exactly once, or the state is refused.
What harms nothing is not refused."""

import collections
import functools
import gzip
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    Cooker,
    DefaultTaskEncoder,
    StateError,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import PrepareConfig, prepare, refresh_index
from tests.data.chunks import write_chunks, write_rows
from tests.plugins.convert.originals import write_mds
from tests.prepared import TEXT, write_dataset_yaml, write_texts
from tests.tables import save_to_disk, table_of, write_parquet

NUM_CHAINS = min(500, int(os.environ.get("BRIDGE_DATA_EXAMPLES", "18")))
SIZE = 60


class Texts(DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(lambda crude: TextSample(**basic_sample_keys(crude), text=crude["json"]["text"])),)

    @stateless
    def encode_sample(self, sample: TextSample) -> str:
        return sample.text

    @stateless
    def batch(self, samples: list[str]) -> list[str]:
        return samples


def text_of(name: str, number: int) -> str:
    """All of one length."""
    return f"{number:04d} {name:>12}"


def write_tars(path: Path, name: str) -> None:
    write_texts(path, SIZE, lambda number: text_of(name, number), per_shard=20)


def forget_index(path: Path) -> None:
    for index in ("index.bridge", "index.sqlite"):
        (path / ".nv-meta" / index).unlink(missing_ok=True)


def write_without_index(path: Path, name: str) -> None:
    write_tars(path, name)
    forget_index(path)


def write_lines(path: Path, name: str) -> None:
    texts = (text_of(name, number) for number in range(SIZE))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare_jsonl(path)


def table(name: str) -> Any:
    return table_of({"number": list(range(SIZE)), "text": [text_of(name, number) for number in range(SIZE)]})


def write_bare_parquet(path: Path, name: str) -> None:
    write_parquet(path, table(name), write_statistics=False, compression="none", use_dictionary=False)


def rows(name: str) -> list[dict[str, bytes]]:
    return [{"text": text_of(name, number).encode()} for number in range(SIZE)]


OF_TABLE = {**TEXT, "field_map": {"text": "text"}}

KINDS: dict[str, tuple[str, Callable[[Path, str], Any], dict[str, Any]]] = {
    "tars": ("", write_tars, {}),
    "tars without an index": ("", write_without_index, {}),
    "lines": (".jsonl", write_lines, {}),
    "Parquet": (
        ".parquet",
        lambda path, name: write_parquet(path, table(name)),
        OF_TABLE,
    ),
    "Parquet without statistics": (".parquet", write_bare_parquet, OF_TABLE),
    "Arrow": ("", lambda path, name: save_to_disk(path, table(name)), OF_TABLE),
    "MDS": ("", lambda path, name: write_mds(path, rows(name), {"text": "str"}), OF_TABLE),
    "litData": ("", lambda path, name: write_chunks(path, rows(name), {"text": "str"}), OF_TABLE),
    "litData rows": ("", lambda path, name: write_rows(path, table(name).select(["text"])), OF_TABLE),
}
"""Of each kind of data: the ending of its path, its writer, and what its entry in a metadataset says besides."""


class Folder:
    """A metadataset of three data sets of a kind, and what may happen to them."""

    def __init__(self, folder: Path, kind: str, names: list[str]) -> None:
        self.folder, (self.ending, self.write, self.entry) = folder, KINDS[kind]
        folder.mkdir()
        self.names, self.contents = [*names], {name: name for name in names}
        for name in self.names:
            self.write(self.path(name), name)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}{self.ending}"

    def rename(self, name: str, to: str) -> None:
        for path in [*self.folder.iterdir()]:
            if path.name.startswith(f"{name}{self.ending}"):
                path.rename(self.folder / f"{to}{path.name.removeprefix(name)}")
        self.names[self.names.index(name)], self.contents[to] = to, self.contents.pop(name)

    def texts(self) -> list[str]:
        return [text_of(self.contents[name], number) for name in self.names for number in range(SIZE)]

    def loader(self, num_lanes: int = 4) -> Any:
        blend = [{"path": f"./{self.path(name).name}", "weight": 1, **self.entry} for name in self.names]
        head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
        (self.folder / "m.yaml").write_text(json.dumps({**head, "splits": {"train": {"blend": blend}}}))
        dataset = get_train_dataset(
            self.folder / "m.yaml",
            worker_config=WorkerConfig(0, 1, 0, num_lanes=num_lanes),
            batch_size=4,
            shuffle_buffer_size=20,
            max_samples_per_sequence=10,
            task_encoder=Texts(),
            repeat=False,
        )
        return get_savable_loader(dataset)


def exchange(data: Folder, chance: random.Random) -> None:
    one, other = chance.sample(range(len(data.names)), 2)
    data.names[one], data.names[other] = data.names[other], data.names[one]


def exchange_folders(data: Folder, chance: random.Random) -> None:
    """As `exchange`, but the names stay where they are."""
    one, other = chance.sample(data.names, 2)
    places = data.names.index(one), data.names.index(other)
    data.rename(one, "other")
    data.rename(other, one)
    data.rename("other", other)
    assert (data.names.index(other), data.names.index(one)) == places
    data.names[places[0]], data.names[places[1]] = one, other


def rename(data: Folder, chance: random.Random) -> None:
    data.rename(chance.choice(data.names), f"new{chance.randrange(10**6)}")


def move(data: Folder, chance: random.Random) -> None:
    data.folder = data.folder.rename(data.folder.with_name(f"moved{chance.randrange(10**6)}"))


def prepare_again(data: Folder, chance: random.Random) -> None:
    path = data.path(chance.choice(data.names))
    if path.is_dir() and (path / ".nv-meta").is_dir():
        refresh_index(path, config=PrepareConfig(digest=chance.random() < 0.5))
    elif path.suffix == ".jsonl":
        prepare_jsonl(path)


def write_again(data: Folder, chance: random.Random) -> None:
    """The same samples, written anew."""
    name = chance.choice(data.names)
    _remove(data, name)
    data.write(data.path(name), data.contents[name])


def replace(data: Folder, chance: random.Random) -> None:
    """Others of the same sizes, at the same path."""
    name = chance.choice(data.names)
    _remove(data, name)
    data.contents[name] = f"other{chance.randrange(10**6)}"
    data.write(data.path(name), data.contents[name])


def lose_index(data: Folder, chance: random.Random) -> None:
    path = data.path(chance.choice(data.names))
    if (path / ".nv-meta").is_dir():
        forget_index(path)


def _remove(data: Folder, name: str) -> None:
    path = data.path(name)
    for one in [*data.folder.iterdir()]:
        if one.name.startswith(path.name):
            shutil.rmtree(one) if one.is_dir() else one.unlink()


HARMLESS = (rename, move, prepare_again, write_again, lose_index)
HARMFUL = (exchange, exchange_folders, replace)


@pytest.mark.seconds
@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_comes_once_or_the_state_is_refused(tmp_path: Path, kind: str) -> None:
    outcomes: collections.Counter[str] = collections.Counter()
    for number in range(-(-NUM_CHAINS // len(KINDS))):
        chance = random.Random(f"{kind} {number}")
        outcomes[run_chain(Folder(tmp_path / f"chain{number}", kind, ["en", "de", "fr"]), chance)] += 1
    assert NUM_CHAINS < 100 or {*outcomes} == {"once", "refused"}


def run_chain(data: Folder, chance: random.Random) -> str:
    """Some legs, each of a few batches, with changes of the data between them; then the rest of the data."""
    seen: list[str] = []
    loader = data.loader()
    for _ in range(chance.randint(1, 3)):
        seen += taken(loader, chance.randint(1, 9))
        state, before = json.loads(json.dumps(loader.save_state_rank())), data.texts()
        done = [act.__name__ for act in (*chance.sample(HARMLESS, 2), *chance.sample(HARMFUL, chance.random() < 0.3))]
        for act in done:
            globals()[act](data, chance)
        loader = data.loader(chance.choice([4, 4, 3]))
        try:
            loader.restore_state_rank(state)
        except StateError as error:
            is_harmless = data.texts() == before and not (data.ending and "rename" in done)  # a file's name counts
            assert not is_harmless, (done, error)
            return "refused"
    seen += taken(loader, 10**6)
    assert collections.Counter(seen) == collections.Counter(data.texts())
    return "once"


def taken(loader: Any, num_batches: int) -> list[str]:
    return [text for _, batch in zip(range(num_batches), loader, strict=False) for text in batch]


@pytest.mark.parametrize("strict", [True, False])
def test_copies_of_one_data_set_that_are_exchanged_are_told_apart_by_their_names(tmp_path: Path, strict: bool) -> None:
    data = Folder(tmp_path / "data", "tars without an index", ["en", "fr"])
    shutil.rmtree(data.path("fr"))
    shutil.copytree(data.path("en"), data.path("fr"))
    loader = data.loader()
    taken(loader, 5)
    state = loader.save_state_rank()
    data.rename("fr", "renamed")
    data.loader().restore_state_rank(state, strict=strict)
    data.rename("renamed", "fr")
    data.names.reverse()
    with pytest.raises(StateError, match=r"(en|fr)/train, (fr|en)/train"):
        data.loader().restore_state_rank(state, strict=strict)


@pytest.mark.parametrize("kind", ["tars", "tars without an index", "lines"])
def test_data_sets_of_one_shape_are_added_after_those_there_are(tmp_path: Path, kind: str) -> None:
    """What comes before would change the order."""
    data = Folder(tmp_path / "data", kind, ["en", "de"])
    data.names = ["en"]
    loader = data.loader()
    seen = taken(loader, 5)
    state = loader.save_state_rank()
    data.names = ["en", "de"]
    after = data.loader()
    after.restore_state_rank(state, strict=False)
    assert collections.Counter(seen + taken(after, 10**6)) == collections.Counter(data.texts())
    data.names = ["de", "en"]
    if kind != "lines":  # the name of a file counts, so these have another shape
        with pytest.raises(StateError, match="en/train"):
            data.loader().restore_state_rank(state, strict=False)


def test_shards_that_were_compressed_at_another_time_are_the_same(tmp_path: Path) -> None:
    data = Folder(tmp_path / "data", "tars", ["en"])
    tars = {path.stem: path.read_bytes() for path in data.path("en").glob("*.tar")}

    def compress(mtime: int) -> None:
        shutil.rmtree(data.path("en"))
        data.path("en").mkdir()
        for name, tar in tars.items():
            (data.path("en") / f"{name}.tgz").write_bytes(gzip.compress(tar, mtime=mtime))
        prepare(data.path("en"), functools.partial(split_by_ratio, ratio=parse_ratio("1,0,0")))
        write_dataset_yaml(data.path("en"), TEXT, "dataset.yaml")

    compress(1)
    loader = data.loader()
    seen = taken(loader, 5)
    state = loader.save_state_rank()
    compress(2)
    again = data.loader()
    again.restore_state_rank(state)
    assert collections.Counter(seen + taken(again, 10**6)) == collections.Counter(data.texts())
