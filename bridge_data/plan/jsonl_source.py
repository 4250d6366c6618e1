"""JSONL files as a format: crude samples, each with the part `json`; there is no dataset.yaml."""

from bridge_data import storage
from bridge_data.limits import Limits
from bridge_data.plan.declared import Reference
from bridge_data.plan.formats import WHOLE, Format, Opening
from bridge_data.plan.source import Source
from bridge_data.shards import Records
from bridge_data.shards.jsonl_file import open_jsonl, read_ranges
from bridge_data.storage import Location


class JsonlFile(Format):
    """A JSONL file with its index, and perhaps a split."""

    name = "jsonl"
    settings = ("split_config",)

    def matches(self, path: str) -> bool:
        return storage.is_file(path)

    def describe(self, path: str) -> str:
        return "is a JSONL file, whose samples are crude"

    def parts(self, path: Location, limits: Limits) -> list[str]:
        return list(read_ranges(path, limits=limits) or [WHOLE])

    def open(self, reference: Reference, opening: Opening) -> Source:
        return self.source(reference, self.with_keys(reference))

    def with_keys(self, reference: Reference) -> Records:
        path, part, cache = reference.path, reference.scope.split_part, reference.scope.cache
        split_config = reference.text("split_config")
        key = ("jsonl", path, part, split_config)
        return cache.get(key, lambda: open_jsonl(path, part, split_config=split_config, limits=cache.limits))
