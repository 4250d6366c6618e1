"""Public functions take what Energon 7.4.1 has, in its order: as stored, and (`peer`) as the package itself says."""

import inspect
import json
import operator
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import bridge_data

STORED = Path(__file__).with_name("energon_7_4_1_signatures.json")

NAMES = (
    "AugmentTaskEncoder",
    "Batch.derive_from",
    "Batch.extend",
    "Batch.from_samples",
    "Batch.pin_memory",
    "DefaultTaskEncoder",
    "Sample.derive_from",
    "Sample.extend",
    "SavableDataLoader.restore_state_global",
    "SavableDataLoader.restore_state_rank",
    "SavableDataLoader.save_state_global",
    "SavableDataLoader.save_state_rank",
    "TaskEncoder.batch",
    "TaskEncoder.batch_group_criterion",
    "TaskEncoder.encode_batch",
    "TaskEncoder.encode_sample",
    "TaskEncoder.pack_selected_samples",
    "TaskEncoder.postencode_sample",
    "TaskEncoder.preencode_sample",
    "TaskEncoder.select_samples_to_pack",
    "WorkerConfig",
    "WorkerConfig.default_worker_config",
    "WorkerConfig.global_rank",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "concat_pad",
    "generic_batch",
    "generic_concat",
    "get_loader",
    "get_savable_loader",
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
    "homogeneous_concat_mix",
    "stateless",
)

NAMED_BY_THE_USER = {"Batch.derive_from", "Batch.extend", "Batch.from_samples", "Sample.derive_from", "Sample.extend"}
"""What the user's class has as fields, these take as keyword arguments; no other function takes any name."""

Parameters = list[tuple[str, str, bool]]
"""(name, kind, whether it must be given) of each parameter."""


def parameters_of(package: Any, name: str) -> Parameters:
    signature = inspect.signature(operator.attrgetter(name)(package))
    return [
        (parameter.name, parameter.kind.name, parameter.default is inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if not parameter.name.startswith("_")
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_function_takes_what_energons_takes(name: str) -> None:
    theirs: Parameters = json.loads(STORED.read_text())[name]
    ours = parameters_of(bridge_data, name)
    taken = {parameter: (kind, is_needed) for parameter, kind, is_needed in ours}
    in_order = [parameter for parameter, kind, _ in theirs if kind.startswith("POSITIONAL")]
    assert [parameter for parameter, kind, _ in ours if kind.startswith("POSITIONAL")][: len(in_order)] == in_order
    for parameter, kind, is_needed in theirs:
        if kind != "VAR_KEYWORD":
            assert parameter in taken, f"{name} does not take {parameter}"
            assert is_needed or not taken[parameter][1], f"{name} needs {parameter}"
    known = {parameter for parameter, _, _ in theirs}
    needed = [parameter for parameter, kind, is_needed in ours if is_needed and not kind.startswith("VAR")]
    assert set(needed) <= known, "what Energon does not have must not be needed"
    assert name in NAMED_BY_THE_USER or not any(kind.startswith("VAR") for _, kind, _ in ours)


@pytest.mark.peer
@pytest.mark.skipif("BRIDGE_DATA_PEER" not in os.environ, reason="BRIDGE_DATA_PEER names no Python with the peer")
def test_the_stored_signatures_are_those_of_the_real_package() -> None:
    source = (
        f"import inspect, json, operator\nfrom typing import Any\nParameters = list\n{inspect.getsource(parameters_of)}"
    )
    program = f"{source}\nimport megatron.energon as e\nprint(json.dumps({{n: parameters_of(e, n) for n in {NAMES}}}))"
    found = subprocess.run([os.environ["BRIDGE_DATA_PEER"], "-c", program], capture_output=True, text=True, check=True)
    made = json.loads(found.stdout.splitlines()[-1])
    assert made == json.loads(STORED.read_text())
