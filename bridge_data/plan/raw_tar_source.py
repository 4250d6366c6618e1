"""Unprepared tars as a format: crude samples, with all parts of each; there is no dataset.yaml."""

from bridge_data import storage
from bridge_data.plan.declared import Reference
from bridge_data.plan.formats import Format, Opening
from bridge_data.plan.source import Source
from bridge_data.shards.cached_index import find_raw_tars, is_tar_pattern, open_raw_tars
from bridge_data.shards.metadata import META_FOLDER


class UnpreparedTars(Format):
    """A folder of tars, a tar or a pattern of tars, on a disk, that nobody has prepared."""

    name = "tars"

    def matches(self, path: str) -> bool:
        if storage.is_remote(path) or storage.is_folder(f"{path}/{META_FOLDER}"):
            return False
        if storage.is_folder(path):
            return find_raw_tars(path) is not None
        return is_tar_pattern(path) or storage.is_file(path)

    def describe(self, path: str) -> str:
        tars = find_raw_tars(path)
        assert tars is not None
        return f"holds tars without {META_FOLDER}: run {tars.way_out}"

    def open(self, reference: Reference, opening: Opening) -> Source:
        path, part, cache = reference.path, reference.scope.split_part, reference.scope.cache
        tars = find_raw_tars(path, cache.limits)
        assert tars is not None
        return self.source(reference, cache.get(("tars", path, part), lambda: open_raw_tars(tars, part)))
