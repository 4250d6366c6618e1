"""What is to be read: sources with their weights, from YAML files whose every mistake is found here."""

from bridge_data.plan.blending import Branch, Plan
from bridge_data.plan.field_map import FieldAccess, parse_access
from bridge_data.plan.metadataset import EmptySplitError, load_plan
from bridge_data.plan.source import Source

__all__ = ["Branch", "EmptySplitError", "FieldAccess", "Plan", "Source", "load_plan", "parse_access"]
