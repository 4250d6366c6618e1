"""Search by key: the samples whose key begins with a text.

Enters: what somebody typed. Leaves: addresses of samples. Guarantee: a few searches of the key index that `prepare`
writes (`index.sqlite`), or arithmetic where keys are numbers (JSONL); no data are scanned.
"""

from collections.abc import Iterator

from bridge_data.errors import ConfigError, bridge_command
from bridge_data.shards import Records, Subset
from bridge_data.shards.joined_records import JoinRecords
from bridge_data.shards.jsonl_file import JsonlLines
from bridge_data.shards.key_index import KeyIndex
from bridge_data.shards.metadata import split_shard
from bridge_data.shards.prepared import ShardSet
from bridge_data.shards.sample_lookup import row_of
from bridge_data.shards.table_records import TableRecords
from bridge_data.tools.view.catalog import CatalogSource, SampleAddress, SplitCatalog

MAX_KEYS = 500
"""Keys of a data set that are looked at for one search: some may be in another split part."""

_LAST = "\udcff" * 4
"""After every key with the same beginning: the largest bytes, which are not UTF-8."""


class KeySearch:
    """Searches the sources of `part`. Any thread may use it."""

    def __init__(self, part: SplitCatalog) -> None:
        self.part = part
        self._indexes: dict[str, KeyIndex] = {}
        self._shards: dict[int, dict[str, int]] = {}

    def find(self, text: str, sources: list[CatalogSource], limit: int) -> list[SampleAddress]:
        """The first `limit` samples of `sources` whose key begins with `text`, or is `shard/key`.

        Raises:
            ConfigError: if a data set has no index of its keys.
        """
        found = []
        for source in sources:
            for index in self._indices(source.records, text):
                found.append(SampleAddress(source.number, index))
                if len(found) == limit:
                    return found
        return found

    def _indices(self, records: Records, text: str) -> Iterator[int]:
        if isinstance(records, Subset):
            inner = self._indices(records.records, text)
            yield from (number - records.start for number in inner if records.start <= number < records.end)
        elif isinstance(records, JsonlLines):
            if text.isascii() and text.isdigit() and int(text) < records.num_samples:
                yield int(text)
        elif isinstance(records, JoinRecords):
            rows = (row_of(records, number) for number in self._indices(records.members[0], text))
            yield from (row for row in rows if row is not None)
        elif isinstance(records, TableRecords):
            file, slash, key = text.rpartition("/")
            yield from (index for index, _ in records.find(key, lambda name: not slash or name == file))
        elif isinstance(records, ShardSet):
            yield from self._in_shards(records, text)

    def _in_shards(self, records: ShardSet, text: str) -> Iterator[int]:
        index = self._index(records)
        shard, prefix = split_shard(text) or ("", text)
        numbers = self._shards.get(id(records))
        if numbers is None:
            numbers = self._shards[id(records)] = {name: number for number, name in enumerate(records.names)}
        for key in index.sorted_keys(prefix, prefix + _LAST, MAX_KEYS):
            for stored_in, position in index.positions(key).items():
                name = index.shard_names[stored_in]
                if name in numbers and shard in ("", name):
                    number = records.number(numbers[name], position)
                    if number is not None:
                        yield number

    def _index(self, records: ShardSet) -> KeyIndex:
        root = str(records.root)
        if root not in self._indexes:
            found = KeyIndex.find(records.root)
            if found is None:
                raise ConfigError(
                    f"{root}: has no index of its keys; run `{bridge_command('prepare', records.root)}` again"
                )
            self._indexes[root] = found
        return self._indexes[root]
