"""Prepared data sets for tests: real tars with Energon's metadata, written by hand, so that tests of this stage need
none of the code that prepares."""

import array
import io
import json
import tarfile

CAPTIONING = """\
sample_type:
  __module__: megatron.energon
  __class__: CaptioningSample
field_map:
  image: jpg
  caption: json[caption]
"""

CRUDE = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"


def write_tar(path, samples):
    """A tar of `samples`, `{key: {part: bytes}}`, with its `.tar.idx`."""
    offsets = array.array("Q")
    with tarfile.open(path, "w") as tar:
        for key, parts in samples.items():
            offsets.append(tar.offset)
            for part, content in parts.items():
                info = tarfile.TarInfo(f"{key}.{part}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        offsets.append(tar.offset)
    path.with_suffix(".tar.idx").write_bytes(offsets.tobytes())


def write_meta(folder, counts, splits, dataset_yaml=CAPTIONING, exclude=()):
    """The `.nv-meta` of `folder`: samples of each shard, shards of each split part."""
    meta = folder / ".nv-meta"
    meta.mkdir(parents=True)
    (meta / ".info.json").write_text(json.dumps({"energon_version": "7.4.1", "shard_counts": counts}))
    (meta / "split.yaml").write_text(json.dumps({"split_parts": splits, "exclude": list(exclude)}))
    if dataset_yaml is not None:
        (meta / "dataset.yaml").write_text(dataset_yaml)
    return folder


def write_dataset(folder, shards, splits=None, dataset_yaml=CAPTIONING, exclude=()):
    """A data set of `shards`, `{name: {key: {part: bytes}}}`; all in `train` unless `splits` says else."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, samples in shards.items():
        write_tar(folder / name, samples)
    counts = {name: len(samples) for name, samples in shards.items()}
    return write_meta(folder, counts, splits or {"train": list(shards)}, dataset_yaml, exclude)
