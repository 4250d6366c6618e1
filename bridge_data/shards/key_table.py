"""The keys of a data set's samples, shard by shard, as its indexes know them.

Enters: a `ShardSet`. Leaves: the keys of the samples of one of its shards, in order, without excluded ones. No shard is
touched: they come from `index.bridge`, or from the `index.sqlite` of Energon.
"""

import contextlib
import dataclasses
import sqlite3

from bridge_data.errors import DatasetError
from bridge_data.shards.metadata import meta_folder, read_shard_counts
from bridge_data.shards.names import INDEX_SQLITE
from bridge_data.shards.shard_set import ShardSet
from bridge_data.storage import on_disk


@dataclasses.dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys of the samples of `shards`; `numbers` are the shards' numbers in `index.sqlite`, where that is used."""

    shards: ShardSet
    numbers: tuple[int, ...] | None

    @classmethod
    def of(cls, shards: ShardSet) -> "ShardKeys":
        """Those of `shards`.

        Raises:
            DatasetError: if the data set has no index of keys. ConfigError: if it is in an object store, without ours.
        """
        if shards.index is not None:
            return cls(shards, None)
        meta = meta_folder(on_disk(shards.root))  # in a store, keys are looked up by our index only
        if not (meta / INDEX_SQLITE).is_file():
            raise DatasetError(
                f"{shards.root}: has no index of its keys; run `bridge-data prepare {shards.root} --tar-index-only`"
            )
        numbers = {name: number for number, name in enumerate(read_shard_counts(meta))}
        return cls(shards, tuple(numbers[name] for name in shards.names))

    def of_shard(self, shard: int) -> list[str]:
        """The keys of the samples of shard number `shard`.

        Raises:
            DatasetError: if the index cannot be read, or is not of this data.
        """
        shards = self.shards
        index = shards.index
        keys = self._of_sqlite(shard) if index is None else index.segment(shards.names[shard]).keys()
        if len(keys) != shards.stored_counts[shard]:
            raise DatasetError(
                f"{shards.root}: the index knows {len(keys)} samples in {shards.names[shard]}, but the metadata "
                f"{shards.stored_counts[shard]}; run `bridge-data prepare {shards.root} --tar-index-only`"
            )
        excluded = shards.excluded_positions.get(shard, ())
        if excluded:
            left_out = set(excluded)
            keys = [key for position, key in enumerate(keys) if position not in left_out]
        return keys

    def key(self, index: int) -> str:
        """The key of sample `index`, with its shard: for messages."""
        shard, _ = self.shards.locate(index)
        return f"{self.shards.names[shard]}/{self.of_shard(shard)[index - self.shards.starts[shard]]}"

    def _of_sqlite(self, shard: int) -> list[str]:
        assert self.numbers is not None
        path = meta_folder(on_disk(self.shards.root)) / INDEX_SQLITE
        query = "SELECT sample_key FROM samples WHERE tar_file_id = ? ORDER BY sample_index"
        try:
            with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
                return [key for (key,) in db.execute(query, (self.numbers[shard],))]
        except sqlite3.Error as error:
            raise DatasetError(
                f"{path}: cannot be read: {error}; run `bridge-data prepare {self.shards.root} --tar-index-only`"
            ) from error
