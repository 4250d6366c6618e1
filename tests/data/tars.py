"""Real tars and data sets for tests."""

import io
import os
import tarfile
from functools import partial
from pathlib import Path

import webdataset

from bridge_data.data import ShardReader, ShardSet
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import Preparation, PrepareConfig, prepare


def write_tar(path: Path, members: dict[str, bytes], format: int = tarfile.USTAR_FORMAT) -> Path:
    """A tar of these members; a name that ends in a slash becomes a folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def reverse_tar(path: Path) -> None:
    """Write the members of a tar in reverse order; its size stays."""
    num_bytes = path.stat().st_size
    with tarfile.open(path) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    path.unlink()
    write_tar(path, dict(reversed(members.items())))
    os.truncate(path, num_bytes)  # only the zeros at the end differ


def write_shards(folder: Path, num_shards: int = 4, samples_per_shard: int = 5) -> dict[str, list[str]]:
    """Shards `data-000000.tar` and on, as webdataset writes them, of samples with `json` and `txt`; keys by shard."""
    folder.mkdir(parents=True, exist_ok=True)
    keys: dict[str, list[str]] = {}
    with webdataset.ShardWriter(str(folder / "data-%06d.tar"), maxcount=samples_per_shard, verbose=0) as writer:
        for number in range(num_shards * samples_per_shard):
            key = f"{number:06d}"
            writer.write({"__key__": key, "txt": text_of(number), "json": f'{{"caption": "c{number}"}}'.encode()})
            keys.setdefault(f"data-{number // samples_per_shard:06d}.tar", []).append(key)
    return keys


def text_of(number: int) -> bytes:
    """The text of sample `number` of `write_shards`: of many lengths, block boundaries among them."""
    return b"x" * (number * 173 % 1100)


def prepare_by_ratio(folder: Path, ratio: str = "8,1,1", **config: object) -> Preparation:
    """Prepare `folder` in this process."""
    settings: dict[str, object] = {"num_workers": 1} | config
    return prepare(folder, partial(split_by_ratio, ratio=parse_ratio(ratio)), PrepareConfig(**settings))  # type: ignore[arg-type]


def keys_of(shards: ShardSet) -> list[str]:
    """The keys of all samples."""
    reader = ShardReader(shards)
    return [reader.read(index).key for index in range(len(shards))]


def set_split(folder: Path, text: str) -> None:
    """Write this `split.yaml`."""
    (folder / ".nv-meta/split.yaml").write_text(text)
