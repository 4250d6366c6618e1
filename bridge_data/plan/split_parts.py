"""Which parts of the split there are, of whatever a path leads to.

Enters: the path of a prepared folder, a JSONL file or a metadataset. Leaves: names. Only metadata are read.
"""

from bridge_data import storage
from bridge_data.errors import ConfigError
from bridge_data.plan.declared import read_splits
from bridge_data.plan.document import parse_yaml
from bridge_data.plan.jsonl_source import is_jsonl
from bridge_data.shards.jsonl_file import read_ranges
from bridge_data.shards.prepared import PreparedDataset
from bridge_data.storage import Location

WHOLE = "train"
"""What to call a JSONL file without a split: it is the same samples in every part."""


def split_parts(path: Location) -> list[str]:
    """The parts that `path` declares, in its order.

    Raises:
        ConfigError: if there is nothing there, or nothing that has parts. DatasetError: if its metadata are damaged.
    """
    if storage.is_folder(path):
        return PreparedDataset.open(path).split_parts()
    if not storage.is_file(path):
        raise ConfigError(f"{path}: no such folder or file")
    if is_jsonl(str(path)):
        return list(read_ranges(path) or [WHOLE])
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: expected a prepared folder, a metadataset .yaml or a .jsonl file")
    return list(read_splits(parse_yaml(storage.read_all(path), str(path)))[1])
