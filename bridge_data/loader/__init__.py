"""Worker processes that run lanes, and the loader that hands out their batches in order."""

from bridge_data.loader.config import LoaderConfig
from bridge_data.loader.factory import get_loader, get_savable_loader
from bridge_data.loader.lanes import Lane, LaneDataset
from bridge_data.loader.loader import SavableDataLoader

__all__ = ["Lane", "LaneDataset", "LoaderConfig", "SavableDataLoader", "get_loader", "get_savable_loader"]
