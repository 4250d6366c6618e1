"""A JSONL file as a source: crude samples, each with the part `json`.

Enters: a path and what a metadataset says about it. Leaves: a `Source`. There is no dataset.yaml: a line is what it is.
"""

from collections.abc import Mapping
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.plan.document import Node
from bridge_data.plan.source import Source
from bridge_data.samples import CrudeSample
from bridge_data.shards.jsonl_file import open_jsonl
from bridge_data.shards.metadata import JSONL_SUFFIX


def is_jsonl(path: str) -> bool:
    """Whether `path` is that of a JSONL file."""
    return path.endswith(JSONL_SUFFIX)


def jsonl_source(
    path: str, split_part: str, *, reference: Mapping[str, Node] | None = None, subflavors: Mapping[str, Any]
) -> Source:
    """The samples of `split_part` of the JSONL file at `path`, to which a metadataset refers by `reference`.

    Raises:
        ConfigError: if it is not prepared, or the reference asks for what a JSONL file has not. DatasetError: if it was
        changed since.
    """
    reference = reference or {}
    if "dataset_config" in reference:
        raise reference["dataset_config"].error(
            f"dataset_config is for prepared folders, but {path} is a JSONL file, whose samples are crude"
        )
    split_config = reference["split_config"].text("split_config") if "split_config" in reference else None
    try:
        records = open_jsonl(path, split_part, split_config=split_config)
    except ConfigError as error:
        raise (reference["path"].error(str(error)) if "path" in reference else error) from None
    return Source(
        path=path,
        split_part=split_part,
        records=records,
        sample_class=CrudeSample,
        field_map={},
        parts=None,
        subflavors=subflavors,
        config_file=path,
    )
