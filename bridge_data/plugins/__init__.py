"""Features behind the seams of the core, and `TABLE`, which says where the core finds them.

A plug-in is a folder here, or a package of somebody else. It imports the core, and no other plug-in; the core imports
none: with this folder deleted, it works on. What it needs of a feature is the protocol of a seam:

    Format         data in files of a kind: opened as `Records`, with a reader      plan/formats.py, data/records.py
    Store          the objects of a URL scheme                                      storage/store.py
    StateExtra     what a feature does in lanes, and keeps in states                order/extras.py
    Maker          from references to samples: a `MakerWrapper` goes around it      lanes/{maker,maker_wrappers}.py
    Announcer      what a lane will read, told to a store in time                   lanes/reading.py
    PackSource     which samples share a pack                                       lanes/{lane,pack_source}.py
    RecordSource   records of another form, of which samples are made               prepare/record_source.py
    LanePool       the processes that run the lanes of a rank                       loader/lane_pool.py

A plug-in is found by the kind and the name of what it offers: a scheme, the ending of a file, the name of a command or
of a feature. Ours are the lines of `TABLE`; those of other packages are their entry points:

    [project.entry-points."bridge_data.stores"]
    zip = "zip_store:ZipStore"

Its module is imported when its name is asked for, so a plug-in that nobody uses costs nothing. A setting or URL whose
plug-in is missing is an error that names it. See `bridge_data.extensions`, and "How to add" in CONTRIBUTING.md.
"""

from collections.abc import Mapping

TABLE: Mapping[str, Mapping[str, str]] = {
    "commands": {
        "check": "bridge_data.plugins.doctor.check_command:check",
        "checkpoint": "bridge_data.plugins.checkpoints.checkpoint_command:checkpoint",
        "checkpoint diff": "bridge_data.plugins.checkpoints.state_commands:diff",
        "checkpoint redist": "bridge_data.plugins.checkpoints.state_commands:redist",
        "checkpoint skip": "bridge_data.plugins.checkpoints.state_commands:skip",
        "checkpoint verify": "bridge_data.plugins.ledger.verify_command:verify",
        "convert": "bridge_data.plugins.convert.convert_command:convert",
        "duplicates": "bridge_data.plugins.duplicates.duplicates_command:duplicates",
        "forget": "bridge_data.plugins.forget.forget_command:forget",
        "mount": "bridge_data.plugins.mount.mount_command:mount",
        "view": "bridge_data.plugins.view.view_command:view",
    },
    "converters": {
        "folder": "bridge_data.plugins.convert.sample_files:open_folder",
        "classes": "bridge_data.plugins.convert.sample_files:open_classes",
        "webdataset": "bridge_data.plugins.convert.sample_files:open_tars",
        "jsonl": "bridge_data.plugins.convert.text_tables:open_lines",
        "json": "bridge_data.plugins.convert.text_tables:open_list",
        "csv": "bridge_data.plugins.convert.text_tables:open_csv",
        "coco": "bridge_data.plugins.convert.text_tables:open_coco",
        "parquet": "bridge_data.plugins.tables.table_rows:open_parquet",
        "arrow": "bridge_data.plugins.tables.table_rows:open_arrow",
        "datasets": "bridge_data.plugins.tables.table_rows:open_datasets",
        "mds": "bridge_data.plugins.tables.table_rows:open_mds",
        "litdata": "bridge_data.plugins.tables.table_rows:open_litdata",
        "lance": "bridge_data.plugins.tables.table_rows:open_lance",
        "tables": "bridge_data.plugins.tables.table_rows:open_several",
    },
    "executors": {
        "ray": "bridge_data.plugins.ray.ray_tasks:RayTasks",
    },
    "extras": {
        "ledger": "bridge_data.plugins.ledger.ledger:Ledger",
        "withheld": "bridge_data.plugins.forget.forgotten:ForgottenSamples",
    },
    "features": {
        "flac": "bridge_data.plugins.flac.whole_flac:read_flac",
        "balance": "bridge_data.plugins.sharing.sharing:balanced_by",
        "compressed_tars": "bridge_data.plugins.compressed.gzip_tar:GzipTar",
        "context_groups": "bridge_data.plugins.planned.context_groups:with_context_groups",
        "cost_checks": "bridge_data.plugins.planned.sample_costs:checked_weights",
        "cost_weights": "bridge_data.plugins.planned.cost_weights:CostWeights",
        "definition_guess": "bridge_data.plugins.convert.column_guess:guess_of_samples",
        "gathering": "bridge_data.plugins.gathering.gathering_loader:GatheringLoader",
        "index_of_energon": "bridge_data.plugins.unindexed.energon_index:index_of_energon",
        "json_columns": "bridge_data.plugins.where.storing_columns:store_json_columns",
        "join_indexes": "bridge_data.plugins.joins.metadataset_joins:prepare_metadataset",
        "late_states": "bridge_data.plugins.late_states.fetched_ahead:warn_if_fetched_ahead",
        "measured_with": "bridge_data.plugins.planned.costs:measured_with",
        "media_metadata": "bridge_data.plugins.media.storing_media:store_media",
        "memo": "bridge_data.plugins.caches.memo:memoized",
        "migration": "bridge_data.plugins.migration.migration:migrated",
        "plan_sheet": "bridge_data.plugins.view.charts:write_plan",
        "read_ahead": "bridge_data.plugins.stores.read_ahead:ReadAhead",
        "restored": "bridge_data.plugins.restoring.restoring:restored",
        "run_records": "bridge_data.plugins.ledger.ledger_files:RunLedger",
        "shown_samples": "bridge_data.plugins.view.shown_samples:show_samples",
        "share": "bridge_data.plugins.sharing.sharing:shared_loader",
        "speed": "bridge_data.plugins.doctor.measured_speed:measured_speed",
        "sql_engine": "bridge_data.plugins.where.choosing:open_engine",
        "steps_ahead": "bridge_data.plugins.planned.samples_ahead:SamplesAhead",
        "step_assignment": "bridge_data.plugins.planned.planned_sources:assigned",
        "store_costs": "bridge_data.plugins.planned.storing_costs:store_costs",
        "unindexed_shards": "bridge_data.plugins.unindexed.span_shard:SpanShard",
        "where": "bridge_data.plugins.where.where_clauses:SampleChoice",
        "workers_help": "bridge_data.plugins.helping.helping:open_help",
    },
    "formats": {
        **dict.fromkeys(
            (".parquet", ".arrow", ".lance", ".mds", ".bin", "tables"), "bridge_data.plugins.tables.table_files:Tables"
        ),
        **dict.fromkeys((".tar", ".tgz", ".tar.gz", "tars"), "bridge_data.plugins.unindexed.raw_tars:UnpreparedTars"),
    },
    "nodes": {
        "join": "bridge_data.plugins.joins.declared_join:declare_join",
    },
    "packings": {
        "planned": "bridge_data.plugins.planned.planned_sources:planned",
    },
    "pools": {
        "ray": "bridge_data.plugins.ray.ray_workers:RayWorkers",
    },
    "stores": {
        "s3": "bridge_data.plugins.stores.object_store:ObjectStore",
        "gs": "bridge_data.plugins.stores.object_store:ObjectStore",
        "az": "bridge_data.plugins.stores.object_store:ObjectStore",
        "msc": "bridge_data.plugins.stores.object_store:ObjectStore",
        "hf": "bridge_data.plugins.stores.object_store:HubStore",
    },
    "withheld": {
        "files": "bridge_data.plugins.forget.record_lists:forgotten_in",
        "records": "bridge_data.plugins.forget.record_lists:lists_of",
    },
}
"""By kind and name of an extension, its `module:object`."""
