"""Preparing data sets: shards are scanned, indexed and split, joins are indexed, and media are measured."""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.prepare.media import MediaPreparation, MediaRule, prepare_media

_NAMES_BY_MODULE = {"bridge_data.prepare.media": "MediaPreparation MediaRule prepare_media"}
"""The module of each public name: the same as above, for Python, as that is for those who read and check types."""

__all__ = ["MediaPreparation", "MediaRule", "prepare_media"]

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, _NAMES_BY_MODULE)
