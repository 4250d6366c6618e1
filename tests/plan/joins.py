"""Prepared data sets of texts, and metadatasets that join them, for tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bridge_data.plan import load_plan
from bridge_data.plan.blending import Plan
from bridge_data.plugins.joins.metadataset_joins import prepare_metadataset
from tests.prepared import TEXT, write_dataset

OWN = "tests.plan.own_joins"
BY_FIELDS = {"__module__": "megatron.energon", "__class__": "TextSample"}
NOTED = {"sample_type": {"__module__": OWN, "__class__": "Noted"}, "field_map": {"note": "txt"}}


def own(name: str, key: str = "__class__") -> dict[str, str]:
    """The joiner `name` of `own_joins`."""
    return {"__module__": OWN, key: name}


def texts(folder: Path, keys: str, *, per_shard: int = 2, definition: dict[str, Any] = TEXT) -> Path:
    """A data set of the samples `keys`, a letter each, whose text is the folder's name and the key."""
    samples = ({"__key__": key, "txt": f"{folder.name}{key}"} for key in keys)
    return write_dataset(folder, samples, per_shard=per_shard, definition=definition)


def metadataset(file: Path, train: Mapping[str, Any], **splits: Any) -> Path:
    """A metadataset with this split `train`, and others."""
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    file.write_text(yaml.safe_dump({**head, "splits": {"train": train, **splits}}, sort_keys=False))
    return file


def joined(file: Path, join: Any, joiner: Any = BY_FIELDS, **more: Any) -> Path:
    """A metadataset that is a join."""
    return metadataset(file, {"join": join, "joiner": joiner, **more})


def prepared_plan(file: Path, **options: Any) -> Plan:
    """The plan at `file`, whose joins are prepared first."""
    prepare_metadataset(file, num_workers=1)
    return load_plan(file, trusted_modules=[OWN], **options)
