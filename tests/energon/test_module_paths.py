"""`bridge_data.energon` answers to the module paths of Energon 7.4.1."""

import abc
import importlib
import json
import pickle
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import bridge_data
import bridge_data.energon
from bridge_data.energon import module_paths
from bridge_data.energon.engine_names import has_stand_in
from bridge_data.errors import ConfigError
from tests.ranks import run_job

CONSTANT = re.compile(r"^[A-Z0-9_]+$|_re(_bytes)?$|^(url_regex|float_pattern|cpal|sample_loader_template)$")

MODULES: dict[str, list[str]] = json.loads((Path(__file__).parents[1] / "energon_7_4_1_modules.json").read_text())
"""The public names that each module of Energon 7.4.1 defines, or lists in `__all__`, without type variables."""


def test_every_module_of_energon_is_a_path_here() -> None:
    assert sorted(module_paths.PATHS) == sorted(MODULES)


@pytest.mark.parametrize("path", MODULES)
def test_a_name_of_energon_is_here_or_its_error_says_what_to_use(path: str) -> None:
    module = importlib.import_module(f"bridge_data.energon.{path}")
    assert {*module.__all__} - {*MODULES[path]} <= {"prepare_media_command"}, "no names that Energon has not"
    for name in MODULES[path]:
        if name in module.__all__:
            assert getattr(module, name) is not None
        elif has_stand_in(path, name):
            found = getattr(module, name)
            assert found is getattr(module, name) and pickle.loads(pickle.dumps(found)) is found
            with pytest.raises(ConfigError, match=rf"has no {name}: \w.*docs/energon\.md"):
                type("Derived", (found, abc.ABC), {})(1, name=2)
        else:
            assert CONSTANT.search(name), "only constants cannot be imported"
            told = rf"bridge_data\.energon\.{path} has no {name}: \w.*docs/energon\.md"
            with pytest.raises(ImportError, match=told):
                exec(f"from bridge_data.energon.{path} import {name}")
            with pytest.raises(AttributeError, match=told):
                getattr(module, name)


def test_a_module_also_has_what_energon_imports_there() -> None:
    from bridge_data.energon.task_encoder.cooking import CrudeSample, WorkerConfig

    assert (CrudeSample, WorkerConfig) == (bridge_data.CrudeSample, bridge_data.WorkerConfig)


def test_what_has_no_module_is_pickled_although_no_path_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    late = ModuleType("imported_after_bridge_data")
    exec("def nowhere_else(): pass\nnowhere_else.__module__ = None", vars(late))  # as functions written in C are
    monkeypatch.setitem(sys.modules, late.__name__, late)
    assert pickle.loads(pickle.dumps(late.nowhere_else)) is late.nowhere_else


def test_names_of_the_package_are_here_and_one_that_nobody_has_is_an_attribute_error() -> None:
    for name in bridge_data.__all__:
        assert getattr(bridge_data.energon, name) is getattr(bridge_data, name)
    assert bridge_data.energon.__version__ == bridge_data.__version__
    for module in (bridge_data.energon, bridge_data.energon.flavors):
        assert not hasattr(module, "_nothing")
    with pytest.raises(AttributeError, match="no attribute 'get_dataset'"):
        _ = bridge_data.energon.get_dataset
    from bridge_data.energon.wrappers.concat_dataset import ConcatDataset as Same

    from bridge_data.energon import ConcatDataset

    assert ConcatDataset is Same and ConcatDataset[int] is ConcatDataset
    with pytest.raises(ConfigError, match="ConcatDataset: sources come one after the other"):
        ConcatDataset([])
    for name in ("SOME_NAME", "_engine"):
        with pytest.raises(AttributeError):
            getattr(ConcatDataset, name)


@pytest.mark.processes
@pytest.mark.parametrize(
    "lines",
    [
        "from bridge_data.energon.edataclass import edataclass\nfrom bridge_data.energon import edataclass as own\n"
        "assert own is edataclass",
        "import bridge_data.energon.flavors.webdataset.config as config\nassert config.MAIN_FOLDER_NAME == '.nv-meta'",
        "import bridge_data.energon.epathlib.epath\nassert bridge_data.energon.epathlib.epath.EPath('/a').name == 'a'",
        "from bridge_data.energon import av, wrappers\nfrom bridge_data.energon.av import AVDecoder\n"
        "assert av.AVDecoder is AVDecoder",
        "from bridge_data.energon.task_encoder.base import *\nassert TaskEncoder and stateless",
    ],
)
def test_imports_of_every_form_work_in_a_new_process(lines: str) -> None:
    status, output = run_job("-c", lines, anew=["bridge_data"])
    assert status == 0, output
