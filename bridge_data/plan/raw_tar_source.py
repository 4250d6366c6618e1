"""Unprepared tars as a source.

Enters: a reference to them. Leaves: a `Source` of crude samples, with all parts of each: there is no dataset.yaml.
"""

from bridge_data.errors import ConfigError
from bridge_data.plan.declared import Reference
from bridge_data.plan.source import Source
from bridge_data.samples import CrudeSample
from bridge_data.shards.raw_tars import find_raw_tars, open_raw_tars


def open_tar_source(reference: Reference) -> Source:
    """The source of the tars that `reference` names."""
    path, scope = reference.path, reference.scope
    try:
        tars = find_raw_tars(path, scope.cache.limits)
    except ConfigError as error:
        raise reference.error(str(error)) from None
    assert tars is not None
    for key in ("dataset_config", "split_config"):
        if key in reference.entries:
            raise reference.error(
                f"{key} is for prepared folders, but {path} holds tars without .nv-meta: run {tars.way_out}", key
            )
    try:
        shards = scope.cache.get(("tars", path, scope.split_part), lambda: open_raw_tars(tars, scope.split_part))
    except ConfigError as error:
        raise reference.error(str(error)) from None
    return Source(
        path=path,
        split_part=scope.split_part,
        records=shards,
        sample_class=CrudeSample,
        subflavors=scope.subflavors,
        config_file=path,
        limits=scope.cache.limits,
    )
