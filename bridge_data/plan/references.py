"""Opening a data set that is referred to: a prepared folder or a JSONL file.

Enters: a `Reference`. Leaves: its `Source`, cut to its range. Only metadata are read. Guarantee: what is wrong in
dataset.yaml, or between it, the index and the reference, is named with file and line.
"""

import dataclasses
from collections.abc import Collection

from bridge_data import storage
from bridge_data.errors import ConfigError
from bridge_data.plan.auxiliary import check_aux
from bridge_data.plan.dataset_yaml import check_parts, read_sample_config
from bridge_data.plan.declared import DeclaredJoin, Reference
from bridge_data.plan.document import parse_yaml
from bridge_data.plan.jsonl_source import is_jsonl, jsonl_source
from bridge_data.plan.own_factory import factory_source, find_factory
from bridge_data.plan.source import Source
from bridge_data.samples import CrudeSample
from bridge_data.shards import Subset, open_shards
from bridge_data.shards.metadata import DATASET_YAML, META_FOLDER
from bridge_data.storage import location


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What the caller says of all data sets: whether it is for training, and what code may be run for them: modules
    that YAML files name, and the Python files beside the data."""

    training: bool = True
    trusted_modules: Collection[str] = ()
    trust_dataset_code: bool = False


def open_reference(reference: Reference, opening: Opening) -> Source:
    """The source that `reference` names.

    Raises:
        ConfigError: naming file and line of whatever is wrong. DatasetError: if the data are not what their metadata
        say.
    """
    path, scope = reference.path, reference.scope
    if storage.is_folder(path):
        source = _open_folder(reference, opening)
    elif not storage.is_file(path):
        raise reference.error(f"{path}: no such folder or file")
    elif is_jsonl(path):
        source = jsonl_source(path, scope.split_part, reference=reference.entries, subflavors=scope.subflavors)
    else:
        raise reference.error(
            f"{path}: expected a prepared folder, a metadataset .yaml or a .jsonl file, got another file"
        )
    if reference.aux:
        if not issubclass(source.sample_class, CrudeSample):
            raise reference.error(
                f"aux is for crude samples, which are cooked, but {path} has samples of the class "
                f"{source.sample_class.__name__}",
                "aux",
            )
        check_aux(reference.aux, reference.entries["aux"])
        source = dataclasses.replace(source, aux=reference.aux)
    return cut(source, reference)


def cut(source: Source, declared: Reference | DeclaredJoin) -> Source:
    """`source` with the range and the epochs that its scope says.

    Raises:
        ConfigError: naming file and line, if the range reaches beyond the data, or leaves nothing of them.
    """
    scope, records = declared.scope, source.records
    source = dataclasses.replace(source, epochs_per_shuffle=scope.epochs_per_shuffle)
    if scope.subset is None:
        return source
    try:
        start, end = scope.subset.resolve(records.num_samples)
    except ConfigError as error:
        raise declared.error(f"{error} [{source.name}]", "subset") from None
    if start == end and records.num_samples:
        raise declared.error(
            f"subset: range: {scope.subset} leaves none of the {records.num_samples} samples of {source.name}", "subset"
        )
    return dataclasses.replace(source, records=Subset(records, start, end))


def _open_folder(reference: Reference, opening: Opening) -> Source:
    path, scope = reference.path, reference.scope
    meta = location(path) / META_FOLDER
    config_file = str(meta / (reference.text("dataset_config") or DATASET_YAML))
    text = storage.read_if_there(config_file)
    if text is None and not storage.is_folder(meta):
        raise reference.error(
            f"{path}: not a prepared data set, it has no {META_FOLDER} folder; run `bridge-data prepare {path}`, "
            "or give the path of a metadataset .yaml"
        )
    if text is None:
        raise reference.error(
            f"{config_file}: no such file, so it is not known what the samples are; run `bridge-data prepare {path}` "
            "without --skip-dataset-yaml, or write the file",
            "dataset_config",
        )
    document = parse_yaml(text, config_file)
    split_config = reference.text("split_config")
    factory = find_factory(document, opening.trusted_modules)
    if factory is not None:
        given = {"split_part": scope.split_part, "training": opening.training, "split_config": split_config}
        trust = opening.trust_dataset_code
        return factory_source(factory, document, path, given, scope.subflavors, trust_dataset_code=trust)
    config = read_sample_config(document, opening.trusted_modules, trust_dataset_code=opening.trust_dataset_code)
    try:
        shards = open_shards(path, scope.split_part, split_config=split_config)
    except ConfigError as error:
        raise reference.error(str(error), "split_config") from None
    check_parts(document, config, shards)
    return Source(
        path=path,
        split_part=scope.split_part,
        records=shards,
        sample_class=config.sample_class,
        field_map=config.field_map,
        parts=config.parts,
        subflavors={**config.subflavors, **scope.subflavors},
        config_file=config_file,
        maker=config.maker,
    )
