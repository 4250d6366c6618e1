"""Worker processes that run lanes, and the loader that hands out their batches in order."""

from bridge_data.loader.factory import get_loader, get_savable_loader
from bridge_data.loader.loader import SavableDataLoader
from bridge_data.run_options import LoaderConfig

__all__ = ["LoaderConfig", "SavableDataLoader", "get_loader", "get_savable_loader"]
