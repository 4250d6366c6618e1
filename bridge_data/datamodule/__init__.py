"""The DataModule: training and validation loaders of one rank, for Megatron and for Lightning."""

from bridge_data.datamodule.cycle import cyclic_iter
from bridge_data.datamodule.module import EnergonMultiModalDataModule
from bridge_data.datamodule.training import EnergonDataloader
from bridge_data.datamodule.validation import ValidationDataloader

__all__ = ["EnergonDataloader", "EnergonMultiModalDataModule", "ValidationDataloader", "cyclic_iter"]
