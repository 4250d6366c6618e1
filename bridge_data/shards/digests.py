"""Checking the digests of what is read: of which records it can be asked.

Enters: records. Leaves: the same, whose readers compare every part that they read with the digest that `bridge-data
prepare --digest` stored. Guarantee: either all of them are compared, or it is an error now.
"""

import dataclasses

from bridge_data.errors import ConfigError
from bridge_data.shards.joins import JoinRecords
from bridge_data.shards.prepared import ShardSet
from bridge_data.shards.records import Records
from bridge_data.shards.subset import Subset


def verified(records: Records) -> Records:
    """The same records; their readers raise a `DatasetError` where a part is not what was prepared.

    Raises:
        ConfigError: if there are no digests of them.
    """
    if isinstance(records, ShardSet):
        return verified_shards(records)
    if isinstance(records, Subset):
        return dataclasses.replace(records, records=verified(records.records))
    if isinstance(records, JoinRecords):
        return dataclasses.replace(records, members=tuple(map(verified_shards, records.members)))
    raise ConfigError(f"{records.root}: has no digests to verify: only prepared folders of tars can have some")


def verified_shards(shards: ShardSet) -> ShardSet:
    """The same shards; see `verified`."""
    if shards.index is None or not shards.index.has_digests:
        raise ConfigError(f"{shards.root}: has no digests to verify; run `bridge-data prepare {shards.root} --digest`")
    return dataclasses.replace(shards, verifies_digests=True)
