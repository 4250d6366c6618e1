"""The data of a run as settings, in the one form that all trainers and commands read.

The modules, each using only those above it:

    run_folder   the folder of a run: the YAML with its settings, and its files
    names        objects that are named by `package.module:Name`
    values       settings as plain data, and as arguments of the DataModule
    data_config  `DataConfig`: all of it, read from what a run is started with; builds the DataModule
"""

from bridge_data.configs.data_config import DataConfig, NamedTaskEncoder, named_object
from bridge_data.configs.names import find_named, import_here, look_here
from bridge_data.configs.run_folder import CONFIG_FILE, RunFile, config_files, files_of_run, is_run_folder
from bridge_data.configs.values import DATA_MODULE

__all__ = [
    "CONFIG_FILE",
    "DATA_MODULE",
    "DataConfig",
    "NamedTaskEncoder",
    "RunFile",
    "config_files",
    "files_of_run",
    "find_named",
    "import_here",
    "is_run_folder",
    "look_here",
    "named_object",
]
