"""Features behind the seams of the core: a folder each, and `TABLE`, which says where the core finds them.

A plug-in imports the core and no other plug-in; the core imports none. See `bridge_data.extensions`.
"""

from collections.abc import Mapping

TABLE: Mapping[str, Mapping[str, str]] = {
    "commands": {
        "audit": "bridge_data.plugins.ledger.audit_command:audit",
        "duplicates": "bridge_data.plugins.duplicates.duplicates_command:duplicates",
        "forget": "bridge_data.plugins.forget.forget_command:forget",
        "measure": "bridge_data.plugins.planned.measure_command:measure",
        "mount": "bridge_data.plugins.mount.mount_command:mount",
        "view": "bridge_data.plugins.view.view_command:view",
    },
    "extras": {
        "ledger": "bridge_data.plugins.ledger.ledger:Ledger",
        "withheld": "bridge_data.plugins.forget.forgotten:ForgottenSamples",
    },
    "features": {
        "context_groups": "bridge_data.plugins.planned.context_groups:with_context_groups",
        "cost_checks": "bridge_data.plugins.planned.sample_costs:checked_weights",
        "cost_weights": "bridge_data.plugins.planned.cost_weights:CostWeights",
        "planned": "bridge_data.plugins.planned.planned_sources:planned",
        "step_deal": "bridge_data.plugins.planned.planned_sources:dealt",
        "memo": "bridge_data.plugins.memo.memo:memoized",
        "ray": "bridge_data.plugins.ray.ray_workers:ray_pool",
        "workers_help": "bridge_data.plugins.helping.helping:open_help",
    },
    "recorders": {
        "ledger": "bridge_data.plugins.ledger.ledger_files:LedgerFile",
    },
    "formats": {
        "tables": "bridge_data.plugins.tables.table_files:Tables",
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
